"""Frames: what travels between publisher and subscriber. `docs/wire-format.md` specifies every byte.

A frame is a 56-byte header (identity, versions, checksum) and a run of sections. A section carries the changes of one
checkpoint tensor, or a range of its elements in full.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from slipstream.core.hooks import Codec, plugins

MAGIC = b"SLPS"
FORMAT = 1
ANY_WIDTH = 0
NO_BASE = 2**64 - 1
"""Base version of a frame that needs none: a dense seed."""

_HEADER = struct.Struct("<4sHBBQQQIIQ")
_CHECKSUM = struct.Struct("<Q")
_SECTION = struct.Struct("<IBBHQQQ")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
SECTION_BYTES = _SECTION.size
_CHANGES, _RANGE = 0, 1

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


class CorruptFrameError(ValueError):
    """A frame that is damaged, foreign or out of place. Nothing of it was applied."""


class Changes(NamedTuple):
    """Decoded changes of one tensor."""

    tensor: int
    """Index into the checkpoint table."""
    positions: I64
    """int64[n], strictly ascending flat element indices."""
    values: U8
    """uint8[n * width], the new elements."""


class Range(NamedTuple):
    """Decoded contiguous elements of one tensor."""

    tensor: int
    first: int
    """Flat index of the first element."""
    values: U8
    """uint8[n * width]."""


Section = Changes | Range


class Identity(NamedTuple):
    """What a frame belongs to; both ends must agree on it before anything is decoded."""

    run: int
    base: int
    target: int


class TensorTable(NamedTuple):
    """Sizes the decoder checks sections against: elements and bytes an element, per tensor."""

    numel: tuple[int, ...]
    width: tuple[int, ...]
    """`ANY_WIDTH` for tensors that this receiver skips: it cannot know the dtype in which others take them."""


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


def changes_section(
    tensor: int, positions: I64, values: U8, dense: U8, numel: int, width: int, level: int = 0
) -> list[bytes]:
    """Encode changes of one tensor as section parts, choosing the full range when that is smaller; [] for no change."""
    if positions.size == 0:
        return []
    blocks: U8 = codec_of(level).encode(positions, values, dense, numel, width)
    if blocks.size >= numel * width:
        return range_section(tensor, 0, dense, width)
    return [_SECTION.pack(tensor, _CHANGES, width, 0, 0, positions.size, blocks.size), blocks.tobytes()]


def range_section(tensor: int, first: int, values: U8, width: int) -> list[bytes]:
    """Encode the elements from `first` on, in full."""
    return [_SECTION.pack(tensor, _RANGE, width, 0, first, values.size // width, values.size), values.tobytes()]


def pack_frame(identity: Identity, index: int, sections: Iterable[list[bytes]], level: int = 0) -> bytes:
    """Join sections, their changes encoded at `level`, into one frame with header and checksum."""
    sections = [s for s in sections if s]
    body = b"".join(part for section in sections for part in section)
    header = _HEADER.pack(MAGIC, FORMAT, level, 0, *identity, index, len(sections), len(body))
    checksum = xxhash.xxh3_64(header)
    checksum.update(body)
    return b"".join((header, _CHECKSUM.pack(checksum.intdigest()), body))


def unpack_frame(data: bytes, identity: Identity, index: int, table: TensorTable) -> list[Section]:
    """Check and decode one frame.

    Args:
        data: the frame as received.
        identity: run, base and target the receiver was told to expect.
        index: position of the frame in its update, from 0.
        table: sizes of the tensors it may name.

    Raises:
        CorruptFrameError: anything about it is wrong; the message says what was expected and found.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptFrameError(f"frame has {len(data)} bytes, its header alone needs {HEADER_BYTES}: it was truncated")
    magic, version, level, _, run, base, target, found_index, count, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        raise CorruptFrameError(
            f"expected a {MAGIC!r} frame of format {FORMAT}, got {magic!r} format {version}; trainer and engine must "
            "run the same slipstream version"
        )
    if len(data) != HEADER_BYTES + size:
        raise CorruptFrameError(f"frame announces {size} payload bytes and carries {len(data) - HEADER_BYTES}")
    checksum = xxhash.xxh3_64(data[: _HEADER.size])
    checksum.update(memoryview(data)[HEADER_BYTES:])
    if checksum.intdigest() != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
        raise CorruptFrameError("checksum mismatch: the frame was damaged on the way")
    if (run, base, target) != identity or found_index != index:
        raise CorruptFrameError(
            f"expected frame {index} of run {identity.run:x} from version {identity.base} to {identity.target}, "
            f"got frame {found_index} of run {run:x} from version {base} to {target}"
        )
    try:
        codec = codec_of(level)
    except LookupError as error:
        raise CorruptFrameError(f"{error}; trainer and engine must have the same plugins") from error
    sections = list(_sections(memoryview(data)[HEADER_BYTES:], table, codec))
    if len(sections) != count:
        raise CorruptFrameError(f"frame announces {count} sections and carries {len(sections)}")
    return sections


def _sections(body: memoryview, table: TensorTable, codec: Codec) -> Iterator[Section]:
    offset = 0
    while offset < len(body):
        if offset + SECTION_BYTES > len(body):
            raise CorruptFrameError("a section header is truncated")
        tensor, mode, width, _, first, count, size = _SECTION.unpack_from(body, offset)
        offset += SECTION_BYTES
        if tensor >= len(table.numel) or table.width[tensor] not in (width, ANY_WIDTH) or offset + size > len(body):
            raise CorruptFrameError(
                f"section for tensor {tensor} (width {width}, {size} bytes) does not fit the checkpoint table of "
                f"{len(table.numel)} tensors"
            )
        payload = np.frombuffer(body[offset : offset + size], np.uint8)
        offset += size
        numel = table.numel[tensor]
        if mode == _RANGE:
            if size != count * width or first + count > numel:
                raise CorruptFrameError(f"range {first}+{count} does not fit tensor {tensor} of {numel} elements")
            yield Range(tensor, first, payload)
        elif mode == _CHANGES:
            try:
                positions, values = codec.decode(payload, numel, width)
            except ValueError as error:
                raise CorruptFrameError(f"tensor {tensor}: {error}") from error
            yield Changes(tensor, positions, values)
        else:
            raise CorruptFrameError(f"section for tensor {tensor} has unknown mode {mode}")
