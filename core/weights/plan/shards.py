"""Which elements of the checkpoint a trainer rank holds: one function for each way of sharding.

All return boxes from the flat checkpoint index to the index in the rank's local shard (flat, row-major). A rank that
holds nothing of a tensor has no box for it. Replication (HSDP, tensor-parallel norms) needs nothing of its own: the
ranks have equal boxes. So do pipeline and expert parallelism over separately named tensors: a rank lists its own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from slipstream.core.weights.plan.intersect import intersect
from slipstream.triton_kernels import Box, normalise


class Cut(NamedTuple):
    """One dimension split over ranks as `torch.chunk` does: equal parts of ceil(size / parts), the last ones shorter.

    This is DTensor's `Shard(dim)` (FSDP2), and Megatron's column- (0) and row-parallel (1) split.
    """

    dim: int
    parts: int
    part: int
    """This rank's."""


def block(shape: Sequence[int], start: Sequence[int], sizes: Sequence[int], at: int = 0) -> list[Box]:
    """A rectangular block of a tensor, stored contiguously from local index `at` on (verl's `BlockPlacement`).

    Raises:
        ValueError: ranks differ, or the block leaves the tensor.
    """
    inside = all(
        min(first, size) >= 0 and first + size <= whole for whole, first, size in zip(shape, start, sizes, strict=False)
    )
    if not len(shape) == len(start) == len(sizes) or not inside:
        raise ValueError(f"expected a block inside {tuple(shape)}, got start {tuple(start)} and sizes {tuple(sizes)}")
    if prod(sizes) == 0:
        return []
    whole_strides, local_strides = _row_major(shape), _row_major(sizes)
    offset = sum(first * stride for first, stride in zip(start, whole_strides, strict=True))
    return [normalise(Box(offset, at, tuple(sizes), whole_strides, local_strides))]


def sharded(shape: Sequence[int], cuts: Iterable[Cut] = (), at: int = 0) -> list[Box]:
    """A tensor split by cuts, one after the other, each within what the ones before left. No cut: the whole tensor.

    For a DTensor give a cut for every `Shard` in the order of the mesh dimensions, and none for `Replicate`; where a
    dimension is split by tensor parallelism first and FSDP second (`_StridedShard`), give that order.

    Args:
        shape: of the checkpoint tensor.
        cuts: how it is split.
        at: local index of its first element.

    Raises:
        ValueError: a cut has no such dimension or part.
    """
    start, sizes = [0] * len(shape), list(shape)
    for cut in cuts:
        if not (0 <= cut.dim < len(shape) and 0 <= cut.part < cut.parts):
            raise ValueError(f"cannot take {cut} of a tensor of shape {tuple(shape)}")
        length = -(-sizes[cut.dim] // cut.parts)
        first = min(cut.part * length, sizes[cut.dim])
        start[cut.dim] += first
        sizes[cut.dim] = min(length, sizes[cut.dim] - first)
    return block(shape, start, sizes, at)


def stacked(shapes: Mapping[str, Sequence[int]], cuts: Sequence[Cut] = ()) -> dict[str, list[Box]]:
    """Several checkpoint tensors, each split by the same cuts, one behind the other in one local parameter.

    Gate and up of a gated MLP (Megatron `linear_fc1`), and experts stacked in one tensor.
    """
    at, result = 0, {}
    for name, shape in shapes.items():
        result[name] = sharded(shape, cuts, at)
        at += sum(box.numel for box in result[name])
    return result


def fused_qkv(hidden: int, heads: int, groups: int, head_dim: int, cut: Cut) -> dict[str, list[Box]]:
    """Megatron's `linear_qkv`: for each query group its query heads, its key head and its value head, as rows.

    Args:
        hidden: columns; 1 for the bias.
        heads: query heads of the model, `groups` of which share keys and values.
        groups: key and value heads of the model.
        head_dim: rows of a head.
        cut: the tensor-parallel split; its dim is 0.

    Returns:
        Boxes of the checkpoint's separate tensors, under "q", "k" and "v".

    Raises:
        ValueError: heads do not divide into groups, or groups not over ranks.
    """
    if heads % groups or groups % cut.parts or cut.dim != 0 or not 0 <= cut.part < cut.parts:
        raise ValueError(f"cannot split {heads} heads in {groups} groups by {cut}; each rank takes whole groups")
    local, head = groups // cut.parts, head_dim * hidden
    queries = heads // groups * head
    group, first = queries + 2 * head, cut.part * local

    def rows(size: int, at: int) -> list[Box]:
        return [normalise(Box(first * size, at, (local, size), (size, 1), (group, 1)))]

    return {"q": rows(queries, 0), "k": rows(head, queries), "v": rows(head, queries + head)}


def flat_shard(sizes: Mapping[str, int], start: int, stop: int) -> dict[str, list[Box]]:
    """The range [start, stop) of tensors laid one behind the other: FSDP1 flat parameters, ZeRO partitions.

    Such a range cuts tensors anywhere, also inside a row. Parameters that are partitioned one by one (ZeRO-3) are the
    case of a single tensor. Padding at the end is no tensor's.

    Args:
        sizes: elements of each tensor in the order of the flat parameter; padding between two under a name of its own.
        start, stop: the rank's range; local index 0 is `start`.
    """
    result, at = {}, 0
    for name, size in sizes.items():
        first, last = max(at, start), min(at + size, stop)
        if first < last:
            result[name] = [Box(first - at, first - start, (last - first,), (1,), (1,))]
        at += size
    return result


def window(boxes: Iterable[Box], start: int, stop: int) -> list[Box]:
    """What local indices [start, stop) of a shard hold, with local index 0 at `start`.

    A flat range of a shard: Megatron's distributed optimizer and ZeRO on top of tensor parallelism.
    """
    if start >= stop:
        return []
    wanted = Box(start, 0, (stop - start,), (1,), (1,))
    return [
        normalise(Box(part.sender_offset, part.receiver_offset, part.sizes, part.sender_strides, part.receiver_strides))
        for box in boxes
        for part in intersect(Box(box.dst_offset, box.src_offset, box.sizes, box.dst_strides, box.src_strides), wanted)
    ]


def subtensor(boxes: Iterable[Box], start: int, stop: int) -> list[Box]:
    """What a shard holds of the elements [start, stop) of a tensor, when those are a checkpoint tensor of their own.

    One expert of a stack of experts, say. The local indices stay those of the shard.
    """
    if start >= stop:
        return []
    wanted = Box(start, 0, (stop - start,), (1,), (1,))
    return [
        normalise(Box(part.receiver_offset, part.sender_offset, part.sizes, part.receiver_strides, part.sender_strides))
        for box in boxes
        for part in intersect(box, wanted)
    ]


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[j + 1 :]) for j in range(len(shape)))
