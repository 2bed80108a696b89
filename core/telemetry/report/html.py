"""The report as one HTML page that opens offline."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.core.charts import document, escaped, gantt, heat_map, lines, stacked_bars, table
from slipstream.core.telemetry.history import RunHistory
from slipstream.core.telemetry.records import Drafting, ReplicaLoad, Routing, StepFinished
from slipstream.core.telemetry.report.headline import comparison
from slipstream.core.telemetry.report.remarks import advice
from slipstream.core.telemetry.report.spans import lease_spans, stage_spans

_GANTT_STEPS = 4
"""The last steps of a run that its Gantt chart shows; the trace for Perfetto has all."""
_MOST_LEASES = 300
"""The last leased stages that the chart of a shared cluster shows."""


def page(runs: Sequence[RunHistory], baseline: RunHistory | None = None) -> str:
    """Return the page: figures of all runs, then the charts of each.

    :param runs: at least one.
    :param baseline: what the figures are compared with.
    """
    title = "slipstream report: " + ", ".join(run.name for run in runs)
    body = [f"<h1>{escaped(title)}</h1>", table(comparison(runs, baseline))]
    if baseline is not None:
        body.append('<p class="faint">In brackets: how many times better than the baseline. ')
    else:
        body.append('<p class="faint">')
    body.append("Medians over steps and syncs, without the first step, dense seeds and audits.</p>")
    leases = lease_spans([stage for run in runs for stage in run.leased])[-_MOST_LEASES:]
    if leases:
        title = "Runs on the shared cluster; pale: waiting for a lease"
        body.append(_section(title, gantt(leases, "stages of each run")))
    for run in runs:
        charts = _charts(run, baseline)
        if len(runs) == 1:
            body.append(charts)
        else:
            body.append(f"<details open><summary>{escaped(run.name)}</summary>{charts}</details>")
    return document(title, "".join(body))


def _charts(run: RunHistory, baseline: RunHistory | None) -> str:
    parts = [_about(run), *(_remark(each.found, each.do) for each in advice(run))]
    for chart in (_steps, _sync, _layers, _drafts, _routes, _schedule):
        parts.append(chart(run))
    parts.append(_reward(run, baseline))
    return "".join(parts)


def _without_home(path: Path) -> str:
    """A page is shown to others."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _about(run: RunHistory) -> str:
    told = [_without_home(run.path)]
    if run.begin:
        began = datetime.datetime.fromtimestamp(run.begin)
        told.append(f"{began:%Y-%m-%d %H:%M}, {(run.end - run.begin) / 60:.0f} minutes")
    if run.started is not None:
        told.append(", ".join(f"{name} {version}" for name, version in run.started.versions.items()))
        modes = [
            f"{part.replace('_', ' ')} {setting['mode']}"
            for part, setting in run.started.settings.items()
            if isinstance(setting, dict) and "mode" in setting
        ]
        told.append(", ".join(modes))
    return "".join(f'<p class="faint">{escaped(line)}</p>' for line in told)


def _remark(found: str, do: str) -> str:
    return f'<div class="note"><b>{escaped(found)}</b>{escaped(do)}</div>'


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{''.join(parts)}</section>"


def _part(title: str, chart: str) -> str:
    return f"<h3>{escaped(title)}</h3>{chart}"


def _steps(run: RunHistory) -> str:
    if not run.steps:
        return ""
    numbers = [step.step for step in run.steps]
    names = list(dict.fromkeys(name for step in run.steps for name in step.stages))
    # Stages that hardly take time would only fill the legend.
    total = sum(step.seconds for step in run.steps)
    names = [name for name in names if sum(step.stages.get(name, 0.0) for step in run.steps) > 0.005 * total]
    series: list[tuple[str, list[float | None]]] = [
        (name, [step.stages.get(name, 0.0) for step in run.steps]) for name in names
    ]
    rest = [max(0.0, step.seconds - sum(step.stages.get(name, 0.0) for name in names)) for step in run.steps]
    chart = stacked_bars(numbers, [*series, ("other", rest)], "s", "seconds of each stage, a bar a step")
    return _section("Where a step's time goes", chart)


def _sync(run: RunHistory) -> str:
    if not run.syncs:
        return ""
    versions = [sync.target for sync in run.syncs]
    sizes = lines(
        versions,
        [
            ("sent", [sync.payload_bytes for sync in run.syncs]),
            ("everything, densely", [sync.dense_bytes for sync in run.syncs]),
        ],
        "B",
        "bytes of each sync",
        logarithmic=True,
    )
    parts: list[tuple[str, list[float | None]]] = [
        ("gather, compare, encode", [sync.stage_seconds for sync in run.syncs]),
        ("messages and transfer", [max(0.0, sync.deliver_seconds - sync.apply_seconds) for sync in run.syncs]),
        ("decode and write", [sync.apply_seconds for sync in run.syncs]),
    ]
    if any(sync.audited_tensors for sync in run.syncs):
        parts.append(("audit", [sync.audit_seconds for sync in run.syncs]))
    seconds = stacked_bars(versions, parts, "s", "seconds of each part of a sync")
    return _section("Weight sync", _part("Bytes, by version", sizes), _part("Seconds, by version", seconds))


