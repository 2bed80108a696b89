"""Workload shapes of the routing study: multi-turn mixes, single-turn long tail, shared heavy prompt, traces.

Every shape is drawn from a seed: groups of 8 samples, each a resampled recorded attempt with its own lengths and tool
waits. The step before (another seed) gives the history that a predicting policy has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slipstream.core.rollout.requests import Segment
from slipstream.core.rollout.simulation.recorded import (
    Attempt,
    Tasks,
    TraceRequest,
    generated_tasks,
    read_rollouts,
)
from slipstream.core.rollout.simulation.workload import Trajectory, TurnWork, Workload, lengths

GROUP_SIZE = 8
HISTORY_SEED = 100_000
"""Added to a seed for the step before."""

_MIX = {"tau_airline": 0.3, "tau_retail_variants": 0.4, "mint_alfworld_mixtral": 0.2, "sweagent_demos": 0.1}
_GROUP_SHARED = {"mint_alfworld_mixtral": 181, "sweagent_demos": 5}
"""Sets whose groups share the whole first prompt, and how much of it the whole set shares."""


@dataclass(frozen=True)
class Recordings:
    """Token counts of the recorded sets by name."""

    folder: Path | None
    """The folder that holds ``rollouts/``; None for generated stand-ins."""

    def tasks(self, name: str) -> Tasks:
        """Return the attempts of a set by task."""
        return _tasks(self.folder, name)


@cache
def _tasks(folder: Path | None, name: str) -> Tasks:
    path = None if folder is None else folder / "rollouts" / f"{name}.jsonl.zst"
    return generated_tasks(name) if path is None or not path.exists() else read_rollouts(path)


def _lognormal(chance: random.Random, sigma: float) -> float:
    return math.exp(chance.gauss(0.0, sigma))


def _wait(chance: random.Random, scale: float) -> float:
    return scale * min(max(_lognormal(chance, 0.8), 0.3), 5.0)


def multi_turn(data: Recordings, groups: int, seed: int, *, scale: int = 1, waits: float = 1.0) -> list[Trajectory]:
    """Agent loops: 30 % tau airline, 40 % tau retail, 20 % ALFWorld, 10 % SWE-agent.

    :param scale: multiplies every token count.
    :param waits: multiplies tool waits (median 1 s, 0.3 to 5 s).
    """
    chance = random.Random(seed)
    trajectories: list[Trajectory] = []
    for group in range(groups):
        name = chance.choices(list(_MIX), list(_MIX.values()))[0]
        attempts = chance.choice(data.tasks(name))
        _add_group(trajectories, chance, name, group, attempts, _GROUP_SHARED.get(name), scale, waits)
    return trajectories


def recorded_groups(tasks: Tasks, groups: int, seed: int) -> list[Trajectory]:
    """Groups of one recorded set: a group shares its task's system prompt, and all of the first prompt without one."""
    chance = random.Random(seed)
    trajectories: list[Trajectory] = []
    for group in range(groups):
        attempts = chance.choice(tasks)
        common = None if attempts[0].system_tokens else 0
        _add_group(trajectories, chance, "set", group, attempts, common, 1, 1.0)
    return trajectories


def _add_group(
    trajectories: list[Trajectory],
    chance: random.Random,
    name: str,
    group: int,
    attempts: Sequence[Attempt],
    common: int | None,
    scale: int,
    waits: float,
) -> None:
    """Append the samples of one group, each a resampled attempt.

    :param common: tokens that the whole set shares when groups share their first prompt; None when only the system
        prompt is shared.
    """
    opening = attempts[0].system_tokens + attempts[0].inputs[0]
    for _ in range(GROUP_SIZE):
        attempt = chance.choice(attempts)
        if common is None:
            shared = [Segment(("system", name, attempt.system_tokens), scale * attempt.system_tokens)]
            first = attempt.inputs[0]
        else:
            shared = [
                Segment(("system", name), scale * common),
                Segment(("group", group), scale * max(opening - common, 1)),
            ]
            first = 0
        stretch = _lognormal(chance, 0.15)
        turns = tuple(
            TurnWork(
                scale * (before if index else first),
                max(1, round(scale * output * stretch * _lognormal(chance, 0.25))),
                _wait(chance, waits),
            )
            for index, (before, output) in enumerate(zip(attempt.inputs, attempt.outputs, strict=True))
        )
        trajectories.append(Trajectory(len(trajectories), group, tuple(shared), turns))


