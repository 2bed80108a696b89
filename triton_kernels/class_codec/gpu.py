"""The class codec on a GPU: the same bytes as `reference`, every part of a block found by prefix sums.

Blocks are taken in waves of at most WAVE changes (or one block), which bounds the memory beside the result: 80 bytes a
change of a wave, and an eighth of an element plus 1 kB for each of its blocks.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import copies_gpu
from ..placement import device_of
from . import classes_gpu, decode_gpu, encode_gpu
from .classes import BLOCK, MAX_CLASSES, Classes, Exponent
from .directory_gpu import read_directory, refuse
from .vectors_gpu import list_vectors

WAVE = 1 << 22  # changes worked on at a time
WAVE_BLOCKS = 1 << 12
COPY = 2


class Cut(NamedTuple):
    """How a part is cut up; other numbers than the defaults are for tests."""

    block: int = BLOCK
    """Elements a block, a power of two; part of the format."""
    chunk: int = classes_gpu.CHUNK
    """Elements that a program reads densely, a power of two from 32 on."""
    tile: int = classes_gpu.TILE
    """Elements it holds at a time."""
    gaps: int = decode_gpu.TILE
    """Gaps or changes of a block that a program holds at a time."""
    small: int = decode_gpu.CHANGES
    """Changes of a chunk that a program holds at a time."""

    @property
    def chunks(self) -> int:
        """Chunks a block."""
        return self.block // self.chunk


class Kind(NamedTuple):
    """Classes and elements as the kernels take them."""

    shift: int
    field: int
    edges: int
    orders: Tensor
    classes: int
    word: int

    @classmethod
    def of(cls, classes: Classes, exponent: Exponent, old: Tensor) -> Kind:
        """Of elements like `old`; edges that are not there are 255, which no exponent byte exceeds."""
        edges = sum((classes.edges[c] if c < len(classes.edges) else 255) << (8 * c) for c in range(MAX_CLASSES - 1))
        orders = torch.tensor(classes.orders, dtype=torch.int64, device=old.device)
        return cls(*exponent, edges, orders, classes.number, 8 * old.element_size())


def waves(totals: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Cut blocks of so many changes into runs [first, last) of at most WAVE changes, at least one block each."""
    first = last = held = 0
    for total in totals:
        if last > first and (held + total > WAVE or last - first >= WAVE_BLOCKS):
            yield first, last
            first, held = last, 0
        held, last = held + total, last + 1
    if last > first:
        yield first, last


def exclusive(counts: Tensor, dim: int = 0) -> Tensor:
    """Sums of what comes before each, int64."""
    return counts.cumsum(dim, dtype=torch.int64) - counts


def dense(index: Tensor, n: int, cut: Cut, last: int) -> Iterator[tuple[slice, slice, int, bool]]:
    """Launches over the chunks of the blocks `index`, of which `last` is the last one.

    Yields blocks, chunks, number of chunks, and whether they need a mask.
    """
    blocks, whole = index.numel(), index.numel() - int((last + 1) * cut.block > n)
    for first, stop, tail in ((0, whole, False), (whole, blocks, True)):
        if first < stop:
            yield slice(first, None), slice(first * cut.chunks, None), (stop - first) * cut.chunks, tail


def class_sizes(old: Tensor, n: int, index: Tensor, last: int, kind: Kind, cut: Cut) -> tuple[Tensor, Tensor]:
    """Elements of each class before each chunk of the blocks `index`, int64[k, chunks, 8], and in each block.

    With one class, `old` is not read.
    """
    k = index.numel()
    if kind.classes == 1:
        ends = (n - index * cut.block).clamp(max=cut.block)
        bases, sizes = ends.new_zeros(k, cut.chunks, MAX_CLASSES), ends.new_zeros(k, MAX_CLASSES)
        parts = torch.arange(0, cut.block, cut.chunk, device=old.device)
        bases[:, :, 0], sizes[:, 0] = torch.minimum(parts, ends[:, None]), ends
        return bases, sizes
    counts = index.new_empty((k * cut.chunks, MAX_CLASSES), dtype=torch.int32)
    for blocks, chunks, programs, tail in dense(index, n, cut, last):
        classes_gpu.class_histogram_kernel[(programs,)](
            old, index[blocks], counts[chunks], n, *kind[:3], cut.block, cut.chunk, cut.tile, kind.classes, tail,
            num_warps=classes_gpu.WARPS,
        )  # fmt: skip
    counts = counts.view(k, cut.chunks, MAX_CLASSES)
    bases = exclusive(counts, 1)
    return bases, bases[:, -1] + counts[:, -1]


