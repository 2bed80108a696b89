"""What the last acknowledged updates changed, so that a worker that missed some of them need not be sent everything."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.weights.snapshot import TensorChanges
from slipstream.core.weights.wire import Bits
from slipstream.triton_kernels import as_unsigned_numpy, gather


class _Former(NamedTuple):
    positions: NDArray[np.unsignedinteger]
    old: Bits


@dataclass
class _Step:
    """One update: where it changed a tensor, and what was there before."""

    base: int
    tensors: dict[int, _Former] = field(default_factory=dict)
    bytes: int = 0


class History:
    """Former values of the last updates, the staged one included; the oldest go when a budget is used up.

    An update from an earlier version changes what any of the updates since then changed: its old values are the
    earliest that are remembered, its new ones those of the snapshot. Memory: 4 bytes a change (8 in tensors beyond
    2^32 elements) and the old value.

    Changes that stay on an accelerator are not remembered: they would have to cross to the host in every sync. A worker
    that missed one of those updates is seeded.
    """

    def __init__(self) -> None:
        self._budget = 0
        self._steps: deque[_Step] = deque()
        self._staged: _Step | None = None

    @property
    def bytes(self) -> int:
        """Kept now."""
        return sum(step.bytes for step in (*self._steps, *([self._staged] if self._staged else [])))

    def begin(self, base: int, budget: int) -> None:
        """An update of version `base` is being staged; at most `budget` bytes may be kept."""
        self._budget = budget
        self._staged = _Step(base)

    def record(self, tensor: int, changes: TensorChanges, numel: int) -> None:
        """Remember what the staged update changes in a tensor of `numel` elements."""
        if self._staged is None or not len(changes.positions):
            return
        if not isinstance(changes.positions, np.ndarray):
            self.clear()
            return
        former = _Former(changes.positions.astype(np.uint32 if numel <= 1 << 32 else np.uint64), changes.old)
        self._staged.tensors[tensor] = former
        self._staged.bytes += former.positions.nbytes + former.old.nbytes
        if self._staged.bytes > self._budget:
            self.clear()  # what came before is of no use without this one

    def commit(self) -> None:
        """The staged update was acknowledged."""
        staged, self._staged = self._staged, None
        if staged is None:
            self.clear()
            return
        self._steps.append(staged)
        while self.bytes > self._budget:
            self._steps.popleft()

    def discard(self) -> None:
        """The staged update came to nothing."""
        self._staged = None

    def clear(self) -> None:
        """Forget everything: the next version does not come of changes."""
        self._steps.clear()
        self._staged = None

    def reaches(self, version: int | None) -> bool:
        """Whether every change from an acknowledged version to the staged one is remembered."""
        return self._staged is not None and any(step.base == version for step in (*self._steps, self._staged))

    def since(self, version: int, tensor: int, bits: torch.Tensor) -> TensorChanges:
        """What the staged version changes in a tensor as it was at `version`.

        Args:
            version: one that `reaches` allows.
            tensor: index in the checkpoint table.
            bits: int[numel], its flat bits at the staged version.
        """
        assert self._staged is not None
        steps = [*self._steps, self._staged]
        first = next(index for index, step in enumerate(steps) if step.base == version)
        found = [step.tensors[tensor] for step in steps[first:] if tensor in step.tensors]
        if not found:
            none = as_unsigned_numpy(bits[:0].cpu())
            return TensorChanges(np.empty(0, np.int64), none, none)
        # The first of equal positions is that of the earliest update.
        positions, earliest = np.unique(np.concatenate([f.positions for f in found]), return_index=True)
        old = np.concatenate([f.old for f in found])[earliest]
        positions = positions.astype(np.int64)
        new = gather(bits, positions)
        changed = old != new
        return TensorChanges(positions[changed], old[changed], new[changed])
