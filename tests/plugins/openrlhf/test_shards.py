"""DeepSpeed on two ranks: what the engine holds after every sync is what OpenRLHF would have gathered."""

from __future__ import annotations

from pathlib import Path

import deepspeed_world
import pytest
import torch
from trainer_shards import TrainerShards
from trainer_world import RANKS

from slipstream.plugins.openrlhf.shards import flat_range

pytestmark = pytest.mark.timeout(600)


class TestDeepSpeedShards(TrainerShards):
    """ZeRO 1, 2 and 3."""

    cases = tuple(map(str, deepspeed_world.STAGES))

    @pytest.fixture(scope="class")
    def world(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("w")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "extensions"))
            torch.multiprocessing.spawn(deepspeed_world.rank_main, (str(folder),), RANKS)
        return folder


@pytest.mark.parametrize(("numel", "ranks"), [(1, 1), (1, 4), (7, 2), (8, 4), (9, 4), (5, 4)])
def test_ranges_cover_a_parameter_once(numel, ranks):
    parameter = torch.nn.Parameter(torch.arange(float(numel)))
    parts = [flat_range(parameter, rank, ranks) for rank in range(ranks)]
    assert torch.cat([part.local() for part in parts]).tolist() == list(range(numel))
    assert [part.start for part in parts if part.boxes] == [box.src_offset for part in parts for box in part.boxes]
