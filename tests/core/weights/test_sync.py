"""Publisher and subscriber together, against engines that load like real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights.chunks import range_chunks

LAYOUTS = {"one rank": [(0, 1)], "two ranks": [(0, 2), (1, 2)], "two replicas of two ranks": [(0, 2), (1, 2)]}


def nudge(weights: dict[str, torch.Tensor], scale: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    moved = {name: w + scale * torch.randn(w.shape, generator=generator).to(w.dtype) for name, w in weights.items()}
    moved["lm_head"] = moved["embed"]
    return moved


@pytest.mark.parametrize("ranks", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_engines_hold_what_a_dense_load_gives_after_every_sync(ranks, dtype, level):
    pair = Pair([ToyEngine(rank, size, dtype) for rank, size in ranks], level=level)
    weights = checkpoint()
    for step, scale in enumerate([0.0, 1e-3, 0.0, 1e-2, 1.0]):
        weights = nudge(weights, scale, step)
        report = pair.sync(weights)
        assert pair.holds(weights), f"sync {step}"
        assert pair.errors == [None] * len(ranks)
        assert report.seeded_workers == (len(ranks) if step == 0 else 0)


def test_an_update_without_changes_still_advances_the_version():
    pair = Pair([ToyEngine()])
    first = pair.sync(checkpoint())
    second = pair.sync(checkpoint())
    assert (second.base, second.target, second.changed_elements) == (first.target, first.target + 1, 0)
    assert pair.subscribers[0].version == second.target


def test_tensors_that_always_travel_in_full_say_nothing_of_the_codec(monkeypatch):
    """`flipped` takes the engine's loader: a sync without changes carries it all the same (it once divided by zero)."""
    monkeypatch.setattr("slipstream.core.weights.level._LEAST_BYTES", 1)
    pair = Pair([ToyEngine()])
    for weights in (checkpoint(), checkpoint(), nudge(checkpoint(), 1e-2, 1)):
        report = pair.sync(weights)
        assert report.unverified_tensors > 0
        assert report.payload_bytes > 0
    (link,) = pair.publisher._links.values()
    assert link._chooser._bits == {}


SPECIAL = {
    "negative zero": (0.0, -0.0),
    "a real NaN": (1.0, float("nan")),
    "infinity": (1.0, float("-inf")),
    "smallest denormal": (0.0, 1e-40),
    "back from NaN": (float("nan"), 0.5),
}


@pytest.mark.parametrize(("before", "after"), SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_special_values_arrive_bit_for_bit(before, after, level):
    pair = Pair([ToyEngine(dtype=torch.float32)], level=level)
    weights = checkpoint()
    for name in ("q", "norm", "router", "embed"):
        weights[name].reshape(-1)[3] = before
    pair.sync(weights)
    for name in ("q", "norm", "router", "embed"):
        weights[name].reshape(-1)[3] = after
    report = pair.sync(weights)
    assert pair.holds(weights)
    assert report.seeded_workers == 0
    assert report.changed_elements == 4


FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """Special values of a dtype as bits: zeros, ones, infinities, NaNs with several payloads, denormals, extremes."""
    info = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), info.max, info.min, info.tiny]
    bits = torch.tensor(values).to(dtype).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[info.bits // 8])
    return torch.unique(torch.cat([bits, bits ^ 1, bits ^ 2]))  # next to zero: denormals; next to infinity: signalling


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2])
def test_every_special_value_becomes_every_other(dtype, level, size):
    bits = patterns(dtype)
    count = len(bits) ** 2
    pair = Pair([ToyEngine(rank, size, dtype) for rank in range(size)], level=level, verify_every=1)
    weights = {name: tensor.to(dtype) for name, tensor in checkpoint().items() if name not in ("router", "flipped")}
    weights["lm_head"] = weights["embed"]
    embed = weights["embed"].view(bits.dtype).reshape(-1)
    assert count <= embed.numel(), "all pairs fit into one tensor"
    embed[:count] = bits.repeat_interleave(len(bits))
    pair.sync(weights)
    embed[:count] = bits.repeat(len(bits))
    report = pair.sync(weights)
    assert (report.changed_elements, report.seeded_workers) == (count - len(bits), 0)
    assert pair.holds(weights)


def test_the_same_nan_is_no_change_and_another_payload_is():
    pair = Pair([ToyEngine(dtype=torch.float32)])
    weights = checkpoint()
    bits = weights["norm"].view(torch.int32)
    bits[0] = 0x7FC00001
    pair.sync(weights)
    assert pair.sync(weights).changed_elements == 0
    bits[0] = 0x7FA00002  # signalling, another payload
    assert pair.sync(weights).changed_elements == 1
    assert pair.engines[0].tensors["norm"].view(torch.int32)[0] == 0x7FA00002


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_nan_that_is_cast_becomes_what_a_dense_load_makes_of_it(dtype):
    pair = Pair([ToyEngine(dtype=dtype)], audit_every=1)
    weights = checkpoint()
    payloads = [0x7FC00000, 0x7FC10000, 0x7F800001, 0xFFC00000 - 2**32, 0xFFFFFFFF - 2**32]
    for bits in (0, *payloads, 0x3F800000, *payloads):
        for name in ("q", "o", "norm", "up"):
            weights[name].view(torch.int32).reshape(-1)[[0, 5, -1]] = bits
        weights["o"][3] += 1e-2
        assert pair.sync(weights).audited_tensors
        assert pair.holds(weights)


