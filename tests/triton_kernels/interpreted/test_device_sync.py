"""Whole syncs with the trainer's or the engine's weights on a "GPU": the Triton twins, with memory of its own."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from separate_memory import SeparateMemory, on_host
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.weights import Subscriber, SyncError
from slipstream.core.weights.chain import ChainReader, ChainWriter
from slipstream.core.weights.wire import Encoders, frame
from slipstream.triton_kernels.placement import interpreting

pytestmark = pytest.mark.usefixtures("separate_memory", "few_programs")


def on_device(target: Any, name: str) -> SeparateMemory:
    """Let a method of an object run with its tensors on the device; what crosses is counted in the result."""
    memory, method = SeparateMemory(), getattr(target, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(interpreting(lambda tensor: not on_host(tensor)))
            stack.enter_context(memory)
            return method(*args, **kwargs)

    setattr(target, name, run)
    return memory


class DevicePair(Pair):
    """A pair with either end on the device."""

    def __init__(self, engines: list[ToyEngine], trainer: bool, worker: bool, **settings: Any) -> None:
        super().__init__(engines, keep_on_device=trainer, **settings)
        self.trainer = [on_device(self.publisher, name) for name in ("stage", "deliver")] if trainer else []
        self.workers = [on_device(subscriber, "sync") for subscriber in self.subscribers] if worker else []


def moved(weights: dict[str, torch.Tensor], share: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, tensor in weights.items():
        where = torch.rand(tensor.shape, generator=generator) < share
        step = 0.02 * torch.randn(tensor.shape, generator=generator)
        found[name] = torch.where(where, tensor.float() * (1 + step), tensor.float()).to(tensor.dtype)
    found["lm_head"] = found["embed"]
    return found


ENDS = {"trainer": (True, False), "worker": (False, True), "both": (True, True)}
ONE, SHARDS = [(0, 1)], [(0, 2), (1, 2)]
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


@pytest.mark.parametrize(
    ("ends", "level", "kind", "ranks"),
    [
        *(("both", level, kind, ONE) for level in (0, 1, 2) for kind in KINDS if kind != "bf16"),
        *((ends, level, "bf16", SHARDS) for level in (0, 1, 2) for ends in ENDS),
    ],
)
def test_workers_hold_what_a_dense_load_gives(ends: str, level: int, kind: str, ranks: list[tuple[int, int]]) -> None:
    pair = DevicePair([ToyEngine(*rank, KINDS[kind]) for rank in ranks], *ENDS[ends], level=level, verify_every=2)
    weights = checkpoint()
    for step, share in enumerate([0.0, 0.02, 0.3]):  # verified from memory, from the changes, from memory
        weights = moved(weights, share, step)
        report = pair.sync(weights)
        assert pair.errors == [None] * len(ranks)
        assert pair.holds(weights)
        assert report.seeded_workers == (len(ranks) if step == 0 else 0)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sections_are_those_of_the_host(level: int) -> None:
    sections = []
    for trainer in (False, True):
        pair = DevicePair([ToyEngine()], trainer, False, level=level)
        weights = checkpoint()
        pair.sync(weights)
        for step, share in enumerate([0.3, 0.02, 0.95]):
            weights = moved(weights, share, step)
            pair.publisher.stage(weights.items())
            (link,) = pair.publisher._links.values()
            sections.append([b"".join(section) for section in link.sections])
            assert len(sections[-1]) == 3, "one of bf16, one of the router, one of the tensor for the loader"
            pair.sync(weights)
    assert sections[:3] == sections[3:]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_only_coded_bytes_leave_the_trainer(level: int) -> None:
    pair = DevicePair([ToyEngine()], True, False, level=level)
    weights = checkpoint()
    del weights["flipped"]
    pair.sync(weights)
    weights = moved(weights, 0.1, 0)
    pair.sync(weights)  # the snapshot goes up, and class maps are fitted
    memory = pair.trainer[0]
    memory.up = memory.down = 0
    report = pair.sync(moved(weights, 0.1, 1))
    headers = 56 + 2 * 32
    assert report.changed_elements > 300
    assert report.payload_bytes - headers <= memory.down
    assert memory.down <= report.payload_bytes + 700, "counts and fingerprints"
    assert memory.up < 500


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_frame_goes_up_once_and_no_weight_comes_down(level: int) -> None:
    pair = DevicePair([ToyEngine()], False, True, level=level)
    weights = checkpoint()
    del weights["flipped"]
    for step in range(2):
        weights = moved(weights, 0.1, step)
        for memory in pair.workers:
            memory.up = memory.down = 0
        report = pair.sync(weights)
    (memory,) = pair.workers
    assert report.seeded_workers == 0
    assert report.payload_bytes - 56 <= memory.up <= report.payload_bytes + 100
    assert memory.down < 900


def test_a_snapshot_on_the_host_goes_up_and_is_compared_there() -> None:
    pair = DevicePair([ToyEngine()], True, False, level=0)
    pair.publisher._snapshot._keep_on_device = False
    weights = checkpoint()
    del weights["flipped"]
    pair.sync(weights)
    for step in range(2):
        weights = moved(weights, 0.1, step)
        memory = pair.trainer[0]
        memory.up = memory.down = 0
        report = pair.sync(weights)
        assert pair.holds(weights)
        held = sum(t.numel() * (4 if name == "router" else 2) for name, t in weights.items() if name != "lm_head")
        assert held <= memory.up <= held + 100
        assert 12 * report.changed_elements <= memory.down <= 16 * report.changed_elements + 1000
        pair.publisher.stage(moved(weights, 0.1, 9).items())  # given up: the next one rolls it back


def test_workers_that_join_late_or_missed_an_update() -> None:
    """A new one is seeded, one that missed an update as well: changes that stay on the device are not remembered. One
    that missed updates of nothing goes on with the delta. The others get theirs, as if nobody were late.
    """
    pair = DevicePair([ToyEngine(0, 2), ToyEngine(1, 2)], True, False, level=0)
    everybody = pair.engines, pair.subscribers
    weights = checkpoint()
    pair.sync(weights)
    for step, (present, share, seeded, late) in enumerate(
        [
            (slice(1), 0.1, 0, 0),  # worker 1 misses this one
            (slice(2), 0.1, 1, 0),
            (slice(1), 0.0, 0, 0),  # and this one, in which nothing changes
            (slice(2), 0.0, 0, 1),
        ]
    ):
        weights = moved(weights, share, step) if share else dict(weights)
        pair.engines, pair.subscribers = everybody[0][present], everybody[1][present]
        report = pair.sync(weights)
        assert pair.errors == [None] * len(pair.engines)
        assert (report.seeded_workers, report.late_workers) == (seeded, late), step
        assert pair.holds(weights)
    newcomer = ToyEngine(0, 1)  # of another layout
    pair.engines, pair.subscribers = [*pair.engines, newcomer], [*pair.subscribers, Subscriber(newcomer, "new")]
    for step, seeded in enumerate([1, 0]):
        weights = moved(weights, 0.1, 7 + step)
        assert pair.sync(weights).seeded_workers == seeded
        assert pair.errors == [None] * 3
        assert pair.holds(weights)


@pytest.mark.parametrize("ends", ENDS)
def test_a_failed_sync_is_taken_back_and_merged_into_the_next(ends: str) -> None:
    pair = DevicePair([ToyEngine()], *ENDS[ends], level=0)
    weights = checkpoint()
    del weights["flipped"]
    pair.sync(weights)
    later = moved(weights, 0.2, 1)
    with pytest.raises(SyncError, match="another trainer rank"):
        pair.sync(later, agree=lambda ready: False)
    assert pair.holds(weights)
    later = moved(later, 0.2, 2)
    report = pair.sync(later)
    assert report.seeded_workers == 0
    assert pair.holds(later)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_section_that_nobody_encodes_changes_nothing(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = DevicePair([ToyEngine()], False, True, level=level)
    weights = checkpoint()
    del weights["flipped"]
    pair.sync(weights)
    right = Encoders.section

    def damaged(self: Encoders, *args: Any) -> list[bytes]:
        header, payload = right(self, *args)
        return [header, payload[:-1] + bytes([payload[-1] ^ 0xFF]) if level else payload[:7] + b"\xff" + payload[8:]]

    monkeypatch.setattr(Encoders, "section", damaged)
    with pytest.raises(SyncError, match="CorruptFrameError: unit 0: cannot decode"):
        pair.sync(moved(weights, 0.1, 0))
    assert pair.holds(weights)


@pytest.mark.parametrize("ends", ENDS)
def test_a_codec_for_the_host_serves_weights_on_the_device(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec_of = frame.codec_of
    monkeypatch.setattr(frame, "codec_of", lambda level: dataclasses.replace(codec_of(level), on_device=False))
    pair = DevicePair([ToyEngine(*rank) for rank in SHARDS], *ENDS[ends], level=2)
    weights = checkpoint()
    for step in range(2):
        weights = moved(weights, 0.1, step)
        assert pair.sync(weights).seeded_workers == 2 * (step == 0)
        assert pair.holds(weights)


def test_a_chain_is_followed_on_the_device(tmp_path: Path) -> None:
    """With tensors that are kept beside the engine, because its loader transforms them."""
    writer, engine = ChainWriter(str(tmp_path), dtype=torch.bfloat16), ToyEngine()
    reader = ChainReader(str(tmp_path), engine)
    memory = on_device(reader, "update")
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in checkpoint().items() if name != "router"}
    for step in range(3):
        weights = moved(weights, 0.1, step)
        writer.publish(weights.items())
        reader.update()
        assert engine.checksums() | {"router": ""} == engine.densely_loaded(weights) | {"router": ""}
    assert memory.up
