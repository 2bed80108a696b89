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
from slipstream.triton_kernels import PackedChanges, PackedUnits, on_gpu

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


class PackedSections(NamedTuple):
    """`Packed` of several units of one width, each once, decoded together."""

    units: tuple[int, ...]
    changes: PackedUnits
    olds: tuple[OldValues, ...]

    def apart(self) -> list[Packed]:
        """Each by itself."""
        each = zip(self.units, self.olds, strict=True)
        return [Packed(unit, self.changes.unit(i), old) for i, (unit, old) in enumerate(each)]


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
    """`decode_frame`, each unit by itself."""
    found = list[Section]()
    for section in decode_frame(data, identity, index, table, old, device):
        if isinstance(section, PackedSections):
            found += section.apart()
        else:
            found.append(section)
    return found


def decode_frame(
    data: bytes,
    identity: Identity,
    index: int,
    table: UnitTable,
    old: Callable[[int], OldValues] | None = None,
    device: torch.device | None = None,
) -> list[Section | PackedSections]:
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
    sections, found = list[Section | PackedSections](), 0
    for section in _sections(memoryview(data)[HEADER_BYTES:], table, old, device):
        found += len(section.units) if isinstance(section, PackedSections) else 1
        sections.append(section)
    if found != count:
        raise CorruptFrameError(f"frame announces {count} sections and carries {found}")
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


def _raw_section(body: memoryview, at: int) -> RawSection:
    """The section whose header starts at `at`."""
    start = at + SECTION_BYTES
    if start > len(body):
        raise CorruptFrameError("a section header is truncated")
    unit, mode, width, level, first, count, size = _SECTION.unpack_from(body, at)
    if start + size > len(body):
        raise CorruptFrameError(f"section for unit {unit} announces {size} bytes, {len(body) - start} are left")
    if mode not in (_CHANGES, _RANGE):
        raise CorruptFrameError(f"section for unit {unit} has unexpected mode {mode}")
    payload = np.frombuffer(body[start : start + size], np.uint8)
    return RawSection(unit, mode == _RANGE, width, level, first, count, payload)


def _raw_sections(body: memoryview) -> Iterator[RawSection]:
    at = 0
    while at < len(body):
        raw = _raw_section(body, at)
        yield raw
        at += raw.size


def _sections(
    body: memoryview, table: UnitTable, old: Callable[[int], OldValues] | None, device: torch.device | None
) -> Iterator[Section | PackedSections]:
    uploaded, at, singly = None, 0, 0
    on_device = device is not None and on_gpu(torch.empty(0, device=device))
    while at < len(body):
        if old is not None and not on_device and at >= singly:
            together, singly = _together(body, at, table, old)
            if together is not None:
                yield together
                at = singly
                continue
        raw = _raw_section(body, at)
        at += raw.size
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
                        payload = Uploaded(raw.payload, uploaded[at - raw.payload.size : at])
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


def _together(
    body: memoryview, at: int, table: UnitTable, old: Callable[[int], OldValues]
) -> tuple[PackedSections | None, int]:
    """Decode the sections from `at` on up to the first one of another kind: changes of different units of one width, at
    one level whose codec can do that, and as many of them as it takes.

    Returns:
        The changes, or None where they must be decoded singly, be it to find out which of them is wrong; and the end.
    """
    units, sections = dict[int, None](), list[tuple[int, int]]()
    kind: tuple[int, int] | None = None
    while at + SECTION_BYTES <= len(body):
        unit, mode, width, level, _, _, size = _SECTION.unpack_from(body, at)
        start = at + SECTION_BYTES
        if mode != _CHANGES or unit in units or unit >= len(table.numel) or table.width[unit] != width:
            break
        if size > len(body) - start or (kind is not None and kind != (width, level)):
            break
        units[unit] = None
        sections.append((start, size))
        at, kind = start + size, (width, level)
    if kind is None:
        return None, at + 1
    try:
        unpack_all = codec_of(kind[1]).unpack_all
        if unpack_all is None:
            return None, at
        olds = tuple(old(unit) for unit in units)
        changes = unpack_all(np.frombuffer(body, np.uint8), np.array(sections, np.int64), olds)
    except (LookupError, ValueError):
        return None, at
    taken = changes.runs.size - 1
    return PackedSections(tuple(units)[:taken], changes, olds[:taken]), sum(sections[taken - 1])


def _upload(body: memoryview, device: torch.device) -> Tensor:
    staged = torch.empty(len(body), dtype=torch.uint8, pin_memory=device.type == "cuda")
    staged.numpy()[:] = np.frombuffer(body, np.uint8)
    return staged.to(device, non_blocking=True)