def test_every_tensor_keeps_its_own_dtype():
    """A router in fp32 inside a bf16 model must not lose bits on the way (prime-rl #3520)."""
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    pair.sync(weights)
    weights["router"][0, 0] += 1e-6
    report = pair.sync(weights)
    assert report.changed_elements == 1
    assert torch.equal(pair.engines[0].tensors["router"], weights["router"])


def test_non_contiguous_trainer_tensors_are_read_in_their_logical_order():
    """vLLM #57130: a strided source must not send its raw storage."""
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    weights["q"] = weights["q"].t().contiguous().t()
    weights["gate"] = torch.stack([weights["gate"], weights["gate"] * 0], dim=-1)[..., 0]
    assert not weights["q"].is_contiguous()
    assert not weights["gate"].is_contiguous()
    pair.sync(weights)
    weights["q"][1, 2] += 1
    weights["gate"][5, 6] -= 1
    assert pair.sync(weights).changed_elements == 2
    assert pair.holds(weights)


def test_vocabulary_padding_becomes_what_the_loader_writes():
    pair = Pair([ToyEngine()])
    pair.sync(checkpoint())
    assert torch.equal(pair.engines[0].tensors["embed"][50:], torch.zeros(14, 24, dtype=torch.bfloat16))


def test_a_tensor_the_engine_ignores_is_named_unless_it_is_tied(caplog):
    pair = Pair([ToyEngine()])
    pair.engines[0]._load_extra = lambda weight: None
    pair.sync({**checkpoint(), "extra": torch.ones(3, 2)})
    warnings = [r.getMessage() for r in caplog.records if "ignores" in r.getMessage()]
    assert warnings == ["the engine's loader ignores 1 of 12 tensors that the trainer sends, for example ['extra']"]


def test_only_changes_travel():
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    del weights["flipped"]
    seed = pair.sync(weights)
    weights["o"][0, 0] += 1
    delta = pair.sync(weights)
    assert delta.payload_bytes < 200 < seed.payload_bytes


def test_a_dense_publisher_ships_everything_every_time():
    pair = Pair([ToyEngine()], dense=True)
    weights = checkpoint()
    sizes = [pair.sync(weights).payload_bytes for _ in range(3)]
    assert sizes[0] == sizes[1] == sizes[2]
    assert pair.holds(weights)


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_chunks_of_any_size_add_up(chunk):
    pair = Pair([ToyEngine()], chunk_bytes=chunk, audit_every=1)
    weights = checkpoint()
    for step in range(3):
        weights = nudge(weights, 1e-2, step)
        assert pair.sync(weights).audited_tensors == 7
        assert pair.holds(weights)


def test_an_array_is_read_once_however_many_frames_it_takes():
    """A column shard is copied to be read: once a frame would be quadratic."""
    read = []

    def column(index):
        read.append(index)
        return np.arange(1000, dtype=np.uint16) + index

    frames = [chunk() for chunk in range_chunks([(0, 1000, 2), (1, 1000, 2)], column, 100)]
    assert len(frames) == 40
    assert read == [0, 1]


def test_memory_is_checked_against_the_trainer_not_only_the_message():
    """Something else wrote one element of the engine: the next full verification must find it."""
    from slipstream.core.weights import FingerprintMismatchError

    pair = Pair([ToyEngine()], verify_every=2)
    weights = checkpoint()
    pair.sync(weights)
    pair.engines[0].tensors["gate_up"][1, 2, 3] += 1
    with pytest.raises(FingerprintMismatchError, match="up"):
        pair.sync(weights)


@pytest.mark.parametrize("level", [1, 2])
def test_damage_under_a_delta_of_the_old_value_is_found_and_healed(level):
    """Levels above 0 build on the value in memory; where that is wrong, the worker ends up with what was sent."""
    from slipstream.core.weights import SyncError

    pair = Pair([ToyEngine()], verify_every=1, level=level)
    weights = checkpoint()
    del weights["flipped"]
    pair.sync(weights)
    for step in range(3):
        pair.engines[0].tensors["qkv"].view(torch.int16).mul_(-3)
        weights = nudge(weights, 1e-2, step)
        with pytest.raises(SyncError):
            pair.sync(weights)
        assert pair.sync(weights).seeded_workers == 1
        assert pair.holds(weights)


def test_a_change_on_a_damaged_element_is_noticed_at_once():
    from slipstream.core.weights import FingerprintMismatchError

    pair = Pair([ToyEngine()], verify_every=0)
    weights = checkpoint()
    pair.sync(weights)
    pair.engines[0].tensors["norm"][3] += 1
    weights["norm"][3] += 5
    with pytest.raises(FingerprintMismatchError, match="norm"):
        pair.sync(weights)
