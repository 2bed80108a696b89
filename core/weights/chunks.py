"""Cut an update into frames of bounded size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from slipstream.core.weights.delivery import Chunk
from slipstream.core.weights.wire import Bits, range_section


def change_chunks(sections: Iterable[list[bytes]], limit: int) -> list[Chunk]:
    """Group finished sections into frames of at most `limit` bytes (a section is never cut)."""
    groups: list[list[list[bytes]]] = []
    size = limit
    for section in sections:
        section_size = sum(map(len, section))
        if size + section_size > limit:
            groups.append([])
            size = 0
        groups[-1].append(section)
        size += section_size
    return [lambda group=group: group for group in groups]  # type: ignore[misc]  # the default binds each group


def range_chunks(arrays: Iterable[tuple[int, int, int]], read: Callable[[int], Bits], limit: int) -> list[Chunk]:
    """Cut whole arrays into frames of about `limit` bytes.

    Args:
        arrays: (index, elements, bytes an element) of each array to send.
        read: unsigned[elements] of an array, called when a frame is made, once for frames in order: an array that is
            no contiguous range of memory is copied for it. The last one is kept.
        limit: bytes a frame.
    """
    frames: list[list[tuple[int, int, int]]] = []
    size = limit
    for index, numel, width in arrays:
        first = 0
        while first < numel:
            if size >= limit:
                frames.append([])
                size = 0
            count = min(numel - first, max(1, (limit - size) // width))
            frames[-1].append((index, first, count))
            size += count * width
            first += count

    kept = functools.lru_cache(maxsize=1)(read)

    def make(frame: list[tuple[int, int, int]]) -> Chunk:
        return lambda: [range_section(i, first, kept(i)[first : first + count]) for i, first, count in frame]

    return [make(frame) for frame in frames]