def single_turn(data: Recordings, groups: int, seed: int, *, cap: int = 30_000) -> list[Trajectory]:
    """Math with a long tail: lengths around 4 x recorded ones, a group-dependent share of very long chains."""
    chance = random.Random(seed)
    tasks, long = data.tasks("math100x8_qwen25math"), data.tasks("longreason25_step1300")
    long_lengths = [attempt.outputs[-1] for task in long for attempt in task]
    trajectories: list[Trajectory] = []
    for group in range(groups):
        task = chance.choice(tasks)
        level = sum(math.log(each.outputs[-1]) for each in task) / len(task) + math.log(4) + chance.gauss(0, 0.3)
        long_share = chance.betavariate(0.25, 4)
        shared = (
            Segment(("system", "math"), task[0].system_tokens),
            Segment(("group", group), task[0].inputs[0]),
        )
        for _ in range(GROUP_SIZE):
            if chance.random() < long_share:
                length = chance.choice(long_lengths) * chance.uniform(0.4, 1.0)
            else:
                length = math.exp(level + chance.gauss(0, 0.6))
            output = max(1, min(cap, round(length)))
            trajectories.append(Trajectory(len(trajectories), group, shared, (TurnWork(0, output),)))
    return trajectories


def heavy_prompt(data: Recordings, groups: int, seed: int) -> list[Trajectory]:
    """Four system prompts of 10,000 tokens, questions of about 400, one to four turns of about 280 tokens."""
    chance = random.Random(seed)
    trajectories: list[Trajectory] = []
    for group in range(groups):
        shared = (
            Segment(("system", chance.randrange(4)), 10_000),
            Segment(("group", group), max(1, round(400 * _lognormal(chance, 0.3)))),
        )
        for _ in range(GROUP_SIZE):
            turns = tuple(
                TurnWork(
                    max(1, round(60 * _lognormal(chance, 0.3))) if index else 0,
                    max(1, round(280 * _lognormal(chance, 0.5))),
                    _wait(chance, 1.0),
                )
                for index in range(chance.randint(1, 4))
            )
            trajectories.append(Trajectory(len(trajectories), group, shared, turns))
    return trajectories


def step(make: Callable[[int], list[Trajectory]], name: str, seed: int) -> Workload:
    """Return the workload of a seed, with the lengths of the step before."""
    return Workload(name, make(seed), lengths(make(seed + HISTORY_SEED)))


def stream(
    requests: Sequence[TraceRequest], name: str, *, offset: int = 0, count: int = 3000, stretch: float = 1.0
) -> Workload:
    """Return an asynchronous workload from a trace: single turns at their times, times multiplied by `stretch`."""
    part = list(requests[offset : offset + count])
    if not part:
        raise ValueError(
            f"{name}: the trace has {len(requests)} requests, none from {offset} on; choose a smaller offset"
        )
    start = part[0].seconds
    return Workload(name, [_single(index, each, (each.seconds - start) * stretch) for index, each in enumerate(part)])


def _single(index: int, request: TraceRequest, arrival: float) -> Trajectory:
    shared: Iterable[Segment] = ()
    if request.blocks:
        left = [min(512, request.input_tokens - 512 * at) for at in range(len(request.blocks))]
        shared = [Segment(block, size) for block, size in zip(request.blocks, left, strict=True) if size > 0]
    own = request.input_tokens - sum(segment.tokens for segment in shared)
    return Trajectory(index, index, tuple(shared), (TurnWork(own, max(1, request.output_tokens)),), arrival)
