"""What the demo prints when both runs have ended: the comparison, and under which conditions it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.plugins.verl.demo.runner import RunResult

__all__ = [
    "NATIVE",
    "OVERRIDE",
    "Comparison",
    "Syncs",
    "conditions",
    "print_comparison",
    "print_table",
    "speed",
    "verdict_of",
]

NATIVE = "verl's default"
OVERRIDE = "+slipstream=sync"
FIXED_COSTS_SECONDS = 0.1
"""Below it, a sync is messages and thread switches; two runs of the same command differ by a factor."""


@dataclass(frozen=True)
class Syncs:
    """What the event log says about the syncs of one run."""

    events: list[dict[str, Any]]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        """Syncs after the dense seed."""
        return [event for event in self.events if event["seeded_workers"] == 0]

    @property
    def identical(self) -> int:
        """Syncs after which the engine was loaded densely by vLLM's own loader and no checksum changed."""
        return sum(event["audited_tensors"] > 0 for event in self.events)

    def median(self, *keys: str) -> float:
        """Median over the deltas of a sum of fields."""
        return float(statistics.median(sum(event[key] for key in keys) for event in self.deltas))

    @property
    def changed_share(self) -> float:
        """Share of elements that changed, over all deltas."""
        return self.median("changed_elements") / float(self.deltas[0]["total_elements"])


def speed(native: Sequence[float], ours: Sequence[float]) -> str:
    """Compare the seconds of two runs' syncs, where their steps allow it.

    A ratio of fixed costs, or one that the next run would not repeat, is noise.
    """
    before, after = statistics.median(native), statistics.median(ours)
    if max(before, after) < FIXED_COSTS_SECONDS:
        return "fixed costs"
    if min(len(native), len(ours)) < 3:
        return "too few steps to tell"
    if abs(before - after) <= max(_spread(native), _spread(ours)):
        return "fixed costs, within the spread of the steps"
    return f"{before / after:.1f}x faster" if after <= before else f"{after / before:.1f}x slower"


def _spread(seconds: Sequence[float]) -> float:
    """Return the range of the middle half: one slow first step says nothing about the others."""
    lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return upper - lower


@dataclass(frozen=True)
class Comparison:
    """What the table says about two runs of the same training, without and with slipstream."""

    native_seconds: Sequence[float]
    """Of each sync."""
    our_seconds: Sequence[float]
    native_rewards: Sequence[float]
    """Mean of each step."""
    our_rewards: Sequence[float]
    equal: int
    """Responses that are the same in both runs, of `total`."""
    total: int


def print_table(console: Any, native: str, ours: str, found: Comparison, syncs: Syncs) -> None:
    """Print the table of two runs under the titles `native` and `ours`."""
    from rich.table import Table

    dense, payload = syncs.median("dense_bytes"), syncs.median("payload_bytes")
    table = Table("", native, ours, "ratio")
    less = f"{dense / payload:.1f}x less" if payload else "nothing changed"  # no reward differed, so no gradient
    table.add_row("bytes a sync", _bytes(dense), _bytes(payload), less)
    table.add_row(
        "seconds a sync",
        f"{statistics.median(found.native_seconds):.2f}",
        f"{statistics.median(found.our_seconds):.2f}",
        speed(found.native_seconds, found.our_seconds),
    )
    table.add_row("weights changed a step", "", f"{100 * syncs.changed_share:.1f} %", "")
    table.add_row(
        "reward, first to last step",
        f"{found.native_rewards[0]:.2f} to {found.native_rewards[-1]:.2f}",
        f"{found.our_rewards[0]:.2f} to {found.our_rewards[-1]:.2f}",
        "",
    )
    table.add_row("equal responses", "", f"{found.equal} of {found.total}", "")
    console.print(table)


def figures(found: Comparison, syncs: Syncs) -> dict[str, Any]:
    """Return what the table says as numbers, for a result file."""
    dense, payload = syncs.median("dense_bytes"), syncs.median("payload_bytes")
    before, after = statistics.median(found.native_seconds), statistics.median(found.our_seconds)
    return {
        "dense bytes a sync": dense,
        "payload bytes a sync": payload,
        "times fewer bytes": dense / payload if payload else None,
        "native seconds a sync": before,
        "seconds a sync": after,
        "times faster": before / after,
        "changed share": syncs.changed_share,
        "native rewards": list(found.native_rewards),
        "rewards": list(found.our_rewards),
        "equal responses": found.equal,
        "responses": found.total,
        "identical syncs": syncs.identical,
        "syncs": len(syncs.events),
    }


def compared(native: RunResult, ours: RunResult, syncs: Syncs) -> Comparison:
    """The figures of two verl runs."""
    audits = [event["audit_seconds"] for event in syncs.deltas]
    same, total = _equal_responses(native, ours)
    return Comparison(
        native_seconds=[step.update_weights_seconds for step in native.steps],
        our_seconds=[step.update_weights_seconds - audit for step, audit in zip(ours.steps, audits, strict=True)],
        native_rewards=native.rewards,
        our_rewards=ours.rewards,
        equal=same,
        total=total,
    )


def print_comparison(console: Any, native: RunResult, ours: RunResult, syncs: Syncs) -> None:
    """Print the table of the two runs."""
    print_table(console, NATIVE, OVERRIDE, compared(native, ours, syncs), syncs)


def conditions(model: str | None) -> list[str]:
    """Return what a reader has to know about the figures, a line each.

    Args:
        model: as given to the demo.
    """
    lines = [
        f"Seconds of {OVERRIDE} are without the audit (a dense load after every sync), which the demo adds.",
        f"Bytes of {NATIVE} are computed, not measured: every weight in the trainer's dtype.",
        "Both runs use slipstream's CPU test bed (VERL_USE_EXTERNAL_MODULES=slipstream.plugins.verl.cpu), its seeded "
        "agent loop and its ordered replay buffer; these make responses comparable.",
    ]
    if model == "smollm2":
        lines.append("The weights of SmolLM2 are dequantised from Q4_1, with 2 % noise that takes them off its grid.")
    return lines


def verdict(native: RunResult, ours: RunResult, syncs: Syncs) -> tuple[str, bool]:
    """The line that the demo ends with, and whether all is well.

    Well is: every sync of the run (one seed, one a step) was audited and found equal to a dense load, and every
    response is the one that verl's default gave.
    """
    return verdict_of(_equal_responses(native, ours), syncs, expected=len(ours.steps) + 1)


def verdict_of(responses: tuple[int, int], syncs: Syncs, expected: int) -> tuple[str, bool]:
    """The same for any framework: (equal, all) responses of a run that should have done `expected` syncs."""
    equal, total = responses
    line = f"identical: {syncs.identical} of {expected} syncs"
    if equal != total:
        line += f"; {total - equal} of {total} responses differ"
    return line, syncs.identical == expected == len(syncs.events) and equal == total


def _equal_responses(native: RunResult, ours: RunResult) -> tuple[int, int]:
    pairs = [
        pair for step in native.steps for pair in zip(native.rollouts(step.step), ours.rollouts(step.step), strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"
