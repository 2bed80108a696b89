"""Every metric that slipstream adds to a framework's tracker: its name, and what it means.

The names are the same under every framework: `slipstream/<part>/<metric>`; a part that is not in use has none.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

PREFIX: Final = "slipstream/"


class Metric(msgspec.Struct, frozen=True):
    """One metric, or a family whose name has a part in angle brackets."""

    name: str
    """Without the prefix."""
    meaning: str

    def labels(self, name: str) -> dict[str, str] | None:
        """Return what stands for the parts in angle brackets in `name` (without the prefix); None if it is another."""
        pattern = re.sub(r"<(\w+)>", r"(?P<\1>[^/]+?)", self.name)
        found = re.fullmatch(pattern, name)
        return None if found is None else found.groupdict()

    @property
    def exposed(self) -> str:
        """The name that Prometheus sees; the parts in angle brackets are labels there."""
        plain = re.sub(r"_?<\w+>", "", self.name).replace("/", "_").replace("__", "_")
        return f"slipstream_{plain}"


METRICS: Final[tuple[Metric, ...]] = (
    Metric("weight_sync/version", "version that every engine worker holds"),
    Metric("weight_sync/seconds", "s from the first extraction to the last acknowledgement, without the audit"),
    Metric("weight_sync/stage_seconds", "s of these on the trainer: gather, compare, encode"),
    Metric("weight_sync/deliver_seconds", "s of these from the first message to the last acknowledgement"),
    Metric("weight_sync/apply_seconds", "s of these on the slowest engine worker: decode and write"),
    Metric("weight_sync/payload_mbytes", "MB sent to one set of workers that together hold the model once"),
    Metric("weight_sync/dense_mbytes", "MB that the same tensors take, each in its own dtype"),
    Metric("weight_sync/changed_share", "share of the elements whose bits changed"),
    Metric("weight_sync/seeded_workers", "engine workers that were sent everything"),
    Metric("weight_sync/late_workers", "engine workers that had missed syncs and caught up"),
    Metric("weight_sync/level", "codec level: 0, 1 or 2"),
    Metric("weight_sync/audit_seconds", "s of the dense load and its comparison, where there was an audit"),
    Metric("weight_sync/unverified_tensors", "tensors that the engine's own loader wrote, which no fingerprint covers"),
    Metric("weight_sync/chain_wait_seconds", "s that the sync waited for files of the version before (with a chain)"),
    Metric("weight_sync/chain_failures", "versions so far that were not written as files (with a chain)"),
    Metric("drafter/acceptance", "accepted per verified token"),
    Metric("drafter/tokens_per_step", "tokens that a request got per step of the engine; 1 without drafts"),
    Metric("drafter/drafted", "tokens drafted"),
    Metric("drafter/verified", "tokens that the engine verified of these"),
    Metric("drafter/accepted", "tokens accepted of these"),
    Metric("drafter/emitted", "tokens that requests got in all"),
    Metric("drafter/seconds", "s spent drafting, all replicas"),
    Metric("drafter/off_share", "share of engine steps that the load switch kept plain"),
    Metric("drafter/drafting", "share of replicas that draft at the end of the step"),
    Metric("drafter/turned_on", "times that the load switch turned drafts on"),
    Metric("drafter/turned_off", "times that it turned them off"),
    Metric("drafter/probes", "steps of the kind that was not chosen, to measure it"),
    Metric("drafter/fed", "rollouts that replicas got from others"),
    Metric("drafter/history_tokens", "tokens in the history of a replica, mean"),
    Metric("drafter/history_mbytes", "MB that these take"),
    Metric("router/queue_mean", "requests that waited for admission, mean of two samples a second"),
    Metric("router/queue_max", "the most"),
    Metric("router/wait_seconds_mean", "s from a request's arrival to its admission, mean"),
    Metric("router/wait_seconds_max", "the longest"),
    Metric("router/hit_rate", "share of prompt tokens found in a cache"),
    Metric("router/prompt_tokens", "prompt tokens of all answers"),
    Metric("router/recomputed_tokens", "of these, computed again though computed before under these weights"),
    Metric("router/parked", "returning turns that had to wait for room"),
    Metric("router/return_moves", "returning turns that went to another replica"),
    Metric("router/migrations", "requests moved in the middle of a turn"),
    Metric("router/evacuated", "requests that went on elsewhere because their replica left or failed"),
    Metric("router/imbalance", "output tokens of the busiest replica over the mean"),
    Metric("router/replicas", "replicas in use"),
    Metric("router/replica_<replica>/running", "requests in flight at this replica, mean"),
    Metric("router/replica_<replica>/answers", "answers of this replica"),
    Metric("router/replica_<replica>/output_tokens", "tokens that it wrote"),
    Metric("router/replica_<replica>/hit_rate", "share of its prompt tokens found in its cache"),
    Metric("placement/granted", "leases that the arbiter granted"),
    Metric("placement/shared", "of these, with another run beside"),
    Metric("placement/alone", "stages that went on without an arbiter"),
    Metric("placement/adopted", "leases that a new arbiter took over"),
    Metric("placement/rollout_wait_seconds", "s that rollouts waited for their lease"),
    Metric("placement/gang_wait_seconds", "s that all other stages did"),
    Metric(
        "placement/prediction_error",
        "mean relative error of predicted lengths and stage times; 1 before the second step",
    ),
    Metric("placement/overlapped_rows", "rows whose old log-probabilities were computed during the rollout"),
    Metric("placement/<stage>_seconds", "s of one stage, by verl's name for it, without waiting"),
)
"""In the order of the page `docs/metrics.md`, which has them all; one that could be two is the first."""


def metric_of(name: str) -> tuple[Metric, dict[str, str]] | None:
    """Return the metric that the tracker calls `name` and its labels, or None where `name` is not slipstream's."""
    if not name.startswith(PREFIX):
        return None
    for metric in METRICS:
        labels = metric.labels(name.removeprefix(PREFIX))
        if labels is not None:
            return metric, labels
    return None
