"""Cut an update into frames of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipstream.core.weights.checkpoint import Checkpoint
from slipstream.core.weights.delivery import Chunk
from slipstream.core.weights.wire import range_section
from slipstream.core.weights.wire.frame import U8


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


def range_chunks(
    table: Checkpoint, tensors: Iterable[tuple[int, int]], read: Callable[[int], U8], limit: int
) -> list[Chunk]:
    """Cut whole tensors into frames of about `limit` bytes.

    Args:
        table: the checkpoint.
        tensors: (index, bytes an element) of each tensor to send.
        read: uint8[numel * width] of a tensor, called when the frame is made.
        limit: bytes a frame.
    """
    frames: list[list[tuple[int, int, int, int]]] = []
    size = limit
    for tensor, width in tensors:
        numel = table.specs[tensor].numel
        first = 0
        while first < numel:
            if size >= limit:
                frames.append([])
                size = 0
            count = min(numel - first, max(1, (limit - size) // width))
            frames[-1].append((tensor, first, count, width))
            size += count * width
            first += count

    def make(frame: list[tuple[int, int, int, int]]) -> Chunk:
        return lambda: [
            range_section(tensor, first, read(tensor)[first * width : (first + count) * width], width)
            for tensor, first, count, width in frame
        ]

    return [make(frame) for frame in frames]
