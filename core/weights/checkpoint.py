"""The checkpoint as trainer and engines together see it: the table of tensors and how the engines take each."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from slipstream.core.weights.errors import SyncError
from slipstream.core.weights.layout import Kind, TensorLayout
from slipstream.core.weights.roster import WorkerLayout
from slipstream.core.weights.tensors import DTYPES, TensorSpec, digest

_UNUSED: Kind = "unused"


class Merged(NamedTuple):
    """How all workers together take each tensor."""

    kinds: tuple[Kind, ...]
    dtypes: tuple[torch.dtype, ...]
    """dtype that the trainer casts to before it compares."""


def table_digest(specs: tuple[TensorSpec, ...], run: int) -> str:
    """Names a table of one publisher run: another run cuts its units differently."""
    return digest((run, specs))


class Checkpoint:
    """The table of tensors of one publisher run."""

    def __init__(self, specs: tuple[TensorSpec, ...], run: int) -> None:
        self.specs, self.run = specs, run
        self.digest = table_digest(specs, run)
        self.elements = sum(spec.numel for spec in specs)
        self.dense_bytes = sum(spec.numel * spec.torch_dtype.itemsize for spec in specs)
        self.kinds: tuple[Kind, ...] = ()
        self.dtypes: tuple[torch.dtype, ...] = ()

    def check(self, index: int, spec: TensorSpec) -> None:
        """Refuse a tensor that is not the one of the previous syncs.

        Raises:
            SyncError: name, shape or dtype differ.
        """
        known = self.specs[index] if index < len(self.specs) else None
        if spec != known:
            raise SyncError(
                f"the trainer's checkpoint changed between syncs: tensor {index} is {spec}, it was {known}. "
                "The next sync is a dense seed."
            )

    def adopt(self, merged: Merged) -> None:
        """Take over what the engines say."""
        self.kinds, self.dtypes = merged

    def agrees(self, merged: Merged) -> bool:
        """Whether `merged` is what was adopted, but for tensors that no worker takes any more."""
        adopted = zip(self.kinds, self.dtypes, strict=True)
        return all(
            one[0] == _UNUSED or one == other for one, other in zip(zip(*merged, strict=True), adopted, strict=True)
        )

    @staticmethod
    def layout_digest(tensors: tuple[TensorLayout, ...]) -> str:
        """Equal for workers that hold the same elements in the same form."""
        return digest(tensors)


def merge_layouts(specs: tuple[TensorSpec, ...], layouts: Collection[WorkerLayout]) -> Merged:
    """Combine the layouts of all workers.

    Raises:
        SyncError: workers disagree on how a tensor is stored.
    """
    kinds: list[Kind] = []
    dtypes: list[torch.dtype] = []
    for index, spec in enumerate(specs):
        used: set[tuple[Kind, str]] = {
            (t.kind, t.dtype) for layout in layouts if (t := layout.tensors[index]).kind != "unused"
        }
        if len(used) > 1:
            raise SyncError(
                f"engine workers store {spec.name} differently: {sorted(used)}; "
                "use slipstream/weight_sync=native for this model"
            )
        kind, dtype = next(iter(used)) if used else (_UNUSED, spec.dtype)
        kinds.append(kind)
        dtypes.append(DTYPES[dtype])
    return Merged(tuple(kinds), tuple(dtypes))
