"""The sub-stage graph: one training step cut into pieces of homogeneous load, with what has to come before what.

Nodes live on workers; decode is cut where its load class changes (JigsawRL, arXiv 2604.23838, cuts by tokens an
iteration).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec
import numpy as np

from slipstream.core.graph.compiled.curves import decode_class
from slipstream.core.graph.compiled.model import Floats
from slipstream.core.graph.errors import GraphError
from slipstream.core.graph.workload import DecodeCost


class StageKind(enum.Enum):
    """What a sub-stage does."""

    PREFILL = "prefill"
    DECODE = "decode"
    TOOL_WAIT = "tool wait"
    """Every active request waits for its environment."""
    LOGPROB = "log-prob"
    TRAIN = "train"
    OPTIMIZER = "optimizer"
    SYNC = "sync"


class SubStage(msgspec.Struct, frozen=True):
    """A node."""

    id: int
    kind: StageKind
    workers: tuple[int, ...]
    """One for a piece of a rollout, all of them for a gang stage."""
    seconds: float
    """Alone on its workers."""
    load: int = -1
    """Decode class (`compiled.model.DECODE_EDGES`); -1 for other kinds."""


class SubStageGraph(msgspec.Struct, frozen=True):
    """One step of one pipeline."""

    pipeline: str
    step: int
    nodes: tuple[SubStage, ...]
    edges: tuple[tuple[int, int], ...]
    """(before, after), ids."""

    def __post_init__(self) -> None:
        """Check that every edge has its ends, and that nothing waits for itself."""
        if [node.id for node in self.nodes] != list(range(len(self.nodes))):
            raise GraphError(
                f"graph of {self.pipeline} step {self.step}: expected ids 0 to {len(self.nodes) - 1} in order"
            )
        for before, after in self.edges:
            if not 0 <= before < after < len(self.nodes):
                raise GraphError(
                    f"graph of {self.pipeline} step {self.step}: expected edges from a smaller id to a larger one, "
                    f"found {before} -> {after} with {len(self.nodes)} nodes"
                )

    def critical_path(self) -> float:
        """Return the seconds of the longest path."""
        ends = [node.seconds for node in self.nodes]
        for before, after in sorted(self.edges, key=lambda edge: edge[1]):
            ends[after] = max(ends[after], ends[before] + self.nodes[after].seconds)
        return max(ends, default=0.0)

    def work(self) -> float:
        """Return worker-seconds."""
        return sum(node.seconds * len(node.workers) for node in self.nodes)

    def to_json(self) -> bytes:
        """Return the graph as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes) -> SubStageGraph:
        """Read what `to_json` wrote.

        Raises:
            GraphError: it is not a graph.
        """
        try:
            return msgspec.json.decode(data, type=SubStageGraph)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise GraphError(f"expected a sub-stage graph: {error}") from error


class ActiveCurve(msgspec.Struct, frozen=True):
    """Active requests of a rollout on one worker, as recorded."""

    seconds: tuple[float, ...]
    """When the number changed, ascending, from the start of the rollout; the last entry is its end."""
    active: tuple[int, ...]
    """Requests that decode from then on; one entry less. Zero: all wait for their environments."""
    prefill: float = 0.0
    """Seconds of prefill before the first token."""

    def __post_init__(self) -> None:
        """Check that it is a curve."""
        if len(self.active) != len(self.seconds) - 1 or list(self.seconds) != sorted(self.seconds):
            raise GraphError(
                f"active curve: expected ascending seconds with one entry more than active, found {len(self.seconds)} "
                f"and {len(self.active)}"
            )


def curve_of_lengths(lengths: Floats, cost: DecodeCost, prompt_tokens: float) -> ActiveCurve:
    """Return the curve of requests that all start at once.

    Args:
        lengths: float64[n], tokens of each request on the worker.
    """
    ordered = np.sort(lengths)
    active = np.arange(ordered.size, 0, -1)
    steps = np.diff(ordered, prepend=0.0) * (cost.iteration + cost.per_request * active)
    kept = steps > 0
    prefill = ordered.size * prompt_tokens * cost.prefill
    ends = np.cumsum(steps[kept])
    return ActiveCurve((0.0, *ends.tolist()), tuple(active[kept].tolist()), prefill)


def cut(
    pipeline: str, step: int, curves: Sequence[ActiveCurve], stages: Sequence[tuple[StageKind, float]], cost: DecodeCost
) -> SubStageGraph:
    """Cut one recorded step into sub-stages.

    Args:
        curves: by worker.
        stages: what follows the rollout on all workers, in order, with its seconds.
        cost: tells at how many active requests the load class changes.
    """
    nodes: list[SubStage] = []
    edges: list[tuple[int, int]] = []
    last: list[int] = []

    def add(kind: StageKind, workers: tuple[int, ...], seconds: float, load: int, before: Sequence[int]) -> int:
        nodes.append(SubStage(len(nodes), kind, workers, seconds, load))
        edges.extend((each, len(nodes) - 1) for each in before)
        return len(nodes) - 1

    for worker, curve in enumerate(curves):
        before: list[int] = []
        if curve.prefill > 0:
            before = [add(StageKind.PREFILL, (worker,), curve.prefill, -1, before)]
        for kind, load, seconds in _pieces(curve, cost):
            before = [add(kind, (worker,), seconds, load, before)]
        last += before
    for kind, seconds in stages:
        last = [add(kind, tuple(range(len(curves))), seconds, -1, last)]
    return SubStageGraph(pipeline, step, tuple(nodes), tuple(edges))


def _pieces(curve: ActiveCurve, cost: DecodeCost) -> list[tuple[StageKind, int, float]]:
    """Return (kind, class, seconds) of each stretch of one class."""
    found: list[tuple[StageKind, int, float]] = []
    for active, begin, end in zip(curve.active, curve.seconds, curve.seconds[1:], strict=False):
        load = decode_class(active, cost.iteration, cost.per_request) if active > 0 else -1
        kind = StageKind.DECODE if active > 0 else StageKind.TOOL_WAIT
        if found and found[-1][:2] == (kind, load):
            found[-1] = (kind, load, found[-1][2] + end - begin)
        else:
            found.append((kind, load, end - begin))
    return found
