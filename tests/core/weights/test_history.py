"""What is remembered of earlier updates: enough for those that missed them, within its budget."""

from __future__ import annotations

import numpy as np
import peak_memory
import pytest
import torch
from toy_engine import Pair

from slipstream.core.weights.history import History
from slipstream.core.weights.snapshot import TensorChanges
from slipstream.triton_kernels import as_bits

NUMEL, EACH = 1000, 20


def run(history, budget, steps):
    """`steps` acknowledged updates of a tensor and a staged one; its bits at every version, from 0."""
    rng = np.random.default_rng(3)
    versions = [rng.integers(0, 1 << 16, NUMEL, np.uint16)]
    for version in range(steps + 1):
        positions = np.sort(rng.choice(NUMEL, EACH, replace=False))
        new = versions[-1].copy()
        new[positions] ^= 5
        history.begin(version, budget)
        history.record(0, TensorChanges(positions, versions[-1][positions], new[positions]), NUMEL)
        versions.append(new)
        if version < steps:
            history.commit()
    return versions


def test_the_changes_since_any_version_are_exact():
    history = History()
    versions = run(history, 1 << 20, 4)
    now = torch.from_numpy(versions[-1].view(np.int16))
    for base in range(5):
        assert history.reaches(base)
        found, old = history.since(base, 0, now), versions[base]
        assert np.array_equal(found.positions, np.flatnonzero(old != versions[-1])), "a change taken back is none"
        assert np.array_equal(found.old, old[found.positions])
        assert np.array_equal(found.new, versions[-1][found.positions])
    assert not history.reaches(5)
    assert not history.reaches(None)
    assert history.since(0, 1, now).positions.size == 0


def test_the_oldest_updates_go_when_the_budget_is_used_up():
    history, each = History(), 6 * EACH
    run(history, 3 * each, 9)
    assert history.bytes <= 4 * each, "three, and the staged one until it is acknowledged"
    assert [history.reaches(base) for base in range(10)] == [False] * 6 + [True] * 4
    history.discard()
    assert not history.reaches(9)
    history.begin(9, 3 * each)
    assert history.reaches(6)


def test_an_update_beyond_the_budget_leaves_nothing_to_build_on():
    history = History()
    run(history, 1 << 20, 3)
    history.begin(3, 5)
    history.record(0, TensorChanges(np.arange(9), np.zeros(9, np.uint16), np.ones(9, np.uint16)), NUMEL)
    history.commit()
    history.begin(4, 1 << 20)
    assert [history.reaches(base) for base in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize(("share", "behind"), [(0.125, 3), (0.0, 3)], ids=["remembered", "not remembered"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_catching_up_costs_the_changes_and_not_the_model(share, behind, level):
    """1 % changed a sync: three missed ones and the present one take less than a tenth of a seed."""
    engines = [peak_memory.engine(1), peak_memory.engine(1)]
    for rank, engine in enumerate(engines):
        engine.rank = rank
    pair = Pair(engines, level=level, history_share=share)
    generator = torch.Generator().manual_seed(1)
    weights = {"0": torch.randn(2048, peak_memory.MATRIX // 2048, generator=generator).bfloat16()}
    seed = pair.sync(weights).payload_bytes / 2
    both = pair.engines, pair.subscribers
    pair.engines, pair.subscribers = both[0][:1], both[1][:1]
    for step in range(behind + 1):
        weights["0"].view(torch.int16)[torch.rand(weights["0"].shape, generator=generator) < 0.01] ^= 1
        if step == behind:
            pair.engines, pair.subscribers = both
        report = pair.sync(weights)
        if step < behind:
            delta = report.payload_bytes
    assert (report.late_workers, report.seeded_workers) == ((1, 0) if share else (0, 1))
    assert all(torch.equal(as_bits(engine.tensors["0"]), as_bits(weights["0"])) for engine in engines)
    late = report.payload_bytes - delta
    print(f"level {level}: {late / seed:.4f} of a seed, {late / delta:.2f} deltas")
    assert late < 0.1 * seed if share else late > 0.9 * seed
