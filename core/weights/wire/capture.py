"""Files of frames: what travelled in one update, for `slipstream inspect`, for tests and for storage.

    4 bytes  magic `SLPC`
    4 bytes  size of the table
    size     table: MessagePack array of units (dtype, number of elements, checkpoint tensors by name); may be empty
    rest     the frames, one after another, as they travel

A file may also consist of frames alone; then nothing names the units.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream.core.weights.wire.frame import HEADER_BYTES, MAGIC, CorruptFrameError, frame_size

_HEAD = struct.Struct("<4sI")
_MAGIC = b"SLPC"


class CapturedUnit(msgspec.Struct, frozen=True, array_like=True):
    """What a frame does not say of a unit."""

    dtype: str
    """Wire name, a key of `tensors.DTYPES`."""
    numel: int
    tensors: tuple[str, ...]
    """Checkpoint tensors it has parts of."""


class Capture(NamedTuple):
    """The contents of a file."""

    units: tuple[CapturedUnit, ...]
    """In the order in which sections count them; empty when the file does not say."""
    frames: tuple[bytes, ...]


def write_capture(path: Path, units: Iterable[CapturedUnit], frames: Iterable[bytes]) -> None:
    """Write the frames of one link, with the units they address."""
    table = msgspec.msgpack.encode(tuple(units))
    path.write_bytes(b"".join((_HEAD.pack(_MAGIC, len(table)), table, *frames)))


def read_capture(data: bytes) -> Capture:
    """Take a file apart; frames are neither checked nor decoded.

    Raises:
        CorruptFrameError: it is neither a capture nor a run of frames, or it was truncated.
    """
    units: tuple[CapturedUnit, ...] = ()
    at = 0
    if data.startswith(_MAGIC):
        size = _HEAD.unpack_from(data)[1] if len(data) >= _HEAD.size else 0
        at = _HEAD.size + size
        try:
            units = msgspec.msgpack.decode(data[_HEAD.size : at], type=tuple[CapturedUnit, ...])
        except msgspec.DecodeError as error:
            raise CorruptFrameError(f"the table of units cannot be read: {error}") from error
    elif not data.startswith(MAGIC):
        raise CorruptFrameError(f"expected a frame ({MAGIC!r}) or a file of frames ({_MAGIC!r}), got {data[:4]!r}")
    return Capture(units, tuple(_frames(data, at)))


def _frames(data: bytes, at: int) -> Iterator[bytes]:
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            raise CorruptFrameError(f"the last {len(data) - at} bytes are no frame: the file was truncated")
        end = at + frame_size(data, at)
        if end > len(data):
            raise CorruptFrameError(f"the last frame has {end - at} bytes, {len(data) - at} are there: truncated")
        yield data[at:end]
        at = end
