"""The update for workers that missed earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.weights.history import History
from slipstream.core.weights.layout import Kind
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.triton_kernels import as_unsigned_numpy


def link_since(
    base: int, link: SendingLink, history: History, snapshot: Snapshot, kinds: Sequence[Kind], tensors: Sequence[int]
) -> SendingLink:
    """Stage what leads from an earlier version to the staged one, on a link of its own.

    Args:
        base: a version that `history` reaches.
        link: that of the workers' layout.
        history: the changes since then.
        snapshot: at the staged version.
        kinds: how the workers take each tensor of the checkpoint.
        tensors: indices of those that this sender holds.
    """

    def before(tensor: int) -> torch.Tensor:
        bits = snapshot.bits(tensor)
        if kinds[tensor] == "loader":
            return bits  # travels whole, as it is now
        changes = history.since(base, tensor, bits)
        former = bits.to("cpu", copy=True)
        as_unsigned_numpy(former)[changes.positions] = changes.old
        return former

    late = SendingLink(link.link, before, link.level)
    late.begin(1)
    for tensor in tensors:
        if kinds[tensor] == "mapped":
            late.stage(tensor, history.since(base, tensor, snapshot.bits(tensor)))
    late.finish()
    return late
