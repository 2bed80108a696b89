"""The load switch on engines whose step times are known."""

from __future__ import annotations

import random

import pytest

from slipstream.core.drafter import LoadSwitch, SuffixDrafter


def run(switch: LoadSwitch, batch: int, slope: float, steps: int, gain: float = 2.5, noise: float = 0.02) -> float:
    """Steps of 10 ms plus `slope` ms per drafted token of a row; returns the share of drafting in the last half."""
    dice = random.Random(0)
    drafting = 0
    for step in range(steps):
        on = switch.wants_drafts(batch)
        drafted = batch * dice.choice([3, 4, 5]) if on else 0
        seconds = (0.010 + slope / 1000 * drafted / batch) * dice.uniform(1 - noise, 1 + noise)
        emitted = round(batch * gain) if on else batch
        switch.timed(batch, drafted, emitted, seconds)
        drafting += on and step >= steps // 2
    return drafting / (steps - steps // 2)


def test_cheap_verification_keeps_drafting_on() -> None:
    switch = LoadSwitch()
    assert run(switch, 8, slope=0.2, steps=2000) > 0.95
    assert switch.turned_off == 0
    assert switch.cost(8) == pytest.approx(0.02, rel=0.5)


def test_dear_verification_turns_it_off_and_less_load_on_again() -> None:
    """ArcticInference #185, SGLang #13376: slower than no speculation at high concurrency."""
    switch = LoadSwitch()
    assert run(switch, 64, slope=8.0, steps=2000) < 0.05
    assert switch.turned_off == 1
    assert run(switch, 4, slope=0.2, steps=1000) > 0.9  # another load is another decision
    assert run(switch, 64, slope=0.2, steps=20_000) > 0.9  # and the first one is revised
    assert switch.turned_on == 1


def test_noise_at_break_even_does_not_flip_it_all_the_time() -> None:
    switch = LoadSwitch()
    run(switch, 16, slope=3.75, steps=5000, noise=0.1)  # 2.5 tokens for 2.5 times the time
    assert switch.turned_off + switch.turned_on <= 6


@pytest.mark.parametrize("slow", [0, 1, 2, 7, 8, 9, 10, 11, 12, 40])
def test_a_step_in_which_something_was_compiled_does_not_turn_it_off(slow: int) -> None:
    """vLLM's first verification on a CPU, its samplers' kernels on a GPU: seconds instead of milliseconds."""
    switch = LoadSwitch()
    for step in range(60):
        drafted = 4 if switch.wants_drafts(1) else 0
        seconds = 5.0 if step == slow else 0.050 + 0.005 * drafted
        switch.timed(1, drafted, 3 if drafted else 1, seconds)
    assert switch.wants_drafts(1)
    assert switch.turned_off == 0


@pytest.mark.parametrize("drafting", [(9,), (5, 9), (9, 30, 50)])
def test_a_few_slow_drafts_decide_nothing(drafting: tuple[int, ...]) -> None:
    """A first answer has little to copy: the step in which something was compiled was one of two that drafted."""
    switch = LoadSwitch()
    for step in range(64):
        drafted = 1 if step in drafting and switch.wants_drafts(1) else 0
        switch.timed(1, drafted, 1, 5.0 if drafted else 0.045)
    assert switch.wants_drafts(1)


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_drafted_step_after_plain_ones_may_be_slow(first: int) -> None:
    """The first samples of a prompt have nothing to copy; a later one is the first to draft."""
    switch = LoadSwitch()
    for step in range(200):
        drafted = 4 if step >= 40 and switch.wants_drafts(1) else 0
        seconds = 5.0 if step in (first, 40) else 0.050 + 0.005 * drafted
        switch.timed(1, drafted, 3 if drafted else 1, seconds)
    assert switch.wants_drafts(1)
    assert switch.turned_off == 0


def test_it_decides_early_and_probes_cost_a_hundredth() -> None:
    """Verification so dear that four probing steps every 64 would take a third of all time."""
    switch = LoadSwitch()
    run(switch, 64, slope=50.0, steps=12)
    assert not switch.wants_drafts(64)
    drafting = run(switch, 64, slope=50.0, steps=20_000)
    assert drafting * (0.010 + 0.050 * 4) < 0.012 * 0.010
    assert switch.probes >= 2, "and yet it asks again"


def test_senseless_times_are_ignored() -> None:
    switch = LoadSwitch()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        switch.timed(8, 8, 8, seconds)
    switch.timed(0, 0, 0, 1.0)
    assert switch.wants_drafts(8)
    assert switch.cost(8) is None


def test_off_steps_draft_nothing_and_are_counted() -> None:
    it = SuffixDrafter()
    it.start("r", [1, 2, 3])
    it.load.wants_drafts = lambda batch: False  # type: ignore[method-assign]
    assert it.step(["r"], [[1, 2, 3, 1, 2]])[0].size == 0
    assert it.counters.steps_off == 1
    assert it.counters.proposals == 0
    it.load.wants_drafts = lambda batch: True  # type: ignore[method-assign]
    assert it.step(["r"], [[3, 1]])[0].tolist()[:2] == [2, 3]  # text that came while it was off is known
