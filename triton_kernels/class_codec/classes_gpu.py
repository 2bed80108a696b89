"""Classes and ranks of all elements on a GPU: the kernels that read the old weights densely.

A block is cut into chunks, one program each: programs of a chunk know how many elements of each class lie before it in
the block, so that blocks need not be walked in order. Counts inside a chunk fit 16 bits, four classes an int64.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import triton.language as tl

from ..kernel import kernel
from .planes_gpu import class_of, rank_in_class

CHUNK = 8192  # elements a program reads; below 2**15
TILE = 1024  # elements it holds at a time: 4 for each of 256 threads
WARPS = 8


@kernel()
def load_tile(old: tl.tensor, at: tl.tensor, n: tl.tensor, tail: tl.constexpr) -> Any:
    """Elements and which of them exist; without a mask, hence in wide loads, unless `tail`."""
    if tail:
        live = at < n
        bits = tl.load(old + at, mask=live, other=0)
    else:
        live = at >= 0
        bits = tl.load(old + at)
    return bits, live


@kernel()
def unpack_counts(low: tl.tensor, high: tl.tensor) -> Any:
    """int32[8] counts out of two int64 that hold four each."""
    c = tl.arange(0, 8)
    return ((tl.where(c < 4, low, high) >> (16 * (c & 3)).to(tl.int64)) & 0xFFFF).to(tl.int32)


@kernel("n", "shift", "field", "edges")
def class_histogram_kernel(
    old: tl.tensor,
    index: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    shift: tl.tensor,
    field: tl.tensor,
    edges: tl.tensor,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    classes: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Count the classes of one chunk.

    k, part = divmod(program, chunks a block)
    for each element i of chunk `part` of block index[k]:                       # tail: below n; else no mask
        counts[program][class of old[i]] += 1
    """
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    base = tl.load(index + program // parts) * block_size + (program % parts) * chunk
    low, high = tl.zeros([tile], tl.int64), tl.zeros([tile], tl.int64)
    for start in range(0, chunk, tile):
        bits, live = load_tile(old, base + start + tl.arange(0, tile), n, tail)
        c = class_of(bits, shift, field, edges, classes)
        one = live.to(tl.int64) << (16 * (c & 3)).to(tl.int64)
        if classes > 4:
            low += tl.where(c < 4, one, 0)
            high += tl.where(c < 4, 0, one)
        else:
            low += one
    tl.store(counts + program * 8 + tl.arange(0, 8), unpack_counts(tl.sum(low, 0), tl.sum(high, 0)))


@kernel("n", "shift", "field", "edges")
def rank_kernel(
    old: tl.tensor,
    index: tl.tensor,
    bases: tl.tensor,
    changed: tl.tensor,
    starts: tl.tensor,
    ranks: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    shift: tl.tensor,
    field: tl.tensor,
    edges: tl.tensor,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    classes: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """Rank the changed elements of one chunk, in order of position.

    k, part = divmod(program, chunks a block); rank = bases[program]; out = starts[k][part]
    for each element i of chunk `part` of block index[k], of class c:           # tail: below n; else no mask
        if bit i - block * block_size of changed[k]:
            ranks[out] = rank[c]; out += 1
            counts[program][c] += 1
        rank[c] += 1
    """
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    base = tl.load(index + program // parts) * block_size + (program % parts) * chunk
    out = tl.load(starts + (program // parts) * (parts + 1) + program % parts)
    lane = tl.arange(0, tile)
    low, high = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    low_changed, high_changed = tl.zeros([tile], tl.int64), tl.zeros([tile], tl.int64)
    for start in range(0, chunk, tile):
        bits, live = load_tile(old, base + start + lane, n, tail)
        c = class_of(bits, shift, field, edges, classes)
        rank, low, high = rank_in_class(c, live, low, high, classes)
        place = start + lane
        word = tl.load(changed + program * (chunk // 32) + (place >> 5))
        flag = (word >> (place & 31)) & 1
        to = out + tl.cumsum(flag, 0) - flag
        hit = flag != 0
        first = tl.load(bases + program * 8 + c, mask=hit, other=0)
        tl.store(ranks + to, (first + rank).to(tl.int32), mask=hit)
        out += tl.sum(flag, 0)
        one = flag.to(tl.int64) << (16 * (c & 3)).to(tl.int64)
        if classes > 4:
            low_changed += tl.where(c < 4, one, 0)
            high_changed += tl.where(c < 4, 0, one)
        else:
            low_changed += one
    tl.store(counts + program * 8 + tl.arange(0, 8), unpack_counts(tl.sum(low_changed, 0), tl.sum(high_changed, 0)))


@kernel("n", "shift", "field", "edges")
def locate_kernel(
    old: tl.tensor,
    index: tl.tensor,
    slots: tl.tensor,
    bitmap: tl.tensor,
    inverted: tl.tensor,
    starts: tl.tensor,
    positions: tl.tensor,
    n: tl.tensor,
    shift: tl.tensor,
    field: tl.tensor,
    edges: tl.tensor,
    block_size: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    classes: tl.constexpr,
    tail: tl.constexpr,
) -> None:
    """List the positions of the changed elements of one chunk (the inverse of `rank_kernel`).

    k, part = divmod(program, chunks a block); slot = slots[program]; out = starts[k][part]
    for each element i of chunk `part` of block index[k], of class c:           # tail: below n; else no mask
        if bit slot[c] of bitmap[k] is not bit c of inverted[k] and out < starts[k][part + 1]:
            positions[out] = i; out += 1
        slot[c] += 1
    With one class, old is not read.
    """
    program = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = block_size // chunk
    k, part = program // parts, program % parts
    base = tl.load(index + k) * block_size + part * chunk
    out = tl.load(starts + k * (parts + 1) + part)
    end = tl.load(starts + k * (parts + 1) + part + 1)
    flip = tl.load(inverted + k)
    lane = tl.arange(0, tile)
    low, high = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(0, chunk, tile):
        at = base + start + lane
        if classes > 1:
            bits, live = load_tile(old, at, n, tail)
            c = class_of(bits, shift, field, edges, classes)
            rank, low, high = rank_in_class(c, live, low, high, classes)
            slot = tl.load(slots + program * 8 + c) + rank
        else:
            live = at < n
            c = lane * 0
            slot = (part * chunk + start).to(tl.int32) + lane
        word = tl.load(bitmap + k * (block_size // 32) + (slot >> 5), mask=live, other=0)
        flag = (((word >> (slot & 31)) ^ (flip >> c)) & 1) * live.to(tl.int32)
        to = out + tl.cumsum(flag, 0) - flag
        tl.store(positions + to, at, mask=(flag != 0) & (to < end))
        out += tl.sum(flag, 0)
