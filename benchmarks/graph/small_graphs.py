"""Random sub-stage graphs small enough for an exact solver, and the scheduler run on them.

Time comes in slots: every end of a piece is a decision, and a piece that ends within a slot leaves the rest of it
unused. The exact solver (`exact.py`) may also pause and resume at every slot, so its optimum is never worse than
what the scheduler could do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.core.graph.compiled.advance import advance
from slipstream.core.graph.compiled.apply import apply_all
from slipstream.core.graph.compiled.model import (
    Curves,
    Flag,
    World,
    new_curves,
    new_state,
)
from slipstream.core.graph.interference import Interference
from slipstream.core.graph.schedulers import Scheduler
from slipstream.core.graph.substages import StageKind, SubStage, SubStageGraph
from slipstream.core.graph.view import View

GANGS = (StageKind.LOGPROB, StageKind.TRAIN, StageKind.SYNC)
MOST_NODES = 10


@dataclass(frozen=True)
class Instance:
    """Pipelines of one step each on a few workers; seconds of nodes are slots."""

    workers: int
    graphs: tuple[SubStageGraph, ...]
    floors: tuple[tuple[float, float], ...]
    """Memory of decode and of gang stages, by pipeline."""
    rates: np.ndarray
    """float64[KINDS, KINDS], whole hundredths."""

    @property
    def nodes(self) -> int:
        """Sub-stages of all pipelines."""
        return sum(len(graph.nodes) for graph in self.graphs)


def draw(seed: int) -> Instance:
    """Return a random instance with up to `MOST_NODES` sub-stages."""
    random = np.random.default_rng(seed)
    while True:
        workers = int(random.integers(1, 4))
        graphs = tuple(_graph(random, f"p{p}", workers) for p in range(int(random.integers(2, 4))))
        if sum(len(graph.nodes) for graph in graphs) <= MOST_NODES:
            break
    floors = tuple((0.35, 0.5) if random.random() < 0.8 else (0.5, 0.8) for _ in graphs)
    rates = np.round(Interference(scale=float(random.choice([0.5, 1.0, 2.0]))).rates(), 2)
    return Instance(workers, graphs, floors, rates)


def _graph(random: np.random.Generator, name: str, workers: int) -> SubStageGraph:
    nodes: list[SubStage] = []
    edges: list[tuple[int, int]] = []
    last = []
    for worker in range(workers):
        loads = sorted(random.choice(5, size=int(random.integers(1, 3)), replace=False), reverse=True)
        for i, load in enumerate(loads):
            seconds = float(random.integers(1, 6))
            nodes.append(SubStage(len(nodes), StageKind.DECODE, (worker,), seconds, int(load)))
            if i:
                edges.append((len(nodes) - 2, len(nodes) - 1))
        last.append(len(nodes) - 1)
    for kind in GANGS[: int(random.integers(1, 3))] if random.random() < 0.5 else (StageKind.TRAIN,):
        everyone = tuple(range(workers))
        nodes.append(SubStage(len(nodes), kind, everyone, float(random.integers(1, 6))))
        edges += [(each, len(nodes) - 1) for each in last]
        last = [len(nodes) - 1]
    return SubStageGraph(name, 0, tuple(nodes), tuple(edges))


def serial_slots(instance: Instance) -> float:
    """Return the slots of the pipelines one after another."""
    return sum(graph.critical_path() for graph in instance.graphs)


def world_of(instance: Instance) -> tuple[World, Curves]:
    """Return the compiled world of an instance: no merges, no work ahead."""
    count, workers = len(instance.graphs), instance.workers
    curves = new_curves(count * workers, 1)
    stages = np.zeros((count, 1, 3))
    rest = np.zeros((count, 2))
    for p, graph in enumerate(instance.graphs):
        for node in graph.nodes:
            if node.kind is not StageKind.DECODE:
                stages[p, 0, GANGS.index(node.kind)] = node.seconds
                continue
            index = p * workers + node.workers[0]
            piece = curves.pieces[index]
            curves.end[index, piece] = node.seconds + (curves.end[index, piece - 1] if piece else 0.0)
            curves.load[index, piece] = node.load
            curves.pieces[index] += 1
        rest[p, 0] = graph.critical_path()
    curves.used[0] = count * workers
    ones = np.ones(count)
    world = World(
        iteration=ones,
        per_request=ones,
        prefill=0.0 * ones,
        prompt=0.0 * ones,
        crowd=ones,
        steps=np.ones(count, np.int64),
        staleness=np.zeros(count, np.int64),
        stages=stages,
        floors=np.array(instance.floors),
        rest=rest,
        cap=np.full(count, np.inf),
        layouts=np.array([workers], np.int64),
        preferred=np.zeros(count, np.int64),
        dealt=np.arange(0, count * workers, workers).reshape(count, 1, 1),
        group_end=np.full((count, 1, 1), np.inf),
        group_share=np.ones((count, 1, 1)),
        rates=instance.rates,
        allowed=np.array([flag in (Flag.PAUSE, Flag.SUBSET, Flag.CORUN) for flag in Flag], np.int64),
        quantum=1.0,
    )
    return world, curves


def run(instance: Instance, scheduler: Scheduler) -> int:
    """Return the slots that a scheduler takes."""
    world, curves = world_of(instance)
    state = new_state(len(instance.graphs), instance.workers)
    view = View(world, curves, horizon=float("inf"))
    occupied = np.zeros((instance.workers, 2), np.int64)
    while (state.finished < 0).any():
        for target, source in zip(view.state, state, strict=True):
            target[:] = source
        apply_all(world, curves, state, occupied, scheduler.decide(view))
        if not advance(world, curves, state, occupied, np.zeros((0, 7)), np.zeros(1, np.int64)):
            raise RuntimeError(f"{scheduler} leaves everything waiting at slot {state.clock[0]}")
    return round(float(state.finished.max()))
