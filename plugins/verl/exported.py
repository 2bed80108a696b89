"""What a Megatron rank holds of the checkpoint: found by exporting indices instead of weights, once.

Between Megatron's parameters and the checkpoint lie fused QKV and gate_up, tensor, expert and pipeline parallelism and
a padded vocabulary, with a rule for each model in a bridge (mbridge, Megatron-Bridge). None is repeated here: each
rank's parameters are replaced for a moment by numbers that name rank and place, and verl's own export, with its own
collectives, carries them to where the weights would go. It costs what one sync costs verl, in eight bytes an element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from slipstream.core.weights.plan import affine_boxes
from slipstream.triton_kernels import Box, as_bits

Export = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Yields (checkpoint name, whole tensor) on every rank; a collective."""

_RANK_BITS = 42
"""A number is rank * 2**42 + place; float64 holds it exactly for 2,048 ranks of 4.4e12 elements."""


@dataclass
class ExportedTensor:
    """This rank's part of a checkpoint tensor, cut from one or more of Megatron's parameters."""

    shape: tuple[int, ...]
    boxes: list[Box] = field(default_factory=list)
    """Checkpoint index to index in `local()`."""
    cuts: list[tuple[torch.nn.Parameter, Box]] = field(default_factory=list)
    """Where each of the boxes lies in which parameter."""

    @property
    def dtype(self) -> torch.dtype | None:
        """None where this rank holds nothing of it."""
        return self.cuts[0][0].dtype if self.cuts else None

    @property
    def numel(self) -> int:
        """Elements that this rank holds."""
        return sum(box.numel for box in self.boxes)

    def local(self) -> torch.Tensor:
        """The part as it is now, flat."""
        views = [
            parameter.detach().as_strided(box.sizes, box.dst_strides, parameter.storage_offset() + box.dst_offset)
            for parameter, box in self.cuts
        ]
        return views[0].reshape(-1) if len(views) == 1 else torch.cat([view.reshape(-1) for view in views])


def trace_export(parameters: Sequence[torch.nn.Parameter], export: Export, rank: int) -> dict[str, ExportedTensor]:
    """What `rank` holds of every tensor that `export` yields; a collective, as `export` is.

    Args:
        parameters: all that the export reads on this rank, each once and contiguous.
        export: the framework's.
        rank: of the trainer.

    Raises:
        ValueError: the export does more than move elements, or moves them in a way that boxes cannot describe. Raised
            after the export has run to its end.
    """
    starts = [0, *accumulate(parameter.numel() for parameter in parameters)]
    held: dict[str, ExportedTensor] = {}
    failure: ValueError | None = None
    with _numbered(parameters, starts, rank):
        for name, tensor in export():
            try:
                held[name] = _read(name, tensor, parameters, starts, rank)
            except ValueError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return held


def differing(held: dict[str, ExportedTensor], exported: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Tensors of the real export in which this rank's part is not what it holds, bit for bit; consumes all of them."""
    wrong = []
    for name, tensor in exported:
        part = held.get(name)
        if part is None or not part.numel:
            continue
        same = tensor.dtype == part.dtype
        if same:
            flat, local = as_bits(tensor.detach().contiguous()).reshape(-1), as_bits(part.local())
            same = all(
                torch.equal(
                    flat.as_strided(box.sizes, box.src_strides, flat.storage_offset() + box.src_offset),
                    local.as_strided(box.sizes, box.dst_strides, local.storage_offset() + box.dst_offset),
                )
                for box in part.boxes
            )
        if not same:
            wrong.append(name)
    return wrong


@contextmanager
def _numbered(parameters: Sequence[torch.nn.Parameter], starts: Sequence[int], rank: int) -> Iterator[None]:
    """Parameters hold their own numbers instead of weights, for as long as this lasts."""
    saved = [parameter.data for parameter in parameters]
    try:
        for parameter, start in zip(parameters, starts, strict=False):
            first = (rank << _RANK_BITS) + start
            numbers = torch.arange(first, first + parameter.numel(), dtype=torch.float64, device=parameter.device)
            parameter.data = numbers.view(parameter.shape)
        yield
    finally:
        for parameter, data in zip(parameters, saved, strict=True):
            parameter.data = data


def _read(
    name: str, tensor: torch.Tensor, parameters: Sequence[torch.nn.Parameter], starts: Sequence[int], rank: int
) -> ExportedTensor:
    if tensor.dtype != torch.float64:
        raise ValueError(f"the export casts {name} to {tensor.dtype}")
    numbers = tensor.detach().reshape(-1)
    first = rank << _RANK_BITS
    sources = torch.nonzero((numbers >= first) & (numbers < first + starts[-1])).reshape(-1)
    found = numbers[sources]
    places = found.to(torch.int64)
    if not torch.equal(places.to(torch.float64), found):
        raise ValueError(f"the export computes on {name}")
    result = ExportedTensor(tuple(tensor.shape))
    at, source, place = 0, sources.cpu().numpy(), places.cpu().numpy() - first
    owners = np.searchsorted(np.asarray(starts), place, side="right") - 1
    for owner in np.unique(owners).tolist():
        of_it = owners == owner
        for box in affine_boxes(source[of_it], place[of_it] - starts[owner]):
            dense = torch.empty(box.sizes, device="meta").stride()
            result.boxes.append(Box(box.src_offset, at, box.sizes, box.src_strides, tuple(dense)))
            result.cuts.append((parameters[owner], box))
            at += box.numel
    return result
