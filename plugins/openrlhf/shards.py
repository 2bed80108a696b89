"""What one rank of a DeepSpeed policy holds of each parameter, so that nothing is gathered before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.core.weights.trainer_shards import TrainerShards, exchange_shards
from slipstream.triton_kernels import Box


@dataclass
class FlatRange:
    """A flat range of a parameter: ZeRO-3's partition of it, or this rank's share of one that every rank has whole."""

    parameter: torch.nn.Parameter
    shape: tuple[int, ...]
    start: int
    numel: int
    partitioned: bool
    """Whether DeepSpeed keeps the range apart (`ds_tensor`); the parameter itself is empty then."""

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    @property
    def boxes(self) -> list[Box]:
        """Checkpoint index to index in `local()`."""
        return [Box(self.start, 0, (self.numel,), (1,), (1,))] if self.numel else []

    def local(self) -> torch.Tensor:
        """The range as it is now, flat; a view."""
        if self.partitioned:
            partition: torch.Tensor = self.parameter.ds_tensor.detach()  # type: ignore[attr-defined]
            return partition[: self.numel]
        return self.parameter.detach().reshape(-1)[self.start : self.start + self.numel]


def flat_range(parameter: Any, rank: int, ranks: int) -> FlatRange:
    """The part of `parameter` that `rank` of `ranks` publishes: equal ranges, the last one shorter.

    These are ZeRO-3's partitions, whose padding is left out. Of a parameter that every rank holds whole, each rank
    publishes the same range, so that the work and the snapshot are spread as evenly.
    """
    partitioned = hasattr(parameter, "ds_tensor")
    shape = tuple(parameter.ds_shape if partitioned else parameter.shape)
    numel = torch.Size(shape).numel()
    size = -(-numel // ranks)
    start = min(rank * size, numel)
    return FlatRange(parameter, shape, start, min(size, numel - start), partitioned)


class DeepSpeedShards:
    """The `ShardSource` of one policy rank; see `core.weights.publishing`."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], split: bool) -> None:
        """Take (checkpoint name, parameter) of everything that is synced; `split`: AutoTP has cut some of it."""
        self._parameters = dict(parameters)
        self._split = split
        self.in_use = False

    def obstacle(self) -> str:
        """Why weights have to be gathered; empty when they need not. The same on every rank."""
        if self._split:
            return "DeepSpeed's AutoTP cuts parameters in ways that only its own gathering knows"
        ranks = torch.distributed.get_world_size()
        for name, parameter in self._parameters.items():
            if (problem := _problem(parameter, ranks)) is not None:
                return f"{name} {problem}"
        return ""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, flat local tensor) of every parameter of which this rank holds anything."""
        for name, held in self._held().items():
            if held.numel:
                yield name, held.local()

    def exchange(self) -> TrainerShards:
        """Tell the other ranks what this one holds; a collective.

        Raises:
            SyncError: the ranks hold different models.
        """
        return exchange_shards(self._held())

    def _held(self) -> dict[str, FlatRange]:
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return {name: flat_range(parameter, rank, ranks) for name, parameter in self._parameters.items()}


def _problem(parameter: Any, ranks: int) -> str | None:
    """What keeps a parameter from being read as flat ranges."""
    if not hasattr(parameter, "ds_tensor"):
        return None if parameter.is_contiguous() else "is not contiguous"
    partition = parameter.ds_tensor
    if partition.final_location is not None:
        return f"is kept on {partition.final_location}"
    if partition.dtype != parameter.dtype:
        return f"is kept as {partition.dtype}"
    if partition.ds_numel != -(-parameter.ds_numel // ranks):
        return f"is partitioned into {partition.ds_numel} elements a rank, not among all {ranks} ranks"
    return None
