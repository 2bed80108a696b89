"""Classes and ranks of all elements on a GPU: the kernels that read the old weights densely.

A block is cut into chunks, one program each: programs of a chunk know how many elements of each class lie before it in
the block, so that blocks need not be walked in order.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import triton.language as tl

from ..bits_gpu import rank_flags, square
from ..kernel import kernel, warps
from .planes_gpu import class_of, rank_in_class, split_counts, unpack_counts

CHUNK = 8192  # elements a program reads; below 2**15
TILE = 1024  # elements it holds at a time: 4 for each of 256 threads
WARPS = warps(256)


@kernel()
def load_tile(old: tl.tensor, place: tl.tensor, room: tl.tensor, tail: tl.constexpr) -> Any:
    """Elements and which of them exist, below `room`; without a mask, hence in wide loads, unless `tail`."""
    if tail:
        live = place < room
        bits = tl.load(old + place, mask=live, other=0)
    else:
        live = place >= 0
        bits = tl.load(old + place)
    return bits, live


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
    room = tl.minimum(tl.maximum(n - base, 0), chunk).to(tl.int32)
    seen = square(0, tile).to(tl.int64) * 0  # 8 bits a class and lane: below 256 tiles
    for start in range(0, chunk, tile):
        bits, live = load_tile(old + base, square(start, tile), room, tail)
        seen += live.to(tl.int64) << (8 * class_of(bits, shift, field, edges, classes)).to(tl.int64)
    even, odd = split_counts(seen)
    even, odd = tl.sum(tl.sum(even, 1), 0), tl.sum(tl.sum(odd, 1), 0)
    tl.store(counts + program * 8 + tl.arange(0, 8), unpack_counts(even, odd))


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
    ranks += tl.load(starts + (program // parts) * (parts + 1) + program % parts)
    room = tl.minimum(tl.maximum(n - base, 0), chunk).to(tl.int32)
    out = tl.zeros([], tl.int32)
    even, odd = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    seen = square(0, tile).to(tl.int64) * 0  # changes, 8 bits a class and lane
    for start in range(0, chunk, tile):
        place = square(start, tile)
        bits, live = load_tile(old + base, place, room, tail)
        c = class_of(bits, shift, field, edges, classes)
        rank, even, odd = rank_in_class(c, live, even, odd)
        word = tl.load(changed + program * (chunk // 32) + (place >> 5))
        flag = (word >> (place & 31)) & 1
        to, more = rank_flags(flag)
        hit = flag != 0
        first = tl.load(bases + program * 8 + c, mask=hit, other=0)
        tl.store(ranks + out + to, (first + rank).to(tl.int32), mask=hit)
        out += more
        seen += flag.to(tl.int64) << (8 * c).to(tl.int64)
    even, odd = split_counts(seen)
    even, odd = tl.sum(tl.sum(even, 1), 0), tl.sum(tl.sum(odd, 1), 0)
    tl.store(counts + program * 8 + tl.arange(0, 8), unpack_counts(even, odd))


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
    first = tl.load(starts + k * (parts + 1) + part)
    most = (tl.load(starts + k * (parts + 1) + part + 1) - first).to(tl.int32)
    room = tl.minimum(tl.maximum(n - base, 0), chunk).to(tl.int32)
    flip = tl.load(inverted + k)
    out = tl.zeros([], tl.int32)
    even, odd = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(0, chunk, tile):
        place = square(start, tile)
        if classes > 1:
            bits, live = load_tile(old + base, place, room, tail)
            c = class_of(bits, shift, field, edges, classes)
            rank, even, odd = rank_in_class(c, live, even, odd)
            slot = tl.load(slots + program * 8 + c) + rank
        else:
            live = place < room
            c = place * 0
            slot = (part * chunk).to(tl.int32) + place
        word = tl.load(bitmap + k * (block_size // 32) + (slot >> 5), mask=live, other=0)
        flag = (((word >> (slot & 31)) ^ (flip >> c)) & 1) * live.to(tl.int32)
        to, more = rank_flags(flag)
        tl.store(positions + first + out + to, base + place, mask=(flag != 0) & (out + to < most))
        out += more
