"""Random trainers and engines for the transfer plan, and a plan carried out element by element."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
from hypothesis import strategies as st

from slipstream.core.weights.layout import Piece
from slipstream.core.weights.plan import Cut, flat_shard, sharded
from slipstream.triton_kernels import Box


def row_major(shape):
    return tuple(prod(shape[j + 1 :]) for j in range(len(shape)))


def pairs(box):
    """[(source, destination)] of every element of a box, one by one, row-major over its dimensions."""
    return [
        (
            box.src_offset + sum(k * s for k, s in zip(index, box.src_strides, strict=True)),
            box.dst_offset + sum(k * s for k, s in zip(index, box.dst_strides, strict=True)),
        )
        for index in product(*(range(size) for size in box.sizes))
    ]


def piece(box, storage=0):
    return Piece(storage, (*box,))


def stored(shape, view, at=0, order=None, pad=0):
    """The box of `view` (a slice for each dim) of a tensor, stored with its dims in `order`, rows padded by `pad`."""
    ranges = [range(*part.indices(size)) for part, size in zip(view, shape, strict=True)]
    strides = row_major(shape)
    sizes = tuple(len(r) for r in ranges)
    dst, step = [0] * len(shape), 1
    for j in reversed(order or range(len(shape))):
        dst[j], step = step, step * sizes[j] + pad
    offset = sum(r.start * s for r, s in zip(ranges, strides, strict=True))
    return Box(offset, at, sizes, tuple(r.step * s for r, s in zip(ranges, strides, strict=True)), tuple(dst))


def carry_out(plan, weights, senders, receivers):
    """Move every element of a plan by plain index arithmetic, and compare with what a dense load would give.

    Args:
        plan: the plan under test.
        weights: tensor -> uint16[numel].
        senders, receivers: as given to `plan`.

    Returns:
        How many elements each sender sent, transfers to several receivers counted once.
    """
    shards = {rank: {name: {d: weights[name][s] for b in boxes for s, d in pairs(b)} for name, boxes in held.items()}
              for rank, held in senders.items()}  # fmt: skip
    wanted = {
        (worker, p.storage, d): weights[name][s]
        for worker, held in receivers.items()
        for name, pieces in held.items()
        for p in pieces
        for s, d in pairs(p.as_box())
    }
    arrived = {}
    seen = set()
    sent = dict.fromkeys(senders, 0)
    for transfer in plan.transfers:
        region = dict(pairs(transfer.region))
        assert list(region.values()) == list(range(transfer.numel)), "the wire order is row-major"
        assert list(region) == sorted(region), "the checkpoint index ascends along the wire"
        wire = {w: shards[transfer.sender][transfer.tensor][local] for local, w in pairs(transfer.send)}
        assert sorted(wire) == list(range(transfer.numel))
        sent[transfer.sender] += transfer.numel
        for receiver in transfer.receivers:
            for index in region:
                assert (receiver, transfer.tensor, index) not in seen, "an element came twice"
                seen.add((receiver, transfer.tensor, index))
        for end in transfer.destinations:
            for w, d in pairs(end.box):
                assert (end.receiver, end.storage, d) not in arrived, "a place was written twice"
                arrived[end.receiver, end.storage, d] = wire[w]
    assert arrived == wanted
    return sent


@st.composite
def shapes(draw, low=1):
    return tuple(draw(st.lists(st.integers(low, 6), min_size=1, max_size=4)))


@st.composite
def reshaped(draw, shape):
    """Another shape of as many elements."""
    numel, factors, divisor = prod(shape), [], 2
    while numel > 1:
        while numel % divisor:
            divisor += 1
        factors.append(divisor)
        numel //= divisor
    result = [1] * draw(st.integers(1, 4))
    for factor in factors:
        result[draw(st.integers(0, len(result) - 1))] *= factor
    return tuple(result)


@st.composite
def views(draw, shape):
    """A slice for each dim, with steps, never empty."""
    result = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        result.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2))))
    return result


@st.composite
def slices(draw, shape):
    """A box of a slice of some reshape, stored transposed and padded."""
    other = draw(reshaped(shape))
    order = draw(st.permutations(range(len(other))))
    return stored(other, draw(views(other)), draw(st.integers(0, 3)), order, draw(st.integers(0, 2)))


@st.composite
def trainers(draw, shape):
    """rank -> boxes; all elements are held by someone, some by several."""
    numel = prod(shape)
    style = draw(st.sampled_from(["cuts", "flat", "interleaved", "whole"]))
    other = draw(reshaped(shape))
    ranks = []
    if style == "cuts":
        dims = draw(st.lists(st.tuples(st.integers(0, len(other) - 1), st.integers(1, 3)), max_size=3))
        for parts in product(*(range(parts) for _, parts in dims)):
            cuts = [Cut(dim, parts_, part) for (dim, parts_), part in zip(dims, parts, strict=True)]
            ranks.append(sharded(other, cuts))
    elif style == "flat":
        ends = sorted({0, numel, *draw(st.lists(st.integers(0, numel), max_size=4))})
        ranks = [flat_shard({"w": numel}, a, b)["w"] for a, b in pairwise(ends)]
    elif style == "interleaved":
        dim = draw(st.integers(0, len(other) - 1))
        step = draw(st.integers(1, min(3, other[dim])))
        for first in range(step):
            view = [slice(first, None, step) if j == dim else slice(None) for j in range(len(other))]
            ranks.append([stored(other, view, order=draw(st.permutations(range(len(other)))))])
    else:
        ranks = [sharded(shape)]
    copies = draw(st.integers(1, 2))
    held = dict(enumerate(ranks * copies))
    for _ in range(draw(st.integers(0, 1))):
        held[len(held)] = [draw(slices(shape))]
    return held


@st.composite
def worlds(draw):
    """(weights, senders, receivers) of one or two tensors."""
    weights, senders, receivers = {}, {}, {}
    for number in range(draw(st.integers(1, 2))):
        name, shape = f"t{number}", draw(shapes())
        weights[name] = np.random.default_rng(number).permutation(1 << 16)[: prod(shape)].astype(np.uint16)
        for rank, boxes in draw(trainers(shape)).items():
            senders.setdefault(rank, {})[name] = boxes
        kinds = [[draw(slices(shape)) for _ in range(draw(st.integers(0, 2)))] for _ in range(2)]
        for worker in range(3):
            boxes = kinds[draw(st.integers(0, 1))]
            pieces = [piece(box, 10 * number + k) for k, box in enumerate(boxes)]
            receivers.setdefault(f"worker {worker}", {})[name] = pieces
    return weights, senders, receivers
