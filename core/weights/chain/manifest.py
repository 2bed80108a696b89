"""What the small files of a chain say."""

from __future__ import annotations

import msgspec

from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.units import WireUnit

FORMAT = 1


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

    def path(self, held: int | None) -> list[Step]:
        """The steps from version `held` (None: from nothing) to the newest one; empty when that is `held`.

        From a version that has left the chain it starts with the newest anchor.
        """
        if held == self.version:
            return []
        deltas = {step.base: step for step in self.steps if step.base is not None}
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


class StepHeader(msgspec.Struct, frozen=True):
    """In front of the frames of a step."""

    run: int
    base: int | None
    target: int
    frames: int
    fingerprints: bytes
    """uint64[units], little-endian: of every unit at `target`."""
