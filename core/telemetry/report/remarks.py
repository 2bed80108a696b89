"""What in a run deserves a look, in plain language, with what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from slipstream.core.telemetry.history import RunHistory
from slipstream.core.telemetry.records import FORMAT

MANY_CHANGES: Final = 0.2
"""Share of changed weights from which a delta is hardly smaller than everything."""
LONG_SYNC: Final = 0.25
"""Share of a step that a sync should not take."""
FEW_ACCEPTED: Final = 0.3
FEW_HITS: Final = 0.3
UNEVEN: Final = 1.5
"""Most loaded replica over the mean."""
LONG_WAIT: Final = 0.25
"""Share of the rollout that requests may wait for admission, on average."""


class Advice(msgspec.Struct, frozen=True):
    """One remark."""

    found: str
    do: str


def advice(run: RunHistory) -> list[Advice]:
    """Return the remarks about a run, what matters most first."""
    return [each for look in _LOOKS for each in look(run)]


def _log(run: RunHistory) -> Iterator[Advice]:
    if run.started is not None and run.started.format > FORMAT:
        yield Advice(
            "The log was written by a newer slipstream; some of it may be missing here.",
            "Make the report with the version that ran.",
        )
    if run.unfinished:
        last = run.unfinished[-1]
        yield Advice(
            f"The log ends in the middle of {last.name} of step {last.step}.",
            "The run is still going, or it died there: the end of its own log says why.",
        )
    if run.full:
        yield Advice(
            "The log reached its largest size; the run went on without it.",
            "Name another file with slipstream.events for the rest of the run.",
        )
    if run.earlier_runs:
        yield Advice(
            f"The file also has earlier runs: {run.earlier_runs}. This is the last one.",
            "Leave slipstream.events at auto, or name a new file for each run, to keep them apart.",
        )


def _weights(run: RunHistory) -> Iterator[Advice]:
    seeds = [sync for sync in run.syncs[1:] if sync.is_seed]
    if run.syncs and run.settings_of("weight_sync", "mode") == "dense":
        return
    if seeds:
        yield Advice(
            f"{len(seeds)} of {len(run.syncs)} syncs after the first sent everything (versions {_some(seeds)}).",
            "Engines restarted, missed too many syncs (raise slipstream.weight_sync.history_share), or an error before "
            "them says why: look at the run's log there.",
        )
    deltas = run.deltas
    if not deltas:
        return
    share = statistics.median(sync.changed_elements / max(1, sync.total_elements) for sync in deltas)
    if share > MANY_CHANGES:
        yield Advice(
            f"{100 * share:.0f} % of the weights change in a step, so a delta is hardly smaller than everything.",
            "Usual for a first few steps, a large learning rate or a tiny model; bf16 weights at usual rates change by "
            "about 1 %.",
        )
    seconds = statistics.median(sync.seconds for sync in deltas)
    step = statistics.median([step.seconds for step in run.steps] or [0.0])
    if step and seconds > LONG_SYNC * step:
        part, where, do = max(
            (statistics.median(each), where, do)
            for each, where, do in (
                (
                    [sync.stage_seconds for sync in deltas],
                    "gathering, comparing and encoding on the trainer",
                    "Give the trainer more CPU threads, or try slipstream.weight_sync.snapshot=device.",
                ),
                (
                    [sync.deliver_seconds - sync.apply_seconds for sync in deltas],
                    "messages and transfer",
                    "slipstream.weight_sync.level=2 sends the fewest bytes.",
                ),
                (
                    [sync.apply_seconds for sync in deltas],
                    "decoding and writing on the engines",
                    "slipstream.weight_sync.level=0 decodes fastest.",
                ),
            )
        )
        yield Advice(
            f"A sync takes {seconds:.2g} s, {100 * seconds / step:.0f} % of a step; {where} take {part:.2g} s of it.",
            do,
        )
    unverified = max(sync.unverified_tensors for sync in deltas)
    if unverified:
        yield Advice(
            f"{unverified} tensors are loaded by the engine's own loader, which no fingerprint covers.",
            "slipstream.weight_sync.audit_every=10 compares them with a dense load now and then.",
        )
    late = [sync for sync in deltas if sync.late_workers]
    if late:
        yield Advice(
            f"Engine workers had missed earlier syncs {len(late)} times and caught up (versions {_some(late)}).",
            "Nothing, unless they keep missing them: then look at the engines' logs.",
        )


def _chain(run: RunHistory) -> Iterator[Advice]:
    failed = [each for each in run.chain if each.error]
    if failed:
        yield Advice(
            f"{len(failed)} of {len(run.chain)} versions were not written as files: {failed[-1].error}",
            "Check that slipstream.weight_sync.chain can be written; the next version starts from the last one there.",
        )


def _drafts(run: RunHistory) -> Iterator[Advice]:
    if not run.drafting:
        return
    off = statistics.fmean(each.off_share for each in run.drafting)
    verified = sum(each.verified for each in run.drafting)
    accepted = sum(each.accepted for each in run.drafting) / max(1.0, verified)
    if off > 0.5:
        yield Advice(
            f"The load switch kept {100 * off:.0f} % of the engines' steps without drafts.",
            "Drafting did not pay at this load, by measured times. slipstream/drafter=off saves its memory and lets "
            "vLLM schedule asynchronously.",
        )
    elif verified and accepted < FEW_ACCEPTED:
        yield Advice(
            f"Of the drafted tokens that engines verified, {100 * accepted:.0f} % were accepted.",
            "Responses repeat little so far. It grows with epochs; slipstream.drafter.threshold drafts less.",
        )


def _routes(run: RunHistory) -> Iterator[Advice]:
    if not run.routing:
        return
    evacuated = sum(each.evacuated for each in run.routing)
    if evacuated:
        yield Advice(
            f"{evacuated:.0f} requests went on elsewhere because their replica left or failed.",
            "If none was meant to leave, the replica's log says why.",
        )
    prompt = sum(each.prompt_tokens for each in run.routing)
    hits = sum(each.hit_rate * each.prompt_tokens for each in run.routing) / max(1.0, prompt)
    again = sum(each.recomputed_tokens for each in run.routing)
    if prompt and hits < FEW_HITS and again > 0.1 * prompt:
        yield Advice(
            f"{100 * hits:.0f} % of prompt tokens were found in caches; {100 * again / prompt:.0f} % were computed "
            "again.",
            "Contexts do not stay cached: run fewer trajectories at once, or give the engines more KV memory.",
        )
    uneven = statistics.median(each.imbalance for each in run.routing)
    if uneven > UNEVEN:
        yield Advice(
            f"The busiest replica wrote {uneven:.1f} times as much as the mean.",
            "Usual with few prompts a step or a few very long responses; partial rollouts help.",
        )
    waited = statistics.median(each.wait_seconds_mean for each in run.routing)
    rollout = statistics.median([step.rollout_seconds or 0.0 for step in run.steps] or [0.0])
    if rollout and waited > LONG_WAIT * rollout:
        yield Advice(
            f"Requests waited {waited:.1f} s for admission on average, of {rollout:.1f} s rollout.",
            "The replicas' caches are full: the router holds trajectories back so that contexts stay. More KV memory "
            "or replicas shorten it.",
        )


_LOOKS: Final[Sequence[Callable[[RunHistory], Iterator[Advice]]]] = (_log, _weights, _chain, _drafts, _routes)


def _some(syncs: Sequence[object]) -> str:
    versions = [str(getattr(sync, "target", "")) for sync in syncs]
    return ", ".join(versions[:5]) + (" ..." if len(versions) > 5 else "")