def encode(
    old: Tensor, positions: Tensor, values: Tensor, classes: Classes, exponent: Exponent, cut: Cut | None = None
) -> Tensor:
    """Encode the changes of a part; see the package. Positions are checked here. Two synchronisations, one a wave.

    Args:
        old: bits[n], 1-D contiguous.
        positions, values: int64[k] and old's dtype [k], contiguous.
    """
    cut = Cut() if cut is None else cut
    n = old.numel()
    if positions.numel() == 0:
        return positions.new_empty(0, dtype=torch.uint8)
    with device_of(old):
        kind = Kind.of(classes, exponent, old)
        blocks = -(-n // cut.block)
        bounds = torch.arange(blocks + 1, device=old.device) * cut.block
        disorder = (positions[1:] <= positions[:-1]).any() | (positions[0] < 0) | (positions[-1] >= n)
        disordered, *starts = torch.cat((disorder.long().view(1), torch.searchsorted(positions, bounds))).tolist()
        if disordered:
            raise ValueError(f"expected strictly ascending positions in 0..{n - 1}")
        stored = [b for b in range(blocks) if starts[b] < starts[b + 1]]
        index = torch.tensor(stored, device=old.device)
        sizes, pieces = [], []
        for first, last in waves(starts[b + 1] - starts[b] for b in stored):
            of_wave = slice(starts[stored[first]], starts[stored[last - 1] + 1])
            found = _encode_wave(
                old, positions[of_wave], values[of_wave], index[first:last], stored[last - 1], kind, cut
            )
            sizes.append(found[0])
            pieces.append(found[1])
        return torch.cat((_directory(torch.cat(sizes), index, blocks), *pieces))


def _directory(sizes: Tensor, index: Tensor, blocks: int) -> Tensor:
    bitmap_bytes = -(-blocks // 8)
    bits = index.new_zeros(8 * bitmap_bytes)
    bits[index] = 1
    bitmap = (bits.view(-1, 8) << torch.arange(8, device=index.device)).sum(1).to(torch.uint8)
    ends = (1 + (sizes >= 1 << 7).long() + (sizes >= 1 << 14) + (sizes >= 1 << 21)).cumsum(0)
    words = index.new_zeros(sizes.numel() + 2, dtype=torch.int32)  # at most four bytes each
    lanes = encode_gpu.LANES
    encode_gpu.sizes_kernel[(-(-sizes.numel() // lanes),)](
        sizes, ends, words, sizes.numel(), lanes, num_warps=encode_gpu.LANE_WARPS
    )
    return torch.cat((bitmap, words.view(torch.uint8)[: int(ends[-1])]))


def _encode_wave(
    old: Tensor, positions: Tensor, values: Tensor, index: Tensor, last: int, kind: Kind, cut: Cut
) -> tuple[Tensor, Tensor]:
    n, k, count = old.numel(), index.numel(), positions.numel()
    word, chunks = kind.word, k * cut.chunks
    lanes, lane_programs = encode_gpu.LANES, -(-k // encode_gpu.LANES)
    elements = {"shift": kind.shift, "field": kind.field, "edges": kind.edges}
    many = {"num_warps": encode_gpu.WARPS}
    few = {"num_warps": encode_gpu.CHANGE_WARPS}
    lane = {"num_warps": encode_gpu.LANE_WARPS}
    error = index.new_zeros(1, dtype=torch.int32)

    # Ranks of the changed elements, and how many of each class are in each chunk.
    parts = torch.arange(cut.chunks + 1, device=old.device) * cut.chunk
    starts = torch.searchsorted(positions, index[:, None] * cut.block + parts)
    bases, sizes = class_sizes(old, n, index, last, kind, cut)
    counts = index.new_zeros((chunks, MAX_CLASSES), dtype=torch.int32)
    ranks = index.new_empty(count, dtype=torch.int32)
    if kind.classes > 1:
        changed = index.new_zeros(k * (cut.block // 32), dtype=torch.int32)
        encode_gpu.mark_kernel[(chunks,)](positions, index, starts, changed, cut.block, cut.chunk, cut.small, **few)
        for blocks, of_chunks, programs, tail in dense(index, n, cut, last):
            classes_gpu.rank_kernel[(programs,)](
                old, index[blocks], bases.view(chunks, -1)[of_chunks], changed[of_chunks.start * (cut.chunk // 32) :],
                starts[blocks], ranks, counts[of_chunks], n, *elements.values(),
                cut.block, cut.chunk, cut.tile, kind.classes, tail, num_warps=classes_gpu.WARPS,
            )  # fmt: skip
    else:
        counts[:, 0] = (starts[:, 1:] - starts[:, :-1]).reshape(-1)

    # The changes in order of block, class and rank.
    counts = counts.view(k, cut.chunks, MAX_CLASSES)
    of_block = counts.sum(1, dtype=torch.int64)
    before = exclusive(of_block.sum(1))
    targets = before[:, None, None] + exclusive(of_block, 1)[:, None] + exclusive(counts, 1)
    sorted_ranks, lengths, residuals = index.new_empty((3, count), dtype=torch.int32)
    sorted_values = values.new_empty(count)
    steps = index.new_empty(count, dtype=torch.int64 if word > 16 else torch.int32)
    encode_gpu.order_kernel[(chunks,)](
        positions, old[positions], values, ranks, index, starts, targets.contiguous(), kind.orders,
        sorted_ranks, sorted_values, steps, lengths, residuals, error, *elements.values(),
        word, cut.block, cut.chunk, cut.small, kind.classes, **few,
    )  # fmt: skip

    # Bit vectors as gaps, and the size of each block in its smallest mode.
    length_sums, residual_sums = lengths.cumsum(0, dtype=torch.int64), residuals.cumsum(0, dtype=torch.int64)
    sums = torch.empty_like(of_block)
    encode_gpu.sum_kernel[(lane_programs,)](before, of_block, length_sums, sums, k, lanes, **lane)
    modes, block_sizes, unary_bytes = index.new_zeros(k, dtype=torch.int32), *index.new_empty((2, k))
    vectors = list_vectors(of_block, sums, sizes.contiguous(), modes, error)
    gaps, ends = index.new_zeros(2 * count, dtype=torch.int32), index.new_empty(2 * count, dtype=torch.int32)
    encode_gpu.gap_kernel[(k, 2)](
        before, vectors.begins, vectors.firsts, vectors.inverted, sorted_ranks, lengths, length_sums, gaps,
        cut.gaps, **many,
    )  # fmt: skip
    encode_gpu.unary_kernel[(k,)](before, vectors.firsts, vectors.widths, gaps, ends, cut.gaps, **many)
    encode_gpu.choose_kernel[(lane_programs,)](
        index, before, of_block, sums, vectors.firsts, vectors.lows, ends, residual_sums, modes, block_sizes,
        unary_bytes, n, word // 8, word, k, cut.block, lanes, **lane,
    )  # fmt: skip
    offsets = exclusive(block_sizes)
    size, same, copies = torch.stack((block_sizes.sum(), error[0].long(), (modes == COPY).sum())).tolist()
    if same:
        raise ValueError("expected only values that differ from the old ones; leave the others out")

    # The bytes.
    words = index.new_zeros(size // 4 + 3, dtype=torch.int32)
    planes = index.new_empty((-(-k // lanes) * lanes, 2))
    encode_gpu.header_kernel[(lane_programs,)](
        offsets, modes, of_block, sums, unary_bytes, planes, words, k, lanes, **lane
    )
    encode_gpu.pack_gaps_kernel[(k,)](
        before, vectors.firsts, vectors.lows, vectors.widths, modes, planes, gaps, ends, words, cut.gaps, **many
    )
    encode_gpu.pack_changes_kernel[(k,)](
        before, vectors.begins, vectors.lows, modes, planes, sorted_values, steps, residuals, residual_sums, words,
        word, cut.gaps, **many,
    )  # fmt: skip
    out = words.view(torch.uint8)
    if copies:
        copied = (index, offsets, modes, out)
        copies_gpu.copy_kernel[(chunks,)](old, *copied, n, word, cut.block, cut.chunk, cut.gaps, COPY, **many)
        copies_gpu.overwrite_kernel[(chunks,)](
            positions, values, index, starts, *copied[1:], word, cut.block, cut.chunk, cut.small, COPY, **few
        )
    return block_sizes, out[:size]


def decode(
    data: Tensor,
    n: int,
    dtype: torch.dtype,
    old: Tensor | Callable[[Tensor], Tensor],
    classes: Classes,
    exponent: Exponent,
    cut: Cut | None = None,
) -> tuple[Tensor, Tensor]:
    """Inverse of `encode`; see the package. Four synchronisations.

    Args:
        data: uint8[size], contiguous.
        old: bits[n], 1-D contiguous, or for one class a function that returns the bits at positions.
    """
    cut = Cut() if cut is None else cut
    if data.numel() == 0:
        return data.new_empty(0, dtype=torch.int64), data.new_empty(0, dtype=dtype)
    with device_of(data):
        elements = data.new_empty(0, dtype=dtype)
        kind = Kind.of(classes, exponent, elements)
        directory = read_directory(data, n, kind.word // 8, kind.classes, cut.block)
        stored, total = len(directory.totals), sum(directory.totals)
        totals = torch.tensor(directory.totals, device=data.device)
        coded = [0 if copy else count for count, copy in zip(directory.totals, directory.copies, strict=True)]
        positions, values = totals.new_empty(total), elements.new_empty(total)
        tables = Tables(
            directory.blocks, directory.counts, directory.sums, directory.modes, directory.planes, totals,
            exclusive(torch.tensor(coded, device=data.device)), exclusive(totals),
            totals.new_empty((stored, cut.chunks, MAX_CLASSES)), totals.new_empty((stored, cut.chunks + 1)),
        )  # fmt: skip
        steps = totals.new_empty(sum(coded), dtype=torch.int64 if kind.word > 16 else torch.int32)
        error = totals.new_zeros(1, dtype=torch.int32)
        last_block = int(directory.blocks[-1])
        dense_old = old if isinstance(old, Tensor) else elements
        for first, last in waves(coded):
            wave = Tables(*(table[first:last] for table in tables))
            base, count = sum(coded[:first]), sum(coded[first:last])
            ending = last_block if last == stored else -1
            _decode_wave(data, dense_old, n, wave, base, count, ending, steps, positions, error, kind, cut)
        refuse(int(error), data.numel(), n)
        at = old[positions] if isinstance(old, Tensor) else old(positions)
        if at.shape != positions.shape or at.dtype != dtype:
            raise ValueError(f"expected {total} old elements of {dtype}, got {at.dtype}{list(at.shape)}")
        decode_gpu.apply_kernel[(stored * cut.chunks,)](
            data, directory.blocks, directory.planes, directory.modes, tables.changes, tables.starts, positions,
            at.contiguous(), steps, values, error, *kind[:3],
            kind.word, cut.block, cut.chunks, cut.small, kind.classes, num_warps=decode_gpu.CHANGE_WARPS,
        )  # fmt: skip
        refuse(int(error), data.numel(), n)
        return positions, values


class Tables(NamedTuple):
    """What is known of each stored block; `blocks` to `totals` as in `Directory`."""

    blocks: Tensor
    counts: Tensor
    sums: Tensor
    modes: Tensor
    planes: Tensor
    totals: Tensor
    before: Tensor
    """int64[k], changes of coded blocks before it: its place in `steps`."""
    outs: Tensor
    """int64[k], all changes before it: its place in the result."""
    changes: Tensor
    """int64[k, chunks, 8], first of a class's changes in a chunk, in `steps`."""
    starts: Tensor
    """int64[k, chunks + 1], changes before each chunk, in the result."""


def _decode_wave(
    data: Tensor, old: Tensor, n: int, wave: Tables, base: int, count: int, last: int, steps: Tensor,
    positions: Tensor, error: Tensor, kind: Kind, cut: Cut,
) -> None:  # fmt: skip
    k, chunks = wave.blocks.numel(), wave.blocks.numel() * cut.chunks
    many = {"num_warps": decode_gpu.WARPS}
    bases, sizes = class_sizes(old, n, wave.blocks, last, kind, cut)
    vectors = list_vectors(wave.counts, wave.sums, sizes.contiguous(), wave.modes, error)
    ends, places = wave.blocks.new_zeros((2, 2 * count), dtype=torch.int32)
    low_sums = wave.blocks.new_zeros(2 * count)
    lengths = wave.blocks.new_zeros(count, dtype=torch.int32)
    bitmap = wave.blocks.new_zeros(k * (cut.block // 32), dtype=torch.int32)
    decode_gpu.terminator_kernel[(k,)](
        data, wave.planes, wave.before, vectors.widths, vectors.firsts, vectors.lows, ends, low_sums, error, base,
        cut.gaps, **many,
    )  # fmt: skip
    decode_gpu.place_kernel[(k,)](
        wave.before, *vectors[:5], vectors.inverted, ends, low_sums, places, bitmap, lengths, error, base,
        cut.block, cut.gaps, **many,
    )  # fmt: skip
    decode_gpu.step_kernel[(k,)](
        data, wave.planes, wave.modes, wave.before, vectors.begins, vectors.lows, kind.orders, lengths, steps, error,
        base, kind.word, cut.gaps, **many,
    )  # fmt: skip
    lanes = decode_gpu.LANES
    decode_gpu.chunk_kernel[(-(-chunks // lanes),)](
        wave.before, wave.outs, wave.totals, wave.modes, sizes, bases, vectors.begins, vectors.firsts,
        vectors.inverted, places, wave.changes, wave.starts, base, k, cut.chunks, cut.chunk, lanes,
        num_warps=decode_gpu.LANE_WARPS,
    )  # fmt: skip
    slots = (bases + vectors.segments[:, None, :8]).to(torch.int32).view(chunks, MAX_CLASSES)
    for blocks, of_chunks, programs, tail in dense(wave.blocks, n, cut, last):
        classes_gpu.locate_kernel[(programs,)](
            old, wave.blocks[blocks], slots[of_chunks], bitmap[blocks.start * (cut.block // 32) :],
            vectors.inverted[blocks], wave.starts[blocks], positions, n, *kind[:3],
            cut.block, cut.chunk, cut.tile, kind.classes, tail, num_warps=classes_gpu.WARPS,
        )  # fmt: skip
