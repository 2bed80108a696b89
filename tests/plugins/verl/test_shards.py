"""verl's FSDP engines on two ranks: what the engine holds after every sync is what verl itself would have gathered."""

from __future__ import annotations

from pathlib import Path

import fsdp_world
import pytest
import torch
from trainer_shards import TrainerShards, facts
from trainer_world import RANKS

pytestmark = pytest.mark.timeout(600)


class TestFsdpShards(TrainerShards):
    """FSDP2 and FSDP1, stacked experts, merged adapters."""

    cases = tuple(fsdp_world.CASES)
    most_changed = 0.1

    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("w")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERL_PLATFORM", "cpu")
            patch.setenv("VERL_USE_EXTERNAL_MODULES", "slipstream.plugins.verl.cpu")
            torch.multiprocessing.spawn(fsdp_world.rank_main, (str(folder), list(fsdp_world.CASES)), RANKS)
        return folder

    def test_verl_gathers_nothing_beside(self, world, case):
        assert facts(world, case)["spared"]

    def test_single_experts_have_their_checkpoint_names(self, world):
        names = facts(world, "moe_fsdp2")["dtypes"]
        assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in names)
        assert sum(".experts." in name for name in names) == 2 * 5 * 3  # layers, experts, projections

    def test_frozen_embeddings_are_known_to_be(self, world):
        assert len(facts(world, "moe_fsdp2")["frozen"]) == len(fsdp_world.FROZEN)
        adapters = facts(world, "lora_fsdp2")["changed"][1:]
        assert all(step["model.embed_tokens.weight"] == 0 for step in adapters), "no adapter touches it"

    def test_an_fp32_router_keeps_its_bits_in_a_bf16_model(self, world):
        found = facts(world, "moe_fsdp2")
        routers = [name for name in found["dtypes"] if name.endswith(fsdp_world.ROUTER)]
        assert len(routers) == 2
        assert {found["dtypes"][name] for name in routers} == {"torch.float32"}
        assert {dtype for name, dtype in found["dtypes"].items() if name not in routers} == {"torch.bfloat16"}
        assert all(found["beyond_bf16"][name] for name in routers), "a cast on the way would show"
        assert any(step[name] for step in found["changed"][1:] for name in routers)
