"""The load switch on engines whose step times are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from slipstream.core.drafter import LoadSwitch, SuffixDrafter
from slipstream.core.drafter.expectation import Expectation


def run(switch: LoadSwitch, batch: int, slope: float, steps: int, gain: float = 2.5, noise: float = 0.02) -> float:
    """Steps of 10 ms plus `slope` ms per drafted token of a row, whose drafts multiply the tokens by `gain`; returns
    the share of drafting in the last half."""
    dice = random.Random(0)
    drafting = 0
    for step in range(steps):
        drafted = batch * dice.choice([3, 4, 5])
        expected = batch * (gain - 1) * dice.uniform(1 - noise, 1 + noise)
        on = not switch.wants_plain(batch) and switch.pays(batch, drafted, expected)
        drafted *= on
        switch.timed(batch, drafted, (0.010 + slope / 1000 * drafted / batch) * dice.uniform(1 - noise, 1 + noise))
        drafting += on and step >= steps // 2
    return drafting / (steps - steps // 2)


def test_cheap_verification_keeps_drafting_on() -> None:
    switch = LoadSwitch()
    assert run(switch, 8, slope=0.2, steps=2000) > 0.95
    assert switch.turned_off == 0
    assert switch.break_even(8, tokens=1, drafted=0) == pytest.approx(0.02, rel=0.5)


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
    assert switch.turned_off + switch.turned_on < 100
    assert switch.probes < 100


@pytest.mark.parametrize("slow", [0, 1, 2, 7, 8, 9, 10, 11, 12, 40])
def test_a_step_in_which_something_was_compiled_does_not_turn_it_off(slow: int) -> None:
    """vLLM's first verification on a CPU, its samplers' kernels on a GPU: seconds instead of milliseconds."""
    switch = LoadSwitch()
    for step in range(60):
        drafted = 4 if not switch.wants_plain(1) and switch.pays(1, 4, 2.0) else 0
        switch.timed(1, drafted, 5.0 if step == slow else 0.050 + 0.005 * drafted)
    assert switch.pays(1, 4, 2.0)
    assert switch.turned_off == 0


@pytest.mark.parametrize("drafting", [(9,), (5, 9), (9, 30, 50)])
def test_a_few_slow_drafts_decide_nothing(drafting: tuple[int, ...]) -> None:
    """A first answer has little to copy: the step in which something was compiled was one of two that drafted."""
    switch = LoadSwitch()
    for step in range(64):
        drafted = 1 if step in drafting and not switch.wants_plain(1) and switch.pays(1, 1, 0.3) else 0
        switch.timed(1, drafted, 5.0 if drafted else 0.045)
    assert switch.wants_drafts(1)
    assert switch.pays(1, 1, 0.3)


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_drafted_step_after_plain_ones_may_be_slow(first: int) -> None:
    """The first samples of a prompt have nothing to copy; a later one is the first to draft."""
    switch = LoadSwitch()
    for step in range(200):
        drafted = 4 if step >= 40 and not switch.wants_plain(1) and switch.pays(1, 4, 2.0) else 0
        switch.timed(1, drafted, 5.0 if step in (first, 40) else 0.050 + 0.005 * drafted)
    assert switch.pays(1, 4, 2.0)
    assert switch.turned_off == 0


def test_it_decides_early_and_probes_cost_a_hundredth() -> None:
    """Verification so dear that four probing steps every 64 would take a third of all time."""
    switch = LoadSwitch()
    run(switch, 64, slope=50.0, steps=12)
    assert not switch.pays(64, 4 * 64, 1.5 * 64)
    run(switch, 64, slope=50.0, steps=16)
    assert not switch.wants_drafts(64)
    drafting = run(switch, 64, slope=50.0, steps=20_000)
    assert drafting * (0.010 + 0.050 * 4) < 0.012 * 0.010
    assert switch.probes >= 2, "and yet it asks again"


def test_senseless_times_are_ignored() -> None:
    switch = LoadSwitch()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        switch.timed(8, 8, seconds)
    switch.timed(0, 0, 1.0)
    assert switch.wants_drafts(8)
    assert switch.break_even(8, tokens=1, drafted=0) is None


class Replica:
    """A drafter on an engine whose steps take known times; drafts are right where the written text goes on so."""

    def __init__(self, cost: Callable[[float], float]) -> None:
        """:param cost: time of a step that drafts so many tokens a row, over one without drafts."""
        self.drafter = SuffixDrafter()
        self.cost = cost
        self.drafted: list[int] = []  # of each step
        self._requests = 0

    def answer(self, texts: list[list[int]], group: str) -> tuple[int, float]:
        """Write texts at once; returns steps, and seconds over those without drafts."""
        names = list(range(self._requests, self._requests + len(texts)))
        self._requests += len(texts)
        for name in names:
            self.drafter.start(name, [1, 2, 3], group)
        left = dict(zip(names, texts, strict=True))
        emitted = [left[name][:1] for name in names]
        steps, spent = 0, 0.0
        while True:
            left = {n: rest[len(e) :] for (n, rest), e in zip(left.items(), emitted, strict=True)}
            drafts = self.drafter.step(list(left), emitted, [len(rest) for rest in left.values()])
            live = [(n, d.tolist()) for n, d in zip(left, drafts, strict=True) if left[n]]
            for name in [name for name, rest in left.items() if not rest]:
                self.drafter.finish(name)
                del left[name]
            if not live:
                return steps, spent / (0.05 * max(map(len, texts)))
            emitted = []
            for name, draft in live:
                rest = left[name]
                right = next((i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), len(draft))
                emitted.append(rest[: right + 1])
            drafted = sum(len(draft) for _, draft in live)
            seconds = 0.05 * (self.cost(drafted / len(live)) if drafted else 1.0)
            self.drafter.timed(len(live), drafted, seconds)
            self.drafted.append(drafted)
            spent += seconds
            steps += 1


def on_a_cpu(drafted: float) -> float:
    """Of SmolLM2-135M in vLLM, fp32, one request: one drafted token nearly doubles a step, ten are little more."""
    return 1.8 + 0.05 * (drafted - 1)


def weak(random: np.random.Generator, tokens: int) -> list[int]:
    """Any token may follow any other: drafts of one token, of which three in four are refused."""
    return random.integers(10, 14, tokens).tolist()


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_refused_weak_drafts_do_not_keep_copies_from_being_drafted(batch: int) -> None:
    """The first answer's drafts of one token were refused at 1.84 of a plain step each, and what came then was not
    drafted though it was a copy. Of large batches that are off only a few requests are looked at in a step."""
    replica = Replica(on_a_cpu)
    random = np.random.default_rng(0)
    replica.answer([weak(random, 300) for _ in range(batch)], "weak")
    assert 4 <= sum(drafted > 0 for drafted in replica.drafted) <= 20, "a few were tried"
    assert not replica.drafter.load.wants_drafts(batch)
    answers = [random.permutation(5000)[:150].tolist() for _ in range(batch)]
    replica.answer(answers, "g")
    steps, seconds = replica.answer(answers, "g")
    assert steps < 150 / 5
    assert seconds < 0.5


def test_noise_does_not_keep_drafts_short() -> None:
    """On a busy host copies of 16 tokens a step became copies of 3: what noise there was between drafts of about that
    length passed for the cost of a token, which made longer ones seem too dear."""
    switch = LoadSwitch()
    for milliseconds in (89, 97, 92, 89, 88, 86, 142, 89):
        switch.timed(1, 0, milliseconds / 1000)
    measured = [(1, 90), (1, 92), (3, 108), (4, 110), (4, 122), (4, 115), (5, 284), (4, 191), (4, 112), (4, 117)]
    for drafted, milliseconds in measured * 3:
        switch.timed(1, drafted, milliseconds / 1000)
    certain = switch.break_even(1, tokens=5, drafted=4)
    assert certain is not None
    assert certain < 0.6


def test_confident_drafts_that_are_refused_stay_off_until_they_would_be_right() -> None:
    switch, expectation = LoadSwitch(), Expectation()
    confident, others, drafted = np.float32([6.0]), np.float32([1.5]), np.int32([8])

    def step(accepted: int) -> bool:
        on = not switch.wants_plain(1) and switch.pays(1, 8, expectation.of(confident, drafted))
        if on:
            expectation.observed(6.0, accepted)
        switch.timed(1, 8 if on else 0, 0.05 * (on_a_cpu(8) if on else 1.0))
        return on

    assert sum(step(accepted=0) for _ in range(100)) <= 8
    assert not switch.wants_drafts(1)
    assert sum(step(accepted=0) for _ in range(20_000)) * (on_a_cpu(8) - 1) < 0.01 * 20_000
    assert expectation.of(others, drafted) == 1.5, "the refusal of one kind says nothing of another"
    for _ in range(12):
        expectation.observed(6.0, 6)  # as plain steps showed
    assert sum(step(accepted=6) for _ in range(100)) > 90


def test_off_steps_draft_nothing_and_are_counted() -> None:
    it = SuffixDrafter()
    it.start("r", [1, 2, 3])
    it.load.pays = lambda *_: False  # type: ignore[method-assign]
    assert it.step(["r"], [[1, 2, 3, 1, 2]])[0].size == 0
    assert it.counters.steps_off == 1
    assert it.counters.proposals == 0
    it.load.pays = lambda *_: True  # type: ignore[method-assign]
    assert it.step(["r"], [[3, 1]])[0].tolist()[:2] == [2, 3]  # text that came while it was off is known


def test_drafts_that_are_not_verified_are_compared_with_what_is_written() -> None:
    it = SuffixDrafter()
    it.load.pays = lambda *_: False  # type: ignore[method-assign]
    copied = list(range(100, 200))
    for name, text in (("a", copied), ("copy", copied), ("other", copied[:30] + copied[::-1])):
        it.start(name, [1, 2, 3], "g")
        for token in text:
            it.step([name], [[token]])
        it.finish(name)
        if name == "copy":
            right = it.expectation.of(np.float32([6.0]), np.int32([16]))
            assert right > 6.0, "chances are too low for what is always right"
    assert it.expectation.of(np.float32([6.0]), np.int32([16])) < right
    assert it._watched == 0
