"""What is in a frame, read without the weights it was made against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from slipstream.core.weights.wire.capture import CapturedUnit
from slipstream.core.weights.wire.class_map import ClassMap
from slipstream.core.weights.wire.frame import NO_BASE, RawSection, read_frame
from slipstream.triton_kernels.errors import CorruptBlockError


class ClassMapInfo(msgspec.Struct, frozen=True):
    """The class map of a section of level 1 or 2."""

    edges: tuple[int, ...]
    """Highest exponent byte of each class but the last."""
    orders: tuple[int, ...]
    """Order of the code of magnitudes, by class."""


class SectionInfo(msgspec.Struct, frozen=True):
    """One section."""

    unit: int
    tensors: tuple[str, ...]
    """Checkpoint tensors of the unit; empty when the file does not name them."""
    mode: str
    """`changes` or `range`."""
    level: int
    width: int
    """Bytes an element."""
    elements: int | None
    """Of the unit; None when the file does not say."""
    first: int
    """Range: index of its first element."""
    changes: int
    """Elements that the section gives a value to."""
    bytes: int
    """Section header and payload."""
    bits_per_change: float
    class_map: ClassMapInfo | None = None


class FrameInfo(msgspec.Struct, frozen=True):
    """One frame."""

    run: int
    base: int | None
    """None for a dense seed."""
    target: int
    index: int
    bytes: int
    checksum_ok: bool
    sections: tuple[SectionInfo, ...]


def inspect_frame(data: bytes, units: Sequence[CapturedUnit] = ()) -> FrameInfo:
    """Describe one frame; a wrong checksum is reported, not raised.

    Raises:
        CorruptFrameError: its headers do not fit together.
    """
    frame = read_frame(data)
    identity = frame.identity
    base = None if identity.base == NO_BASE else identity.base
    sections = tuple(_describe(section, units) for section in frame.sections)
    return FrameInfo(identity.run, base, identity.target, frame.position, len(data), frame.checksum_ok, sections)


def _describe(section: RawSection, units: Sequence[CapturedUnit]) -> SectionInfo:
    unit = units[section.unit] if section.unit < len(units) else None
    return SectionInfo(
        unit=section.unit,
        tensors=unit.tensors if unit else (),
        mode="range" if section.is_range else "changes",
        level=section.level,
        width=section.width,
        elements=unit.numel if unit else None,
        first=section.first,
        changes=section.elements,
        bytes=section.size,
        bits_per_change=round(8 * section.size / section.elements, 3) if section.elements else 0.0,
        class_map=_class_map(section.payload, section.width) if section.level in (1, 2) else None,
    )


def _class_map(payload: np.ndarray[Any, np.dtype[np.uint8]], width: int) -> ClassMapInfo | None:
    size = 2 * int(payload[0]) if payload.size else 0
    try:
        found = ClassMap.from_bytes(payload[:size].tobytes(), width)
    except CorruptBlockError:
        return None
    return ClassMapInfo(found.edges, found.orders)
