"""What every rollout engine adapter must pass. A test module subclasses `EngineWeightSync` and provides `engine`.

The checkpoint is a small Qwen2: fused QKV with bias, grouped KV heads, fused gate_up, a vocabulary that the engine
pads, and hardly a square matrix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import pytest
import torch

from slipstream.core.weights import (
    EngineFailedError,
    Publisher,
    PublisherSettings,
    SyncReport,
    ZmqPublisherChannel,
)

Weights = dict[str, torch.Tensor]
TIMEOUT = 60.0


class RolloutEngine(Protocol):
    """A running engine as the suite drives it."""

    workers: int

    def sync(self, endpoint: str) -> None:
        """Make every worker take part in the sync at `endpoint`; raise the engine's error."""

    def checksums(self) -> list[dict[str, str]]:
        """Checksums of every worker, in rank order."""

    def fresh_engine(self, weights: Weights) -> tuple[list[dict[str, str]], list[list[int]]]:
        """Checksums of the workers of a new engine that loaded `weights` from disk, and what it generates."""

    def lose_weights(self) -> None:
        """What discards or replaces the weights behind the sync's back."""

    def break_loader(self) -> Callable[[], None]:
        """Make the next write of an update fail half-way; return the repair."""

    def generate(self) -> list[list[int]]:
        """Greedy tokens for fixed prompts, prefix cache dropped first."""


def publish(publisher: Publisher, engine: RolloutEngine, weights: Weights, tmp: str) -> SyncReport:
    """One sync over a socket; raises the publisher's error, and the engine's if only that failed."""
    channel = ZmqPublisherChannel(f"ipc://{tmp}", TIMEOUT)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            engine.sync(f"ipc://{tmp}")
        except BaseException as error:
            failed.append(error)
            channel.fail(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        report = publisher.sync(weights.items(), channel, engine.workers)
    finally:
        thread.join(2 * TIMEOUT)
        channel.close()
        assert not thread.is_alive(), "the engine call hangs"
    assert not failed
    return report


def nudge(weights: Weights, share: float, seed: int) -> Weights:
    """Move about `share` of the elements by a few parts in a thousand; tied tensors stay tied."""
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, weight in weights.items():
        mask = torch.rand(weight.shape, generator=generator) < share
        moved[name] = torch.where(mask, weight * 1.01 + 1e-3, weight)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if head in weights and torch.equal(weights[head], weights[embedding]):
        moved[head] = moved[embedding]
    return moved


class EngineWeightSync:
    """The suite. `engine` is a class-scoped fixture yielding a `RolloutEngine`; `weights` the fp32 checkpoint."""

    fused = "model.layers.1.mlp.up_proj.weight"
    """A tensor that the engine keeps as a part of a larger one."""

    @pytest.fixture
    def socket(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(tmp_path_factory.mktemp("s", numbered=True) / "z")

    @pytest.fixture(scope="class")
    def publisher(self) -> Publisher:
        return Publisher(PublisherSettings(timeout=TIMEOUT, audit_every=1, verify_every=2))

    def test_seed_then_deltas_equal_a_dense_load_of_the_engines_own_loader(self, engine, weights, publisher, socket):
        """The audit of every sync loads the checkpoint densely and compares checksums."""
        for step, share in enumerate([0.0, 0.01, 0.0, 0.5, 1.0]):
            weights = nudge(weights, share, step)
            report = publish(publisher, engine, weights, socket)
            assert report.seeded_workers == (engine.workers if step == 0 else 0)
            assert report.audited_tensors > 0

    def test_checksums_and_tokens_equal_a_fresh_engine(self, engine, weights, socket):
        """Tokens too: a copy that the engine computes with (packed by the CPU backend) may differ from a parameter."""
        moved = nudge(weights, 0.3, 7)
        for name in list(moved):
            if name.endswith(("proj.weight", "embed_tokens.weight", "mlp.gate.weight")):
                moved[name] = moved[name].flip(0).contiguous()  # other tokens, through matrices alone
        if torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
            moved["lm_head.weight"] = moved["model.embed_tokens.weight"]
        publisher = Publisher(PublisherSettings(timeout=TIMEOUT))  # no audit: what generates is what the delta wrote
        publish(publisher, engine, weights, socket)
        before = engine.generate()
        assert publish(publisher, engine, moved, socket).seeded_workers == 0
        after = engine.generate()
        assert after != before
        assert (engine.checksums(), after) == engine.fresh_engine(moved)

    def test_a_real_nan_and_a_negative_zero_arrive(self, engine, weights, publisher, socket):
        moved = {name: weight.clone() for name, weight in weights.items()}
        publish(publisher, engine, moved, socket)
        for name in (
            "model.layers.0.self_attn.q_proj.weight",
            self.fused,
            "model.norm.weight",
        ):
            moved[name].view(-1)[5] = float("nan")
            moved[name].view(-1)[6] = -0.0
        report = publish(publisher, engine, moved, socket)
        assert (report.changed_elements, report.seeded_workers) == (6, 0)

    def test_tied_embeddings_move_together(self, engine, weights, publisher, socket):
        """prime-rl #2823: a change of the embedding must reach the output head; sent once, with all destinations."""
        publish(publisher, engine, weights, socket)
        moved = dict(weights)
        moved["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] + 0.01
        if torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
            moved["lm_head.weight"] = moved["model.embed_tokens.weight"]
        publish(publisher, engine, moved, socket)
        assert engine.checksums() == engine.fresh_engine(moved)[0]

    def test_a_worker_that_fails_keeps_all_its_weights(self, engine, weights, publisher, socket):
        publish(publisher, engine, weights, socket)
        before, acked = engine.checksums(), publisher.acked
        repair = engine.break_loader()
        try:
            with pytest.raises(Exception, match="broken on purpose"):
                publish(publisher, engine, nudge(weights, 0.05, 3), socket)
        finally:
            repair()
        assert engine.checksums() == before
        assert publisher.acked == acked
        assert publish(publisher, engine, nudge(weights, 0.05, 3), socket).seeded_workers == 0

    def test_lost_weights_are_seeded_again(self, engine, weights, publisher, socket):
        publish(publisher, engine, weights, socket)
        engine.lose_weights()
        assert publish(publisher, engine, weights, socket).seeded_workers == engine.workers

    def test_an_unknown_tensor_is_the_engines_own_error(self, engine, weights, socket):
        publisher = Publisher(PublisherSettings(timeout=TIMEOUT))
        with pytest.raises((EngineFailedError, Exception), match="no_such_module"):
            publish(publisher, engine, {**weights, "model.no_such_module.weight": torch.zeros(3, 2)}, socket)
