"""Builds what the compiled core works on from a workload and lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.graph.compiled.belief import add_rollouts
from slipstream.core.graph.compiled.model import Curves, Flag, Floats, World, new_curves
from slipstream.core.graph.static_plans import exclusive_seconds, rollout_seconds
from slipstream.core.graph.workload import Pipeline, Workload

ALL_ACTIONS = frozenset(Flag)


def layout_sizes(workers: int, pipelines: int) -> list[int]:
    """Return how many workers a fresh rollout may be dealt to: all, a half, an even share."""
    if pipelines == 1:
        return [workers]
    return [workers, *sorted({size for size in (workers // 2, workers // pipelines) if 0 < size < workers})]


def build_world(
    workload: Workload,
    lengths: Sequence[Sequence[Floats]],
    expected: Sequence[Sequence[Floats]],
    *,
    group: int = 1,
    allowed: frozenset[Flag] = ALL_ACTIONS,
    rates: Floats | None = None,
    merged_steps: int = 6,
) -> tuple[World, Curves]:
    """Return the world of a workload, and an arena with the curves of all fresh rollouts.

    Args:
        lengths: by pipeline and step, float64[n] tokens of each request.
        expected: the same as the planner believes it.
        group: real workers that one worker of this world stands for; must divide them.
        allowed: which actions there are.
        rates: float64[KINDS, KINDS]; None for the workload's own.
        merged_steps: the arena has room for two merges in so many steps of every pipeline.
    """
    pipelines = workload.pipelines
    count, workers = len(pipelines), workload.workers // group
    steps = max(len(each) for each in lengths)
    layouts = layout_sizes(workers, count)
    requests = sum(each[0].size for each in lengths)
    fresh = steps * len(layouts)
    groups = max(-(-each[0].size // p.group) for each, p in zip(lengths, pipelines, strict=True))
    curves = new_curves(
        count * (fresh * workers + workers + 2 * workers * merged_steps) + 8,
        requests * (fresh + 3 + 4 * merged_steps) + 64,
    )
    world = World(
        iteration=np.array([each.decode.iteration for each in pipelines]),
        per_request=np.array([each.decode.per_request for each in pipelines]),
        prefill=np.array([each.decode.prefill for each in pipelines]),
        prompt=np.array([each.prompt_tokens for each in pipelines]),
        crowd=np.array([4.0 * -(-each[0].size // workload.workers) for each in lengths]),
        steps=np.array([len(each) for each in lengths], np.int64),
        staleness=np.array([each.staleness for each in pipelines], np.int64),
        stages=np.zeros((count, steps, 3)),
        floors=np.array([(each.memory.decode, each.memory.train) for each in pipelines]),
        rest=np.zeros((count, steps + 1)),
        cap=_caps(workload, expected),
        layouts=np.array(layouts, np.int64),
        preferred=np.zeros(count, np.int64),
        dealt=np.full((count, steps, len(layouts)), -1, np.int64),
        group_end=np.full((count, steps, groups), np.inf),
        group_share=np.ones((count, steps, groups)),
        rates=workload.rates if rates is None else rates,
        allowed=np.array([flag in allowed for flag in Flag], np.int64),
        quantum=0.0,
    )
    fill_steps(world, curves, workload, lengths, expected, group)
    return world, curves


def fill_steps(
    world: World,
    curves: Curves,
    workload: Workload,
    lengths: Sequence[Sequence[Floats]],
    expected: Sequence[Sequence[Floats]],
    group: int,
) -> None:
    """(Re)write everything of a world that comes from lengths."""
    curves.used[:] = 0
    for p, pipeline in enumerate(workload.pipelines):
        stages = pipeline.stages
        world.stages[p, :] = (stages.logprob, stages.train, stages.sync)
        seconds: dict[int, float] = {}
        dealt: dict[int, list[int]] = {}
        for step, tokens in enumerate(lengths[p]):
            key = id(tokens)  # steps that are predicted alike share their curves
            if key not in dealt:
                seconds[key] = rollout_seconds(pipeline, tokens, workload.workers)
                dealt[key] = [
                    add_rollouts(world, curves, p, tokens, expected[p][step], layout, group)
                    for layout in range(world.layouts.size)
                ]
            world.dealt[p, step] = dealt[key]
            _write_groups(world, pipeline, p, step, tokens)
        gang = stages.logprob + stages.train + stages.sync
        world.rest[p, :] = 0.0
        for step in reversed(range(len(lengths[p]))):
            rollout = seconds[id(lengths[p][step])]
            own = rollout + gang if pipeline.staleness == 0 else max(rollout, gang)
            world.rest[p, step] = world.rest[p, step + 1] + own


def _write_groups(world: World, pipeline: Pipeline, p: int, step: int, tokens: Floats) -> None:
    count = -(-tokens.size // pipeline.group)
    padded = np.zeros(count * pipeline.group)
    padded[: tokens.size] = tokens
    members = padded.reshape(count, pipeline.group)
    order = np.argsort(members.max(axis=1), kind="stable")
    world.group_end[p, step, :count] = members.max(axis=1)[order]
    world.group_share[p, step, :count] = np.cumsum(members.sum(axis=1)[order]) / tokens.sum()


def _caps(workload: Workload, expected: Sequence[Sequence[Floats]]) -> Floats:
    alone = exclusive_seconds(workload, expected)
    return np.array(
        [
            np.inf if pipeline.latency_cap is None else pipeline.latency_cap * seconds
            for pipeline, seconds in zip(workload.pipelines, alone, strict=True)
        ]
    )
