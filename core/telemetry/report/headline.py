"""The headline numbers of a run, and how they compare with another's."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from slipstream.core.charts.axes import short
from slipstream.core.telemetry.history import RunHistory
from slipstream.core.telemetry.records import StepFinished

_WARM_UP = 1
"""First steps that no median counts: they compile and fill caches."""


class Figure(msgspec.Struct, frozen=True):
    """One number of a run."""

    name: str
    value: float | None
    """None where the run's log has nothing about it."""
    unit: str = ""
    better: Literal["less", "more", ""] = ""

    @property
    def text(self) -> str:
        """The number with its unit."""
        return "" if self.value is None else short(self.value, self.unit)


def figures(run: RunHistory) -> list[Figure]:
    """Return the figures of a run; medians are over its steps and syncs, without the first step and without seeds."""
    steps = run.steps[_WARM_UP:] if len(run.steps) > 2 else run.steps
    deltas, drafting, routing = run.deltas, run.drafting, run.routing
    sent, dense = _median(sync.payload_bytes for sync in deltas), _median(sync.dense_bytes for sync in deltas)
    audits = {sync.step: sync.audit_seconds for sync in run.syncs if sync.step is not None}
    prompt = sum(each.prompt_tokens for each in routing)
    return [
        Figure("steps", float(len(run.steps))),
        Figure("seconds a step", _median(step.seconds - audits.get(step.step, 0.0) for step in steps), "s", "less"),
        Figure("rollout, seconds a step", _median(step.rollout_seconds for step in steps), "s", "less"),
        Figure("weight sync, seconds a step", _median(_sync_seconds(step, audits) for step in steps), "s", "less"),
        Figure("bytes a sync", sent, "B", "less"),
        Figure("the same densely, computed", dense, "B"),
        Figure("times fewer bytes", dense / sent if sent and dense else None),
        Figure(
            "weights changed a sync",
            _median(sync.changed_elements / max(1, sync.total_elements) for sync in deltas),
            "%",
        ),
        Figure("tokens a second", _median(step.tokens_per_second for step in steps), "", "more"),
        Figure("mean response, tokens", _median(step.response_tokens for step in steps)),
        Figure("drafts accepted", _share((each.accepted, each.verified) for each in drafting), "%", "more"),
        Figure("tokens a request and engine step", _median(each.tokens_per_step for each in drafting), "", "more"),
        Figure(
            "prompt tokens found in caches",
            sum(each.hit_rate * each.prompt_tokens for each in routing) / prompt if prompt else None,
            "%",
            "more",
        ),
        Figure("migrations", sum(each.migrations for each in routing) if routing else None),
        Figure("reward, first step", run.steps[0].reward if run.steps else None),
        Figure("reward, last step", run.steps[-1].reward if run.steps else None),
    ]


def comparison(runs: Sequence[RunHistory], baseline: RunHistory | None) -> list[list[str]]:
    """Return the rows of a table: a figure a row, a run a column, the baseline first; figures that no run has are left
    out. With a baseline, what is better by how much stands behind the value."""
    columns = [figures(run) for run in ([baseline] if baseline is not None else []) + list(runs)]
    head = ["", *([f"baseline: {baseline.name}"] if baseline is not None else []), *(run.name for run in runs)]
    rows = [head]
    for line in zip(*columns, strict=True):
        if any(figure.value is not None for figure in line):
            texts = [figure.text for figure in line]
            if baseline is not None:
                texts[1:] = [text + _against(figure, line[0]) for text, figure in zip(texts[1:], line[1:], strict=True)]
            rows.append([line[0].name, *texts])
    return rows


def _against(figure: Figure, other: Figure) -> str:
    if not figure.better or not figure.value or not other.value:
        return ""
    ratio = other.value / figure.value if figure.better == "less" else figure.value / other.value
    return f"  ({ratio:.2f}x)"


def _sync_seconds(step: StepFinished, audits: dict[int, float]) -> float | None:
    """Without the audit, which the baseline has not."""
    return None if step.sync_seconds is None else step.sync_seconds - audits.get(step.step, 0.0)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def _share(pairs: Iterable[tuple[float, float]]) -> float | None:
    parts, wholes = 0.0, 0.0
    for part, whole in pairs:
        parts, wholes = parts + part, wholes + whole
    return parts / wholes if wholes else None
