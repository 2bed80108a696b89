"""Control messages of one sync, in the order they are exchanged.

A worker may be connected to several publishers, the ranks of one trainer: it takes each step with all of them before
the next, and holds the update when all of them have committed it.

subscriber                         publisher
Hello      ───────────────────────►            who, which version, which checkpoint table it knows
           ◄───────────────────────  Table     only when the subscriber does not know the table yet
Layout     ───────────────────────►            only after a Table
           ◄───────────────────────  Units     only after a Layout
           ◄───────────────────────  Begin, then its frames
Applied    ───────────────────────►            written, not yet final; or Failed, written nothing
           ◄───────────────────────  Commit    every worker of every rank applied; or Abort: undo
Done       ───────────────────────►
           ◄───────────────────────  Units and the frames of an audit, if Commit announced one
Audited    ───────────────────────►

`conversation` has this as a table that both ends run on. Every message carries the number of its exchange, which the
worker draws for its Hello.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from slipstream.core.weights.errors import DamagedMessageError
from slipstream.core.weights.layout import TensorLayout
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.units import WireUnit


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A worker reports for a sync."""

    worker: str
    """Name for messages, such as `replica 0 rank 1`."""
    run: int | None
    """Publisher run whose weights it holds; None before a seed or after they were lost."""
    version: int | None
    table: str | None
    """Digest of the last table whose units all publishers of that run have told it."""


class Table(msgspec.Struct, tag=True, frozen=True):
    """The checkpoint table: what the trainer sends, in order."""

    specs: tuple[TensorSpec, ...]
    run: int


class Layout(msgspec.Struct, tag=True, frozen=True):
    """What the worker holds of each tensor of the table."""

    tensors: tuple[TensorLayout, ...]


class Units(msgspec.Struct, tag=True, frozen=True):
    """The arrays that this publisher sends to a worker of that layout, and where their elements go."""

    sender: int
    """Rank of the trainer process, among those that the worker is connected to."""
    units: tuple[WireUnit, ...]


class Begin(msgspec.Struct, tag=True, frozen=True):
    """An update follows in `frames` frames."""

    run: int
    base: int | None
    """Version the changes start from; None for a dense seed."""
    target: int
    frames: int
    verify: bool
    """Recompute the fingerprints from memory instead of carrying them forward."""
    sender: int
    """See `Units`."""
    levels: tuple[int, ...] = ()
    """With a seed: codec levels that later updates may come at; none when all will be seeds."""


class Applied(msgspec.Struct, tag=True, frozen=True):
    """The update is in the worker's memory and can still be undone."""

    fingerprints: bytes
    """uint64[units], little-endian: one fingerprint a unit, 0 for one that the engine's own loader takes."""
    wait_seconds: float
    """How long the worker waited for frames of this publisher."""
    work_seconds: float
    """How long it took over decoding and writing them, in all."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The update was not applied; the worker holds what it held before."""

    error: str
    traceback: str
    reseed: bool = False
    """Passed on from the `Abort` of another publisher."""


class Commit(msgspec.Struct, tag=True, frozen=True):
    """The update is final."""

    audit: bool
    """Whether `Units` and frames with the whole checkpoint follow."""


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Undo the update, or do not start it."""

    reason: str
    reseed: bool = False
    """The layouts changed: every trainer rank has to start from a seed."""


class Done(msgspec.Struct, tag=True, frozen=True):
    """The worker now holds `version` for good."""

    version: int


class Audited(msgspec.Struct, tag=True, frozen=True):
    """Outcome of comparing the engine's checksums with those after a dense load by its own loader."""

    compared: int
    different: tuple[str, ...]


Message = Hello | Table | Layout | Units | Begin | Applied | Failed | Commit | Abort | Done | Audited
_CHECKSUM_BYTES = 8
_EXCHANGE = struct.Struct("<Q")
_BODY = _CHECKSUM_BYTES + _EXCHANGE.size
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message, exchange: int) -> bytes:
    """Message to bytes: a checksum, the number of the exchange and msgpack."""
    body = _EXCHANGE.pack(exchange) + msgspec.msgpack.encode(message)
    return _checksum(body) + body


def decode(data: bytes) -> tuple[Message, int]:
    """Bytes to message and the number of its exchange.

    Raises:
        DamagedMessageError: not a message of this protocol version, or damaged on the way.
    """
    if len(data) < _BODY or data[:_CHECKSUM_BYTES] != _checksum(data[_CHECKSUM_BYTES:]):
        raise DamagedMessageError("not a weight-sync message, or one that was damaged on the way")
    try:
        return _decoder.decode(data[_BODY:]), _EXCHANGE.unpack_from(data, _CHECKSUM_BYTES)[0]
    except msgspec.DecodeError as error:
        raise DamagedMessageError(
            f"not a weight-sync message ({error}); trainer and engine must run the same slipstream version"
        ) from error


def _checksum(body: bytes) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(body)
    return digest
