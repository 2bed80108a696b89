"""Loaders that a naive recording gets wrong: what arrives must be what a dense load gives, whichever path it takes."""

from __future__ import annotations

import pytest
import torch
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights.chain import ChainReader, ChainWriter


def moved(weights, step):
    generator = torch.Generator().manual_seed(step)
    result = {name: w + 0.1 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    result["lm_head"] = result["embed"]
    return result


class InPlaceOnTheProbe(ToyEngine):
    def _load_norm(self, weight):
        weight = weight.clone() if not weight.is_meta else weight
        weight += 1
        self.tensors["norm"].copy_(weight)


class AssembledInABuffer(ToyEngine):
    def load_weights(self, weights):
        self.buffer = torch.zeros(16, 24, dtype=torch.bfloat16)
        return super().load_weights(weights)

    def _load_q(self, weight):
        self.buffer.copy_(weight)

    def _load_v(self, weight):
        super()._load_v(weight)
        self.tensors["qkv"][:16].copy_(self.buffer)


class ZeroesARowAfterwards(ToyEngine):
    def _load_embed(self, weight):
        super()._load_embed(weight)
        self.tensors["embed"][0].zero_()


class CollectsFirstAndIndexes(ToyEngine):
    def load_weights(self, weights):
        return super().load_weights(list(weights))

    def _load_norm(self, weight):
        self.tensors["norm"][torch.arange(24)] = weight.to(torch.bfloat16)


class FillsWithAValue(ToyEngine):
    def _load_norm(self, weight):
        self.tensors["norm"].fill_(weight[3].item())


class TiedHeadIsLoadedToo(ToyEngine):
    def _load_lm_head(self, weight):
        self._load_embed(weight)


class CopiesTwice(ToyEngine):
    def _load_norm(self, weight):
        super()._load_norm(weight)
        super()._load_norm(weight)


class CopiesAPartAgain(ToyEngine):
    def _load_o(self, weight):
        super()._load_o(weight)
        self.tensors["o"][:, 3:9].copy_(weight[:, 3:9])


class CopiesTwoPartsOverEachOther(ToyEngine):
    def _load_q(self, weight):
        self.tensors["qkv"][:16].copy_(weight)
        self.tensors["qkv"][8:20].copy_(weight[:12])


class TwoTensorsMeet(ToyEngine):
    def _load_up(self, weight):
        super()._load_up(weight)
        self.tensors["gate_up"][0, 5:9, ::2].copy_(weight[5:9, ::2])


class OneMemoryTwice(ToyEngine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.alias = torch.from_numpy(self.tensors["o"].view(torch.int16).numpy()).view(torch.bfloat16)

    def _load_o(self, weight):
        super()._load_o(weight)
        self.alias.T[4:6].copy_(weight.T[4:6])


class ClearsWhatOthersLoaded(ToyEngine):
    """Only a loader that sees all of its tensors gets them right."""

    def _load_q(self, weight):
        self.tensors["qkv"][torch.arange(32)] = 0
        super()._load_q(weight)


class CopiesBits(ToyEngine):
    """A copy between views under another dtype, as for fp8; no cast may come between."""

    def _load_router(self, weight):
        bits = torch.int32 if weight.dtype == torch.float32 else torch.int16
        self.tensors["router"].view(bits)[:, : weight.view(bits).shape[1]].copy_(weight.view(bits))


class ClearsBytesAfterwards(ToyEngine):
    def _load_norm(self, weight):
        super()._load_norm(weight)
        self.tensors["norm"].view(torch.uint8)[40:44].zero_()


class TrainsToo(ToyEngine):
    """Its parameters require gradients, and the loader leaves it to its caller to switch them off."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tensors = {name: torch.nn.Parameter(tensor) for name, tensor in self.tensors.items()}


class MovesToADevice(ToyEngine):
    def _load_norm(self, weight):
        self.tensors["norm"].copy_(weight.to("cpu", torch.float16))


HOSTILE = [
    InPlaceOnTheProbe,
    AssembledInABuffer,
    ZeroesARowAfterwards,
    CollectsFirstAndIndexes,
    FillsWithAValue,
    TiedHeadIsLoadedToo,
    CopiesTwice,
    CopiesAPartAgain,
    CopiesTwoPartsOverEachOther,
    TwoTensorsMeet,
    OneMemoryTwice,
    ClearsWhatOthersLoaded,
    CopiesBits,
    ClearsBytesAfterwards,
    TrainsToo,
    MovesToADevice,
]


def partly_moved(weights, step):
    """Few enough changes that they travel as such, and some tensors without any."""
    generator = torch.Generator().manual_seed(step)
    result = {}
    for number, (name, weight) in enumerate(weights.items()):
        chosen = torch.rand(weight.shape, generator=generator) < (0.1 if (number + step) % 3 else 0)
        result[name] = torch.where(chosen, weight * 1.05, weight)
    result["lm_head"] = result["embed"]
    return result


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("engine", HOSTILE, ids=lambda cls: cls.__name__)
@torch.no_grad()  # of this thread; engine workers have their own
def test_what_arrives_is_what_the_loader_gives(engine, level):
    pair = Pair([engine()], level=level)
    weights = checkpoint()
    for step in range(4):
        pair.sync(weights)
        fresh = engine()
        fresh.load_weights(weights.items())
        assert pair.engines[0].checksums() == fresh.checksums(), f"sync {step}"
        weights = moved(weights, step) if step == 0 else partly_moved(weights, step)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("engine", HOSTILE, ids=lambda cls: cls.__name__)
@torch.no_grad()
def test_a_chain_gives_what_the_loader_gives(engine, level, tmp_path):
    chain, reader = ChainWriter(str(tmp_path), level=level), ChainReader(str(tmp_path), held := engine())
    weights = {name: weight.bfloat16() for name, weight in checkpoint().items()}
    for step in range(4):
        chain.publish(weights.items())
        reader.update()
        fresh = engine()
        fresh.load_weights(weights.items())
        assert held.checksums() == fresh.checksums(), f"version {step}"
        weights = partly_moved(weights, step)


@pytest.mark.parametrize("engine", HOSTILE, ids=lambda cls: cls.__name__)
def test_an_aborted_update_leaves_what_was_there(engine):
    pair = Pair([engine()])
    pair.sync(checkpoint())
    before = pair.engines[0].checksums()
    with pytest.raises(Exception, match="another trainer rank"):
        pair.sync(moved(checkpoint(), 1), agree=lambda ready: False)
    assert pair.engines[0].checksums() == before


def test_a_tensor_that_one_rank_ignores_reaches_the_other():
    """The ranks of an expert-parallel engine; the trainer's dtype is not the engine's."""

    class Without(ToyEngine):
        def _load_norm(self, weight):
            pass

    pair = Pair([ToyEngine(0, 2), Without(1, 2)])
    for step in range(3):
        weights = moved(checkpoint(), step)
        pair.sync(weights)
        assert torch.equal(pair.engines[0].tensors["norm"], weights["norm"].bfloat16())
        assert not pair.engines[1].tensors["norm"].any()


def test_engines_of_one_name_and_several_layouts_are_told_apart():
    pair = Pair([ToyEngine(0, 1), ToyEngine(0, 2)])
    for step in range(3):
        weights = moved(checkpoint(), step)
        pair.sync(weights)
        assert pair.holds(weights)


def test_damage_is_healed_by_the_sync_after_the_one_that_found_it():
    from slipstream.core.weights import FingerprintMismatchError

    pair = Pair([ToyEngine()], verify_every=2)
    pair.sync(checkpoint())
    pair.engines[0].tensors["gate_up"][1, 2, 3] += 1
    with pytest.raises(FingerprintMismatchError):
        pair.sync(checkpoint())
    assert pair.sync(checkpoint()).seeded_workers == 1
    assert pair.holds(checkpoint())


def test_a_failure_inside_an_audit_is_reported_and_healed():
    from slipstream.core.weights import EngineFailedError

    pair = Pair([ToyEngine()], audit_every=2)
    pair.sync(checkpoint())

    def broken(weight):
        raise RuntimeError("toy engine: audit breaks")

    pair.engines[0]._load_norm = broken
    with pytest.raises(EngineFailedError, match="audit breaks"):
        pair.sync(checkpoint())
    del pair.engines[0]._load_norm
    assert pair.sync(checkpoint()).seeded_workers == 1
    assert pair.holds(checkpoint())


def test_a_tensor_without_a_fingerprint_is_counted():
    assert Pair([ToyEngine()]).sync(checkpoint()).unverified_tensors == 1


class Derives(ToyEngine):
    """Computes on loaded weights afterwards, into memory of its own and into a new tensor."""

    def __init__(self, rank=0, size=1, dtype=torch.bfloat16):
        super().__init__(rank, size, dtype)
        self.layer = {"flipped": self.tensors["flipped"], "scale": torch.zeros(1), "loads": 0}
        self.finish_loading()

    def finish_loading(self):
        self.layer["scale"].copy_(self.tensors["flipped"].float().abs().max())
        self.layer["absorbed"] = self.tensors["flipped"].float() @ self.tensors["router"]
        self.layer["loads"] += 1

    def derived(self):
        return [self.layer]

    def state(self):
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.layer.items()}

    def is_consistent(self):
        flipped = self.tensors["flipped"].float()
        return torch.equal(self.layer["absorbed"], flipped @ self.tensors["router"]) and torch.equal(
            self.layer["scale"][0], flipped.abs().max()
        )


def same_state(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one
    )


@pytest.mark.parametrize("fails", ["another rank", "in the loader", "after the loader"])
@pytest.mark.parametrize("held", [False, True])
def test_what_an_engine_derives_from_its_weights_goes_back_with_them(fails, held, monkeypatch):
    """The old weights were served with scales and absorbed copies of the new ones until the next sync."""
    pair = Pair([Derives()])
    if held:
        pair.sync(checkpoint())
    engine = pair.engines[0]
    before, weights, absorbed = engine.state(), engine.checksums(), engine.layer["absorbed"]
    if fails == "in the loader":
        engine.fail_after, engine.torn = 0, True
    elif fails == "after the loader":

        def half_way():
            engine.layer["scale"].fill_(9)
            del engine.layer["absorbed"]
            engine.layer["new"] = torch.ones(3)
            raise RuntimeError("toy engine: no memory for derived weights")

        monkeypatch.setattr(engine, "finish_loading", half_way)
    with pytest.raises(Exception, match=r"another trainer rank|loader refuses|no memory"):
        pair.sync(moved(checkpoint(), 1), agree=lambda ready: fails != "another rank")
    assert engine.checksums() == weights
    assert same_state(engine.state(), before)
    assert engine.layer["absorbed"] is absorbed, "the engine may have captured its address"
    engine.fail_after = None
    monkeypatch.undo()
    pair.sync(moved(checkpoint(), 2))
    assert engine.is_consistent()
    assert not same_state(engine.state(), before)