def _layers(run: RunHistory) -> str:
    syncs = [sync for sync in run.deltas if sync.layers]
    names = list(dict.fromkeys(name for sync in syncs for name in sync.layers))
    if not names:
        return ""
    rows: list[tuple[str, list[float | None]]] = [
        (name, [_changed_share(sync.layers.get(name)) for sync in syncs]) for name in names
    ]
    chart = heat_map([sync.target for sync in syncs], rows, "%", "share of changed weights by layer and version")
    return _part("Changed weights by layer and version", chart)


def _changed_share(counts: tuple[int, int] | None) -> float | None:
    return None if counts is None else counts[0] / max(1, counts[1])


def _drafts(run: RunHistory) -> str:
    if not run.drafting:
        return ""
    numbers = _numbers(run.drafting)
    shares: list[tuple[str, list[float | None]]] = [
        ("drafted tokens accepted", [each.acceptance for each in run.drafting]),
        ("engine steps without drafts", [each.off_share for each in run.drafting]),
        ("replicas that draft at the end of the step", [each.drafting for each in run.drafting]),
    ]
    tokens: list[tuple[str, list[float | None]]] = [
        ("tokens a request and engine step", [each.tokens_per_step for each in run.drafting])
    ]
    counts = [sum(getattr(each, name) for each in run.drafting) for name in ("turned_off", "turned_on", "probes")]
    return _section(
        "Drafting",
        _part("Tokens a request gets in a step of the engine; 1 without drafts", lines(numbers, tokens, "", "tokens")),
        _part("Acceptance, and the load switch", lines(numbers, shares, "%", "shares")),
        f'<p class="faint">The switch turned drafts off {counts[0]:.0f} times and on {counts[1]:.0f} times; it tried '
        f"{counts[2]:.0f} times whether they pay.</p>",
    )


def _routes(run: RunHistory) -> str:
    if not run.routing:
        return ""
    numbers = _numbers(run.routing)
    replicas = sorted({number for each in run.routing for number in each.replicas}, key=lambda name: (len(name), name))

    def of(read: Callable[[ReplicaLoad], float | None]) -> list[tuple[str, list[float | None]]]:
        loads = {number: [each.replicas.get(number) for each in run.routing] for number in replicas}
        return [
            (f"replica {number}", [None if load is None else read(load) for load in its])
            for number, its in loads.items()
        ]

    hits = of(lambda load: load.hit_rate)
    moved = [
        ("migrations", [each.migrations for each in run.routing]),
        ("moves on return", [each.return_moves for each in run.routing]),
        ("parked", [each.parked for each in run.routing]),
        ("replica left", [each.evacuated for each in run.routing]),
    ]
    waits: list[tuple[str, list[float | None]]] = [
        ("mean", [each.wait_seconds_mean for each in run.routing]),
        ("longest", [each.wait_seconds_max for each in run.routing]),
    ]
    parts = [
        _part("Requests running, mean", lines(numbers, of(lambda load: load.running), "", "requests running")),
        _part("Output tokens", stacked_bars(numbers, of(lambda load: load.output_tokens), "", "output tokens")),
        _part("Prompt tokens found in the cache", lines(numbers, hits, "%", "cache hits")),
        _part("Seconds that requests wait for admission", lines(numbers, waits, "s", "waits")),
    ]
    if any(value for _, values in moved for value in values):
        parts.append(_part("Requests and trajectories moved", stacked_bars(numbers, moved, "", "moves")))
    else:
        parts.append('<p class="faint">Nothing was moved from one replica to another.</p>')
    return _section("Rollout requests by replica", *parts)


def _schedule(run: RunHistory) -> str:
    steps = sorted({stage.step for stage in run.stages})[-_GANTT_STEPS:]
    spans = stage_spans(stage for stage in run.stages if stage.step in steps)
    if not spans:
        return ""
    title = f"Schedule of steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"Schedule of step {steps[0]}"
    return _section(title, gantt(spans, "what ran when"))


def _reward(run: RunHistory, baseline: RunHistory | None) -> str:
    known = {step.step: step for step in run.steps if step.reward is not None}
    other = {step.step: step for step in (baseline.steps if baseline else []) if step.reward is not None}
    if not known:
        return ""
    numbers = sorted({*known, *other})
    series: list[tuple[str, list[float | None]]] = [("this run", _rewards(known, numbers))]
    if other:
        series.append(("baseline", _rewards(other, numbers)))
    return _section("Reward", lines(numbers, series, "", "mean reward, a point a step"))


def _rewards(steps: dict[int, StepFinished], numbers: Sequence[int]) -> list[float | None]:
    return [steps[number].reward if number in steps else None for number in numbers]


def _numbers(records: Sequence[Drafting | Routing]) -> list[int]:
    return [index + 1 if each.step is None else each.step for index, each in enumerate(records)]
