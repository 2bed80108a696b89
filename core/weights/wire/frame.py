"""Frames: what travels between publisher and subscriber. `docs/wire-format.md` specifies every byte.

A frame is a 56-byte header (identity, versions, checksum) and a run of sections. A section carries the changes of one
wire unit (see `units`), or a range of its elements in full.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.hooks import Codec, plugins
from slipstream.core.weights.wire.arrays import Bits, Places, to_host
from slipstream.core.weights.wire.unit import OldValues, OnHost, Uploaded, bits_dtype
from slipstream.triton_kernels import PackedChanges, on_gpu

MAGIC = b"SLPS"
FORMAT = 2
NO_BASE = 2**64 - 1
"""Base version of a frame that needs none: a dense seed."""

_HEADER = struct.Struct("<4sHHQQQIIQ")
_CHECKSUM = struct.Struct("<Q")
_SECTION = struct.Struct("<IBBHQQQ")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
SECTION_BYTES = _SECTION.size
_CHANGES, _RANGE = 0, 1

U8 = NDArray[np.uint8]


class CorruptFrameError(ValueError):
    """A frame that is damaged, foreign or out of place. Nothing of it was applied."""


class Changes(NamedTuple):
    """Decoded changes of one unit, where its weights are."""

    unit: int
    positions: Places
    """int64[n], strictly ascending element indices."""
    values: Bits
    """unsigned[n], the new elements."""


class Packed(NamedTuple):
    """Changes of one unit on the host as its codec unpacks them; some may depend on what is in memory."""

    unit: int
    changes: PackedChanges
    old: OldValues
    """The unit at the base version."""

    @property
    def positions(self) -> Places:
        """As of `Changes`."""
        return self.changes.positions()

    @property
    def values(self) -> Bits:
        """As of `Changes`, while the unit is at the base version.

        Raises:
            ValueError: one would move out of its type.
        """
        return self.changes.values(self.old.at(self.positions))


class Range(NamedTuple):
    """Decoded contiguous elements of one unit."""

    unit: int
    first: int
    """Index of the first element."""
    values: Bits
    """unsigned[n]."""


Section = Changes | Packed | Range


class Identity(NamedTuple):
    """What a frame belongs to; both ends must agree on it before anything is decoded."""

    run: int
    base: int
    target: int


class RawSection(NamedTuple):
    """A section whose payload was not decoded."""

    unit: int
    is_range: bool
    width: int
    level: int
    first: int
    elements: int
    """That it gives a value to."""
    payload: U8

    @property
    def size(self) -> int:
        """Bytes with the header."""
        return SECTION_BYTES + self.payload.size


class RawFrame(NamedTuple):
    """A frame taken apart."""

    identity: Identity
    position: int
    """In its update, from 0."""
    checksum_ok: bool
    sections: tuple[RawSection, ...]


class UnitTable(NamedTuple):
    """Sizes the decoder checks sections against: elements and bytes an element, per unit."""

    numel: tuple[int, ...]
    width: tuple[int, ...]


def codec_of(level: int) -> Codec:
    """The registered codec of a level.

    Raises:
        LookupError: no plugin provides one.
    """
    codecs = plugins().codecs().values()
    for codec in codecs:
        if codec.level == level:
            return codec
    raise LookupError(f"no codec of level {level}; registered are {[(c.level, c.name) for c in codecs]}")


class Encoders:
    """Makes sections of changes at one level; the codec's memory of one link lives here."""

    def __init__(self, level: int) -> None:
        self.level = level
        self._codec = codec_of(level)
        self._encoder = self._codec.encoder()
        fallback = codec_of(0)
        self._fallback = fallback, fallback.encoder()  # for dtypes that the codec does not know

    def section(self, unit: int, old: OldValues, positions: Places, values: Bits) -> list[bytes]:
        """Encode changes of one unit as section parts, or the full range when that is smaller; [] for no change.

        Changes on an accelerator are encoded there and only the result comes to the host, unless the codec is one for
        the host.

        Args:
            unit: index in the link.
            old: the unit at the base version.
            positions: int64[n], strictly ascending element indices.
            values: unsigned[n], the new elements.
        """
        if len(positions) == 0:
            return []
        knows = self._codec.dtypes is None or old.dtype in self._codec.dtypes
        codec, encoder = (self._codec, self._encoder) if knows else self._fallback
        if isinstance(positions, Tensor) and not codec.on_device:
            old, positions, values = OnHost(old), positions.cpu().numpy(), to_host(values)
        blocks: U8 = to_host(encoder.encode(old, positions, values))
        if blocks.size >= old.numel * values.itemsize:
            whole = to_host(old.all()).copy()
            whole[to_host(positions).view(np.int64)] = to_host(values)
            return range_section(unit, 0, whole)
        header = _SECTION.pack(unit, _CHANGES, values.itemsize, codec.level, 0, len(positions), blocks.size)
        return [header, blocks.tobytes()]

    def finish(self) -> None:
        """The last unit of a sync was encoded."""
        self._encoder.finish()


