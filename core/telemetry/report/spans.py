"""A run as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from slipstream.core.charts import Counter, Span, perfetto
from slipstream.core.telemetry.history import RunHistory, StageTime
from slipstream.core.telemetry.records import LeasedStage


def trace(run: RunHistory) -> bytes:
    """Return the trace: stages, the parts of each sync, and what was sent, accepted and running."""
    leases = lease_spans(run.leased, run.begin)
    return perfetto([*stage_spans(run.stages), *leases, *_sync_spans(run)], _counters(run))


def stage_spans(stages: Iterable[StageTime]) -> list[Span]:
    """Return stages as spans, a row each, in the order in which they first ran."""
    return [
        Span(row=stage.name, group=stage.name, name=f"step {stage.step}", start=stage.start, end=stage.end)
        for stage in sorted(stages, key=lambda stage: stage.start)
    ]


def lease_spans(stages: Collection[LeasedStage], begin: float | None = None) -> list[Span]:
    """Return the leased stages of runs that share a cluster, a row each run, pale where it waited for its lease.

    :param begin: Unix seconds where the chart starts; None is when the first of them began to wait.
    """
    if begin is None:
        begin = min((stage.began - stage.waited for stage in stages), default=0.0)
    found = []
    for stage in stages:
        row, group, told = stage.pipeline, stage.stage, f"step {stage.step}"
        start = max(0.0, stage.began - begin)
        wait = max(0.0, start - stage.waited)
        if wait < start:
            found.append(Span(row=row, group=group, name=f"{told}, waits", start=wait, end=start, strength=0.25))
        found.append(Span(row=row, group=group, name=told, start=start, end=start + stage.seconds))
    return sorted(found, key=lambda span: span.start)


def _sync_spans(run: RunHistory) -> Iterator[Span]:
    """The parts of a sync end where its line was written; the audit is the last of them."""
    for sync in run.syncs:
        end = sync.time - run.begin
        for name, seconds in (
            ("audit", sync.audit_seconds),
            ("deliver", sync.deliver_seconds),
            ("stage", sync.stage_seconds),
        ):
            if seconds > 0:
                yield Span(
                    row="weight sync",
                    group=name,
                    name=f"{name}, version {sync.target}",
                    start=max(0.0, end - seconds),
                    end=end,
                    details={"bytes": sync.payload_bytes, "changed": sync.changed_elements},
                )
            end -= seconds


def _counters(run: RunHistory) -> Iterator[Counter]:
    for sync in run.syncs:
        yield Counter("bytes sent", sync.time - run.begin, {"bytes": sync.payload_bytes})
    for drafts in run.drafting:
        at = drafts.time - run.begin
        yield Counter("drafts", at, {"accepted share": drafts.acceptance, "tokens a step": drafts.tokens_per_step})
    for routing in run.routing:
        running = {f"replica {number}": load.running for number, load in routing.replicas.items()}
        yield Counter("requests running", routing.time - run.begin, running)
