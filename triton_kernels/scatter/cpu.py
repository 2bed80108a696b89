"""The scatter on the host: find the box's part of the positions by bisection, count hits, then write, over threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bits import as_unsigned_numpy
from ..box import Box
from ..fingerprint.cpu import box_arrays, mix
from ..fingerprint.reference import MODULUS
from ..jit import jit
from ..packed import MOVED_OUT, PackedChanges
from ..packed_cpu import monotone
from ..prefetch import AHEAD, prefetch
from ..threads import run, split
from .applied import Applied, AppliedPacked, order_error

LEAST = 1 << 15  # changes a thread takes at least
BATCH = 256  # its cache lines fit the first-level cache

Ints = NDArray[np.int64]


@jit
def ascending(positions: Ints, start: int, stop: int) -> bool:
    """Whether positions[start:stop] ascend strictly, each also above the one before `start` (-1 before the first)."""
    if start == stop:
        return True
    part = positions[start:stop]
    falls = 0  # counted over indices from 0 on, with no value carried along: so the loop vectorises
    for n in range(part.size - 1):
        falls += part[n + 1] <= part[n]
    return falls == 0 and part[0] > (positions[start - 1] if start > 0 else -1)


@jit
def locate(rest: int, dst: int, sizes: Ints, src_strides: Ints, dst_strides: Ints) -> int:
    """Destination index of the element `rest` >= 0 after the box's first source index, or -1 outside the box."""
    for j in range(sizes.size):
        k = rest if src_strides[j] == 1 else rest // src_strides[j]
        if k >= sizes[j]:
            return -1
        rest -= k * src_strides[j]
        dst += k * dst_strides[j]
    return dst if rest == 0 else -1


@jit
def count_hits(
    positions: Ints, src_offset: int, sizes: Ints, src_strides: Ints, dst_strides: Ints, start: int, stop: int
) -> int:
    """How many of positions[start:stop], all >= src_offset, lie in the box."""
    hits = 0
    for n in range(start, stop):
        hits += locate(positions[n] - src_offset, 0, sizes, src_strides, dst_strides) >= 0
    return hits


@jit
def select(
    positions: Ints,
    start: int,
    stop: int,
    src_offset: int,
    dst_offset: int,
    sizes: Ints,
    src_strides: Ints,
    dst_strides: Ints,
    taken: Ints,
    mapped: Ints,
) -> int:
    """List which of positions[start:stop], all >= src_offset, lie in the box, and their destination indices."""
    count = 0
    for n in range(start, stop):
        dst = locate(positions[n] - src_offset, dst_offset, sizes, src_strides, dst_strides)
        if dst >= 0:
            taken[count] = n
            mapped[count] = dst
            count += 1
    return count


@jit
def write_hits(
    storage: NDArray[Any],
    positions: Ints,
    values: NDArray[Any],
    src_offset: int,
    dst_offset: int,
    sizes: Ints,
    src_strides: Ints,
    dst_strides: Ints,
    start: int,
    stop: int,
    dst_index: Ints,
    old_values: NDArray[Any],
    at: int,
) -> Any:
    """Write the changes [start, stop) that lie in the box; save index and old value from `at` on; return their delta.

    for each batch of 256 changes:
        list the hits; read all old values (nothing depends on them, so many cache misses run at once);
        then, in cache: delta += mix(i) * (new - old) mod 2**64; storage[s] = new
    """
    delta = np.uint64(0)
    taken = np.empty(BATCH, np.int64)
    for begin in range(start, stop, BATCH):
        hits = 0
        for n in range(begin, min(begin + BATCH, stop)):
            dst = locate(positions[n] - src_offset, dst_offset, sizes, src_strides, dst_strides)
            if dst >= 0:
                dst_index[at + hits] = dst
                taken[hits] = n
                hits += 1
        for h in range(hits):
            old_values[at + h] = storage[dst_index[at + h]]
        for h in range(hits):
            new = values[taken[h]]
            delta += mix(positions[taken[h]]) * (np.uint64(new) - np.uint64(old_values[at + h]))
            storage[dst_index[at + h]] = new
        at += hits
    return delta


@jit
def write_run(
    storage: NDArray[Any],
    positions: Ints,
    values: NDArray[Any],
    shift: int,
    start: int,
    stop: int,
    old_values: NDArray[Any],
    at: int,
) -> Any:
    """`write_hits` for a box that only shifts: all of [start, stop) lie in it, at positions + shift.

    One plain loop with the misses asked for ahead.
    """
    delta = np.uint64(0)
    part, new, old = positions[start:stop], values[start:stop], old_values[at:]
    last = part.size - 1
    for n in range(part.size):
        prefetch(storage, part[min(n + AHEAD, last)] + shift)
        place = part[n] + shift
        before = storage[place]
        old[n] = before
        delta += mix(part[n]) * (np.uint64(new[n]) - np.uint64(before))
        storage[place] = new[n]
    return delta