def range_section(unit: int, first: int, values: Bits) -> list[bytes]:
    """Encode the elements from `first` on, in full; from an accelerator they are copied here."""
    values = to_host(values)
    return [_SECTION.pack(unit, _RANGE, values.itemsize, 0, first, values.size, values.nbytes), values.tobytes()]


def pack_frame(identity: Identity, index: int, sections: Iterable[list[bytes]]) -> bytes:
    """Join sections into one frame with header and checksum."""
    sections = [s for s in sections if s]
    body = b"".join(part for section in sections for part in section)
    header = _HEADER.pack(MAGIC, FORMAT, 0, *identity, index, len(sections), len(body))
    checksum = xxhash.xxh3_64(header)
    checksum.update(body)
    return b"".join((header, _CHECKSUM.pack(checksum.intdigest()), body))


def unpack_frame(
    data: bytes,
    identity: Identity,
    index: int,
    table: UnitTable,
    old: Callable[[int], OldValues] | None = None,
    device: torch.device | None = None,
) -> list[Section]:
    """Check and decode one frame.

    Where the weights are on an accelerator, the frame goes there once and changes are decoded there; ranges stay on the
    host. Memory there: the frame and what it decodes to.

    Args:
        data: the frame as received.
        identity: run, base and target the receiver was told to expect.
        index: position of the frame in its update, from 0.
        table: sizes of the units it may name.
        old: a unit at the base version; None where only ranges are expected.
        device: where the weights are; the host by default.

    Raises:
        CorruptFrameError: anything about it is wrong; the message says what was expected and found.
    """
    run, base, target, found_index, count = _check_header(data)
    if not _checksum_holds(data):
        raise CorruptFrameError("checksum mismatch: the frame was damaged on the way")
    if (run, base, target) != identity or found_index != index:
        raise CorruptFrameError(
            f"expected frame {index} of run {identity.run:x} from version {identity.base} to {identity.target}, "
            f"got frame {found_index} of run {run:x} from version {base} to {target}"
        )
    sections = list(_sections(memoryview(data)[HEADER_BYTES:], table, old, device))
    if len(sections) != count:
        raise CorruptFrameError(f"frame announces {count} sections and carries {len(sections)}")
    return sections


def read_frame(data: bytes) -> RawFrame:
    """Take a frame apart without decoding it, whatever it belongs to.

    Raises:
        CorruptFrameError: its headers do not fit together. A wrong checksum is noted, not raised.
    """
    run, base, target, index, count = _check_header(data)
    sections = tuple(_raw_sections(memoryview(data)[HEADER_BYTES:]))
    if len(sections) != count:
        raise CorruptFrameError(f"frame announces {count} sections and carries {len(sections)}")
    return RawFrame(Identity(run, base, target), index, _checksum_holds(data), sections)


def frame_size(data: bytes, at: int = 0) -> int:
    """Bytes of the frame that starts at `at`, where at least a header must be.

    Raises:
        CorruptFrameError: no frame starts there.
    """
    magic, version, *_, size = _HEADER.unpack_from(data, at)
    if magic != MAGIC or version != FORMAT:
        raise CorruptFrameError(f"expected a {MAGIC!r} frame of format {FORMAT} at byte {at}, got {magic!r} {version}")
    return HEADER_BYTES + int(size)


