"""What the small files of a chain say."""

from __future__ import annotations

import re

import msgspec

from slipstream.core.weights.layout import Piece
from slipstream.core.weights.tensors import DTYPES, TensorSpec, digest
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import NO_BASE
from slipstream.triton_kernels import Box

FORMAT = 1
_TABLE = re.compile(r"table-[0-9a-f]{16}")


def step_name(run: int, base: int | None, target: int) -> str:
    """File of a step."""
    return f"{target:012d}-{'anchor' if base is None else 'delta'}-{run:016x}"


class Step(msgspec.Struct, frozen=True):
    """One file of frames."""

    base: int | None
    """Version it starts from; None for an anchor, which has every element."""
    target: int
    file: str
    bytes: int


class Head(msgspec.Struct, frozen=True):
    """The file that readers look at; replaced as a whole, after everything it names is in place."""

    format: int
    run: int
    """Random number of the writer."""
    table: str
    """File of the `ChainTable`."""
    steps: tuple[Step, ...]
    """Ascending by target, a delta before the anchor of the same version."""

    @property
    def version(self) -> int:
        """The newest."""
        return self.steps[-1].target

    def fault(self) -> str:
        """What is wrong with it; empty for one that a writer wrote.

        File names are checked as well: a writer that takes over deletes the files of the chain that was there.
        """
        if not _TABLE.fullmatch(self.table):
            return f"the table is called {self.table!r}"
        before = 0
        for step in self.steps:
            if step.file != step_name(self.run, step.base, step.target):
                return f"the step to version {step.target} is called {step.file!r}"
            forward = step.base is None or 0 < step.base < step.target
            if not forward or not max(before, 1) <= step.target < NO_BASE:
                return f"a step leads from version {step.base} to {step.target}, after one to {before}"
            before = step.target
        anchors = [step.target for step in self.steps if step.base is None]
        if not anchors:
            return "it names no full copy to start from"
        if _follow(self._deltas(), anchors[-1], self.version) is None:
            return f"nothing leads from the full copy of version {anchors[-1]} to version {self.version}"
        return ""

    def _deltas(self) -> dict[int, Step]:
        return {step.base: step for step in self.steps if step.base is not None}

    def path(self, held: int | None) -> list[Step]:
        """The steps from version `held` (None: from nothing) to the newest one; empty when that is `held`.

        From a version that has left the chain it starts with the newest anchor.
        """
        if held == self.version:
            return []
        deltas = self._deltas()
        if held is not None:
            steps = _follow(deltas, held, self.version)
            if steps is not None:
                return steps
        anchor = [step for step in self.steps if step.base is None][-1]
        return [anchor, *(_follow(deltas, anchor.target, self.version) or [])]


def _follow(deltas: dict[int, Step], held: int, newest: int) -> list[Step] | None:
    steps = []
    while held != newest:
        if held not in deltas:
            return None
        steps.append(deltas[held])
        held = deltas[held].target
    return steps


class ChainTable(msgspec.Struct, frozen=True):
    """The checkpoint and its units; `Piece.storage` is the tensor."""

    specs: tuple[TensorSpec, ...]
    units: tuple[WireUnit, ...]
    level: int
    """Highest codec level of the deltas."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"table-{digest((self.specs, self.units))[:16]}"

    def fault(self) -> str:
        """What is wrong with it; empty for one that a writer wrote: a unit for each tensor with elements."""
        for spec in self.specs:
            if spec.dtype not in DTYPES or any(size < 0 for size in spec.shape):
                return f"no tensor can be {spec}"
        filled = [index for index, spec in enumerate(self.specs) if spec.numel]
        if [unit.tensors for unit in self.units] != [(index,) for index in filled]:
            return "its units are not those of its tensors"
        for index, unit in zip(filled, self.units, strict=True):
            spec = self.specs[index]
            if unit != WireUnit(spec.dtype, spec.numel, (index,), (Piece.of(index, Box.identity(spec.numel)),)):
                return f"the unit of {spec.name!r} does not fit it"
        return ""


class StepHeader(msgspec.Struct, frozen=True):
    """In front of the frames of a step."""

    run: int
    base: int | None
    target: int
    frames: int
    fingerprints: bytes
    """uint64[units], little-endian: of every unit at `target`."""