@jit
def write_batch(
    storage: NDArray[Any], origin: int, base: int, offsets: Any, payload: Any, moved: bool, old: Any, new: Any
) -> tuple[Any, int]:
    """Write one batch of one run, at origin + offsets; returns its delta and how many elements would move out of their
    type.

    Reading and writing take turns, unless new values must be worked out: that loop and the one for the delta vectorise.
    """
    word = 8 * storage.itemsize
    sign = 1 << (word - 1)
    bad, delta = 0, np.uint64(0)
    if moved:
        for i in range(offsets.size):
            old[i] = storage[np.uint64(origin + np.int64(offsets[i]))]
        for i in range(offsets.size):
            number = monotone(np.int64(old[i]), word) + np.int64(payload[i])
            bad += (number < -sign) | (number >= sign)
            new[i] = number if number >= 0 else sign - 1 - number
        for i in range(offsets.size):
            storage[np.uint64(origin + np.int64(offsets[i]))] = new[i]
    else:
        for i in range(offsets.size):
            place = np.uint64(origin + np.int64(offsets[i]))
            old[i] = storage[place]
            new[i] = payload[i]
            storage[place] = new[i]
    for i in range(offsets.size):
        delta += mix(int(base + np.int64(offsets[i]))) * (np.uint64(new[i]) - np.uint64(old[i]))
    return delta, bad


@jit
def write_packed(
    storage: NDArray[Any],
    bases: Ints,
    starts: Ints,
    offsets: Any,
    payload: Any,
    moved: Any,
    shift: int,
    first: int,
    stop: int,
    old_values: NDArray[Any],
    at: int,
) -> tuple[Any, int]:
    """Write the changes [first, stop) at their positions + shift; save old values from `at` on.

    for each batch, which ends where its run does: ask for the places of the batch after it; then write this one

    Returns the delta of the fingerprint, and how many elements would have moved out of their type.
    """
    delta, bad = np.uint64(0), 0
    if first == stop:
        return delta, bad
    new = np.empty(BATCH, storage.dtype)
    r = int(np.searchsorted(starts, first, side="right")) - 1  # the run of the first change
    begin = first
    while begin < stop:
        base, kind = bases[r], moved[r]
        end = min(begin + BATCH, stop, starts[r + 1])
        while end < stop and starts[r + 1] <= end:
            r += 1
        origin = bases[r] + shift
        ahead = offsets[end : min(end + BATCH, stop, starts[r + 1])]
        for i in range(ahead.size):
            prefetch(storage, origin + np.int64(ahead[i]))
        old = old_values[at + begin - first : at + end - first]
        batch = offsets[begin:end], payload[begin:end], kind, old, new[: end - begin]
        found = write_batch(storage, base + shift, base, *batch)
        delta += found[0]
        bad += found[1]
        begin = end
    return delta, bad


def write_run_packed(storage: Tensor, box: Box, changes: PackedChanges) -> AppliedPacked:
    """Apply changes to a 1-D contiguous host bits storage through a normalised box that only shifts.

    Raises:
        ValueError: one would move out of its type; the storage is as it was.
    """
    data, shift = as_unsigned_numpy(storage), box.dst_offset - box.src_offset
    first, end = changes.within(box.src_offset, box.src_offset + box.span)
    old_values = np.empty(end - first, data.dtype)

    def piece(start: int, stop: int) -> tuple[int, int]:
        return write_packed(data, *changes, shift, first + start, first + stop, old_values, start)

    done = run(piece, split(end - first, LEAST))
    applied = AppliedPacked(changes, first, old_values, sum(int(delta) for delta, _ in done) % MODULUS, shift)
    if any(bad for _, bad in done):
        storage[applied.dst_index] = applied.old_values
        raise ValueError(MOVED_OUT)
    return applied


def write(storage: Tensor, box: Box, positions: Tensor, values: Tensor) -> Applied:
    """Apply changes to a 1-D contiguous host bits storage through a normalised box that fits it."""
    at, data, new = positions.numpy(), as_unsigned_numpy(storage), as_unsigned_numpy(values)
    if not all(run(lambda start, stop: ascending(at, start, stop), split(at.size, LEAST))):
        raise order_error()
    first, end = (int(n) for n in np.searchsorted(at, [box.src_offset, box.src_offset + box.span]))
    ranges = [(first + start, first + stop) for start, stop in split(end - first, LEAST)]
    if box.src_strides == box.dst_strides == (1,):
        return _write_run(data, at, new, box.dst_offset - box.src_offset, ranges, positions[first:end], storage.dtype)
    arrays = box_arrays(box)
    if box.span == box.numel:  # no gaps: every position in range is a hit
        hits = [stop - start for start, stop in ranges]
    else:
        hits = run(lambda start, stop: int(count_hits(at, box.src_offset, *arrays, start, stop)), ranges)
    begins = dict(zip((start for start, _ in ranges), np.cumsum([0, *hits]), strict=False))
    dst_index, old_values = np.empty(sum(hits), np.int64), np.empty(sum(hits), data.dtype)

    def piece(start: int, stop: int) -> int:
        offsets, out = (box.src_offset, box.dst_offset), (dst_index, old_values)
        return int(write_hits(data, at, new, *offsets, *arrays, start, stop, *out, int(begins[start])))

    delta = sum(run(piece, ranges)) % MODULUS
    return Applied(torch.from_numpy(dst_index), torch.from_numpy(old_values).view(storage.dtype), delta)


def _write_run(
    data: NDArray[Any],
    at: Ints,
    new: NDArray[Any],
    shift: int,
    ranges: list[tuple[int, int]],
    positions: Tensor,
    dtype: torch.dtype,
) -> Applied:
    first = ranges[0][0]
    old_values = np.empty(positions.numel(), data.dtype)

    def piece(start: int, stop: int) -> int:
        return int(write_run(data, at, new, shift, start, stop, old_values, start - first))

    delta = sum(run(piece, ranges)) % MODULUS
    return Applied(positions, torch.from_numpy(old_values).view(dtype), delta, shift)