def _check_header(data: bytes) -> tuple[int, int, int, int, int]:
    """Run, base, target, index and number of sections."""
    if len(data) < HEADER_BYTES:
        raise CorruptFrameError(f"frame has {len(data)} bytes, its header alone needs {HEADER_BYTES}: it was truncated")
    magic, version, reserved, run, base, target, index, count, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT or reserved:
        raise CorruptFrameError(
            f"expected a {MAGIC!r} frame of format {FORMAT}, got {magic!r} format {version} (flags {reserved}); "
            "trainer and engine must run the same slipstream version"
        )
    if len(data) != HEADER_BYTES + size:
        raise CorruptFrameError(f"frame announces {size} payload bytes and carries {len(data) - HEADER_BYTES}")
    return run, base, target, index, count


def _checksum_holds(data: bytes) -> bool:
    checksum = xxhash.xxh3_64(data[: _HEADER.size])
    checksum.update(memoryview(data)[HEADER_BYTES:])
    return bool(checksum.intdigest() == _CHECKSUM.unpack_from(data, _HEADER.size)[0])


def _raw_sections(body: memoryview) -> Iterator[RawSection]:
    offset = 0
    while offset < len(body):
        if offset + SECTION_BYTES > len(body):
            raise CorruptFrameError("a section header is truncated")
        unit, mode, width, level, first, count, size = _SECTION.unpack_from(body, offset)
        offset += SECTION_BYTES
        if offset + size > len(body):
            raise CorruptFrameError(f"section for unit {unit} announces {size} bytes, {len(body) - offset} are left")
        if mode not in (_CHANGES, _RANGE):
            raise CorruptFrameError(f"section for unit {unit} has unexpected mode {mode}")
        payload = np.frombuffer(body[offset : offset + size], np.uint8)
        yield RawSection(unit, mode == _RANGE, width, level, first, count, payload)
        offset += size


def _sections(
    body: memoryview, table: UnitTable, old: Callable[[int], OldValues] | None, device: torch.device | None
) -> Iterator[Section]:
    uploaded, end = None, 0
    on_device = device is not None and on_gpu(torch.empty(0, device=device))
    for raw in _raw_sections(body):
        end += raw.size
        unit, width, level = raw.unit, raw.width, raw.level
        if unit >= len(table.numel) or table.width[unit] != width:
            raise CorruptFrameError(
                f"section for unit {unit} (width {width}, {raw.payload.size} bytes) does not fit the table of "
                f"{len(table.numel)} units"
            )
        numel = table.numel[unit]
        if raw.is_range:
            if raw.payload.size != raw.elements * width or raw.first + raw.elements > numel or level:
                raise CorruptFrameError(
                    f"range {raw.first}+{raw.elements} does not fit unit {unit} of {numel} elements"
                )
            yield Range(unit, raw.first, raw.payload.view(bits_dtype(width)))
        elif old is not None:
            try:
                codec, held = codec_of(level), old(unit)
                payload: U8 | Uploaded = raw.payload
                if not on_device and codec.unpack is not None:
                    yield Packed(unit, codec.unpack(payload, held), held)
                    continue
                if on_device:
                    assert device is not None
                    if codec.on_device:
                        uploaded = _upload(body, device) if uploaded is None else uploaded
                        payload = Uploaded(raw.payload, uploaded[end - raw.payload.size : end])
                    else:
                        held = OnHost(held)
                positions, values = codec.decode(payload, held)
            except LookupError as error:
                raise CorruptFrameError(f"{error}; trainer and engine must have the same plugins") from error
            except ValueError as error:
                raise CorruptFrameError(f"unit {unit}: {error}") from error
            yield Changes(unit, positions, values)
        else:
            raise CorruptFrameError(
                f"section for unit {unit} has unexpected mode {_CHANGES}: only ranges are expected here"
            )


def _upload(body: memoryview, device: torch.device) -> Tensor:
    staged = torch.empty(len(body), dtype=torch.uint8, pin_memory=device.type == "cuda")
    staged.numpy()[:] = np.frombuffer(body, np.uint8)
    return staged.to(device, non_blocking=True)
