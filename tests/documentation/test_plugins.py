"""The plugins of docs/plugins.md, each put to the use that the page says it is for."""

from __future__ import annotations

import asyncio
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from fault_world import trained
from toy_engine import Pair, ToyEngine, checkpoint
from transport_peers import Trainer

from slipstream.core.config import ConfigError, DrafterConfig, parse_config
from slipstream.core.hooks import Stage, WeightSyncFinished, process
from slipstream.core.hooks.manager import SlipstreamPlugins
from slipstream.core.rollout import LiveRouter, ReplicaLimits, RouterSettings, Segment, Turn, TurnResult
from slipstream.core.seams import check
from slipstream.core.telemetry.history import read_run
from slipstream.core.weights.transports import check_transport

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text()


def example(heading: str) -> types.ModuleType:
    """The Python under a heading of the page, as a module."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = types.ModuleType(heading.replace(" ", "_").lower())
    exec(compile(code, f"docs/plugins.md: {heading}", "exec"), module.__dict__)
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Put an example beside the built-in plugins of this process."""
    process.plugins()  # loaded before: a thread of an earlier test that loads them now would undo what is set below

    def install(heading: str) -> types.ModuleType:
        module = example(heading)
        plugins = SlipstreamPlugins.installed()
        plugins.register(module, "example")
        monkeypatch.setattr(process, "_plugins", plugins)
        return module

    return install


def test_the_listener_hears_stages_and_syncs(installed, capsys):
    installed("Events")
    hook = process.plugins().hook
    hook.slipstream_stage_started(stage=Stage("rollout", 3))
    hook.slipstream_stage_finished(stage=Stage("rollout", 3))
    hook.slipstream_after_weight_sync(event=WeightSyncFinished("run", 1, 2, 4, 10, 1000, 20, 70, 2000, 0.5, True))
    assert re.fullmatch(r"step 3: rollout took 0\.\d\d s\nversion 2: 20 of 1000 elements\n", capsys.readouterr().out)


@pytest.mark.parametrize("size", [1, 2])
def test_engines_hold_what_the_codec_was_given(installed, size: int):
    installed("A codec")
    level = parse_config({"weight_sync": {"level": 9}}).weight_sync.level
    pair = Pair([ToyEngine(rank, size, torch.bfloat16) for rank in range(size)], level=level)
    weights = checkpoint()
    pair.sync(weights)
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        weights = {name: w + 1e-2 * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
        weights["lm_head"] = weights["embed"]
        report = pair.sync(weights)
        assert (report.level, report.seeded_workers) == (9, 0)
        assert pair.holds(weights)


def test_the_codec_refuses_what_it_did_not_write(installed):
    module = installed("A codec")
    old = types.SimpleNamespace(at=lambda places: np.zeros(len(places), np.uint16))
    whole = module.Encoder().encode(old, np.array([3, 70_000]), np.array([1, 2], np.uint16))
    positions, values = module.decode(whole, old)
    assert (positions.tolist(), values.tolist()) == ([3, 70_000], [1, 2])
    for damaged in (whole[:-3], whole[1:], np.zeros(9, np.uint8)):
        with pytest.raises(ValueError, match="zlib stream"):
            module.decode(damaged, old)


def test_the_transport_carries_syncs_and_counts_them(installed, tmp_path: Path):
    module = installed("A transport")
    name = parse_config({"weight_sync": {"transport": "counting"}}).weight_sync.transport
    check_transport(name)
    engine = ToyEngine()
    with Trainer(name, f"ipc://{tmp_path}/z", [engine], 1, 60.0) as trainer:
        (seed,) = trainer.sync(checkpoint())
        assert module.sent["bytes"] >= seed.payload_bytes > 0
        (delta,) = trainer.sync(trained(checkpoint(), "sparse", 1))
        assert delta.seeded_workers == 0
        assert module.sent["bytes"] >= seed.payload_bytes + delta.payload_bytes > seed.payload_bytes


def test_the_routing_policy_admits_as_many_as_it_says(installed):
    installed("A routing policy")
    mode = parse_config({"router": {"mode": "narrow"}}).router.mode
    running = most = 0

    async def scene() -> None:
        live = LiveRouter(process.plugins().routing_policy(mode).factory(RouterSettings()), lambda abort: None)
        live.add_replica("a", ReplicaLimits(1_000_000, 64))

        async def client(number: int) -> None:
            nonlocal running, most
            turn = Turn(number, number, number, (Segment(("own", number), 100),), True)
            where = await live.acquire(turn)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1
            assert live.release(where, TurnResult(20, ended=True))

        await asyncio.wait_for(asyncio.gather(*map(client, range(40))), 20)
        live.close()

    asyncio.run(scene())
    assert 4 <= most <= 8  # the router keeps up to twice as many live as run


def test_the_drafter_is_brief(installed):
    installed("A drafter")
    config = parse_config({"drafter": {"mode": "brief", "threshold": 0.01, "budget_megabytes": 1}}).drafter
    drafter = process.plugins().drafter(config.mode).factory(config, max_model_len=4096)
    text = list(range(1, 40))
    drafter.start("a", text * 4, group="g")
    drafts = drafter.step(["a"], [[1, 2, 3]], [100])
    assert 1 <= len(drafts[0]) <= 4
    assert list(drafts[0]) == text[3 : 3 + len(drafts[0])]


def test_the_command_line_knows_the_framework(installed, tmp_path: Path):
    installed("A framework adapter")
    toy = process.plugins().framework("toy")
    assert [result.broken for result in check(toy.seams())] == [False, False], "the version, and the patch point"
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"toy_step": i, "seconds": 2.0, "sync": 0.5}) + "\n" for i in range(3)))
    run = read_run(file, [toy.read_metrics])
    assert [(step.step, step.sync_seconds) for step in run.steps] == [(0, 0.5), (1, 0.5), (2, 0.5)]


@pytest.mark.parametrize(
    "node", [{"weight_sync": {"level": 9}}, {"router": {"mode": "narrow"}}, {"drafter": {"mode": "brief"}}]
)
def test_what_no_plugin_provides_is_refused(node):
    with pytest.raises(ConfigError, match="expected one of"):
        parse_config(node)


def test_builtin_modes_need_no_plugin_to_be_loaded(monkeypatch):
    monkeypatch.setattr(process, "plugins", lambda: pytest.fail("plugins were loaded"))
    assert parse_config({"drafter": {"mode": "suffix"}}).drafter == DrafterConfig(mode="suffix")
