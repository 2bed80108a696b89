"""Drafting in replays: what it must not know, and that it beats a recency n-gram on what it was not tuned for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drafters import RecencyNgram, Slipstream
from replay import MODES, replay
from rollouts import Conversation, RolloutSet, Turn, generated, recorded

COST = 0.1


@pytest.mark.parametrize("mode", MODES)
def test_text_that_was_never_seen_is_never_guessed(mode: str) -> None:
    unseen = RolloutSet("unseen")
    fresh = iter(range(1000, 100_000))
    for task in "ab":
        for _ in range(4):
            response = np.array([next(fresh) for _ in range(150)], np.int32)
            prompt = np.arange(20, dtype=np.int32)
            unseen.tasks.setdefault(task, []).append(
                Conversation(np.concatenate([prompt, response]), [Turn(prompt.size, response)])
            )
    tally = replay(unseen, mode, Slipstream(threshold=0.02))
    assert tally.accepted == 0
    assert tally.emitted == tally.steps > 0


@pytest.mark.parametrize("mode", MODES)
def test_generated_siblings(mode: str) -> None:
    siblings = generated(tasks=6, attempts=8, seed=3)
    ours, ngram = replay(siblings, mode, Slipstream(verify_cost=COST)), replay(siblings, mode, RecencyNgram())
    assert ours.emitted == ngram.emitted
    assert ours.speed(COST) > ngram.speed(COST) * (0.97 if mode == "prompt" else 1.05)  # alone there is nothing to copy


@pytest.mark.parametrize("mode", MODES)
def test_recorded_rollouts(data_dir: Path, mode: str) -> None:
    for rollouts in recorded(data_dir, attempts=6, tasks=6):
        if mode in ("prompt", "epoch") or any(len(attempts) > 1 for attempts in rollouts.tasks.values()):
            ours, ngram = replay(rollouts, mode, Slipstream(verify_cost=COST)), replay(rollouts, mode, RecencyNgram())
            assert ours.emitted == ngram.emitted > 0
            assert ours.speed(COST) > ngram.speed(COST), rollouts.name


def test_a_fixed_seed_gives_the_same_drafts() -> None:
    siblings = generated(tasks=3, attempts=4)
    first, second = (replay(siblings, "sync", Slipstream(threshold=0.2)) for _ in range(2))
    assert first == second
