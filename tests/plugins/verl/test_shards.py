"""verl's FSDP engines on two ranks: what the engine holds after every sync is what verl itself would have gathered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsdp_world
import pytest
import torch

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_PLATFORM", "cpu")
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "slipstream.plugins.verl.cpu")
        torch.multiprocessing.spawn(fsdp_world.rank_main, (str(folder), list(fsdp_world.CASES)), fsdp_world.RANKS)
    return folder


def facts(world: Path, case: str) -> dict[str, Any]:
    errors = [path.read_text() for path in sorted((world / case).glob("error*"))]
    assert not errors, "\n".join(errors)
    return json.loads((world / case / "facts.json").read_text())


def events(world: Path, case: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (world / case / "events").read_text().splitlines()]


@pytest.mark.parametrize("case", fsdp_world.CASES)
def test_shards_arrive_as_verl_would_have_gathered_them(world, case):
    """FSDP2 and FSDP1, stacked experts, merged adapters: every bit, a seed and two deltas, all written in place."""
    found, syncs = facts(world, case), events(world, case)
    for delta in (sync for sync in syncs if sync["seeded_workers"] == 0):
        assert sum(changed for changed, _ in delta["layers"].values()) == delta["changed_elements"], "all ranks' parts"
    assert found["differ"] == [[]] * fsdp_world.SYNCS
    assert found["loads"] == 0
    assert [sync["seeded_workers"] for sync in syncs] == [1, 0, 0]
    for sync, changed in zip(syncs[1:], found["changed"][1:], strict=True):
        assert 0 < sync["changed_elements"] == sum(changed.values()) < 0.1 * sync["total_elements"]
        assert sync["payload_bytes"] < 0.1 * syncs[0]["payload_bytes"]
    assert found["spared"], "verl gathers nothing beside"


def test_single_experts_have_their_checkpoint_names(world):
    names = facts(world, "moe_fsdp2")["dtypes"]
    assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in names)
    assert sum(".experts." in name for name in names) == 2 * 5 * 3  # layers, experts, projections


def test_frozen_parameters_cost_nothing(world):
    changed = facts(world, "moe_fsdp2")["changed"][1:]
    frozen = [name for name in changed[0] if any(part in name for part in fsdp_world.FROZEN)]
    assert frozen
    assert all(step[name] == 0 for step in changed for name in frozen)
    adapters = facts(world, "lora_fsdp2")["changed"][1:]
    assert all(step["model.embed_tokens.weight"] == 0 for step in adapters), "no adapter touches it"


def test_an_fp32_router_keeps_its_bits_in_a_bf16_model(world):
    found = facts(world, "moe_fsdp2")
    routers = [name for name in found["dtypes"] if name.endswith(fsdp_world.ROUTER)]
    assert len(routers) == 2
    assert {found["dtypes"][name] for name in routers} == {"torch.float32"}
    assert {dtype for name, dtype in found["dtypes"].items() if name not in routers} == {"torch.bfloat16"}
    assert all(found["beyond_bf16"][name] for name in routers), "a cast on the way would show"
    assert any(step[name] for step in found["changed"][1:] for name in routers)
