"""Small inputs behind what users of other weight syncs reported; `docs/known-complaints.md` lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from breaking import before_scatters
from sharded_trainer import ShardedTrainer
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights import EngineFailedError, FingerprintMismatchError, SyncReport, transaction
from slipstream.core.weights.plan import Cut, sharded

EXPERTS, WIDTH, HIDDEN = 2, 4, 6


class ExpertEngine(ToyEngine):
    """Fused experts `[E, 2F, H]`, a square matrix stored transposed, and an output head that repeats the embedding."""

    def __init__(self, rank: int = 0, size: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(rank, size, dtype)
        self.tensors["w13"] = torch.zeros(EXPERTS, 2 * WIDTH, HIDDEN, dtype=dtype)
        self.tensors["square"] = torch.zeros(HIDDEN, HIDDEN, dtype=dtype)
        self.tensors["head"] = torch.zeros_like(self.tensors["embed"])

    def _load_embed(self, weight):
        super()._load_embed(weight)
        part = weight[: len(self.tensors["head"])]
        self.tensors["head"][: len(part)].copy_(part)

    def _load_w1(self, weight):
        self.tensors["w13"][:, :WIDTH].copy_(weight)

    def _load_w3(self, weight):
        self.tensors["w13"][:, WIDTH:].copy_(weight)

    def _load_square(self, weight):
        self.tensors["square"].copy_(weight.t())

    def densely_loaded(self, weights):
        fresh = ExpertEngine(self.rank, self.size, self.tensors["qkv"].dtype)
        fresh.load_weights(weights.items())
        return fresh.checksums()


def with_experts(seed=0):
    generator = torch.Generator().manual_seed(seed)
    extra = {"w1": (EXPERTS, WIDTH, HIDDEN), "w3": (EXPERTS, WIDTH, HIDDEN), "square": (HIDDEN, HIDDEN)}
    return checkpoint(seed) | {name: torch.randn(shape, generator=generator) for name, shape in extra.items()}


@pytest.mark.parametrize("dim", [1, 2])
def test_experts_that_the_trainer_cuts_inside_arrive_in_their_places(dim):
    """slime 2193, 1840: parts of `[E, 2F, H]` joined along the wrong dimension; a square matrix hid a transpose."""
    weights = with_experts()
    senders = {
        rank: {name: sharded(t.shape, [Cut(dim if t.dim() == 3 else 0, 2, rank)]) for name, t in weights.items()}
        for rank in range(2)
    }
    world = ShardedTrainer(weights, senders, [ExpertEngine()])
    for step in range(3):
        weights = with_experts(step)
        assert all(isinstance(report, SyncReport) for report in world.sync(weights))
        assert world.holds(weights)


def test_a_head_that_repeats_the_embedding_moves_with_it():
    """prime-rl 2823, vLLM 51665: a patch of the embedding left the copy in the output head behind."""
    pair = Pair([ExpertEngine()])
    weights = with_experts()
    pair.sync(weights)
    weights["embed"][3, 5] += 1
    assert pair.sync(weights).changed_elements == 1
    assert pair.engines[0].tensors["head"][3, 5] == weights["embed"][3, 5].bfloat16()
    assert pair.holds(weights)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_an_apply_that_stops_half_way_can_be_tried_again(level, call):
    """NeMo-RL 2444: half an XOR payload was applied, and the retry turned that half back."""
    pair = Pair([ToyEngine()], level=level)
    old, new = checkpoint(), {name: tensor * 1.01 for name, tensor in checkpoint().items()}
    pair.sync(old)
    calls = []

    def fail():
        calls.append(call)
        if len(calls) == call:
            raise RuntimeError("broken half-way")

    for name in ("q", "norm", "router", "o"):  # a few changes each, so that they do not travel whole
        new[name] = old[name].clone()
        new[name].reshape(-1)[:3] += 0.5
    sparse = old | {name: new[name] for name in ("q", "norm", "router", "o")}
    mend = before_scatters(transaction, fail)
    try:
        with pytest.raises(EngineFailedError, match="broken half-way"):
            pair.sync(sparse)
    finally:
        mend()
    assert pair.holds(old)
    pair.sync(sparse)
    assert pair.holds(sparse)


def test_a_worker_that_acknowledges_without_writing_is_found(monkeypatch):
    """tokenspeed 1373, OpenRLHF 660: the update returned success and had changed nothing."""
    pair = Pair([ToyEngine()], verify_every=0)
    weights = checkpoint()
    pair.sync(weights)
    weights["norm"][3] += 1
    monkeypatch.setattr(transaction, "write_parts", lambda applied, begin, end: 0)
    with pytest.raises(FingerprintMismatchError, match="norm"):
        pair.sync(weights)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("bit", range(16))
def test_a_change_of_any_single_bit_is_seen(level, bit):
    """TRL 5932: a detector that looked at the low byte missed changes of the high one."""
    pair = Pair([ToyEngine()], level=level)
    weights = checkpoint(dtype=torch.bfloat16)
    pair.sync(weights)
    flat = weights["o"].view(torch.int16).reshape(-1)
    flat[7] ^= 1 << bit if bit < 15 else -(1 << 15)
    assert pair.sync(weights).changed_elements == 1
    assert pair.holds(weights)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_no_density_costs_more_than_a_dense_sync(level):
    """verl 6974: above the break-even, what changed cost more than everything."""
    pair = Pair([ToyEngine()], level=level)
    weights = checkpoint()
    seed = pair.sync(weights).payload_bytes
    sizes = []
    for share in (0.0, 0.001, 0.01, 0.1, 0.5, 1.0):
        generator = torch.Generator().manual_seed(1)
        for tensor in weights.values():
            tensor[torch.rand(tensor.shape, generator=generator) < share] *= -1.5
        weights["lm_head"] = weights["embed"]
        sizes.append(pair.sync(weights).payload_bytes)
        assert pair.holds(weights)
    assert sizes == sorted(sizes)
    assert sizes[-1] <= seed + 64


PAGE = Path(__file__).parents[3] / "docs" / "known-complaints.md"
NAMED = re.findall(r"`([\w/]+\.py)?(?:::)?(test_\w+)(\.\.\.)?(\[\w+\])?`", PAGE.read_text())


def test_the_page_lists_every_complaint_and_the_tests_it_names_exist():
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert [int(row[1]) for row in rows] == list(range(1, 54))
    assert len(NAMED) > 25
    sources = {path: path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py")}
    for file, test, shortened, _ in NAMED:
        written = rf"def {test}" + (r"\w*\(" if shortened else r"\(")
        found = [path for path, text in sources.items() if str(path).endswith(file) and re.search(written, text)]
        assert found, f"{file}::{test}"
