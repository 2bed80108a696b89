"""DeepSpeed on two ranks: what the engine holds after every sync is what OpenRLHF would have gathered."""

from __future__ import annotations

import json
from pathlib import Path

import deepspeed_world
import pytest
import torch

from slipstream.plugins.openrlhf.shards import flat_range


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "extensions"))
        torch.multiprocessing.spawn(deepspeed_world.rank_main, (str(folder),), deepspeed_world.RANKS)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", deepspeed_world.STAGES)
def test_shards_arrive_as_deepspeed_would_have_gathered_them(world, stage):
    """Every bit, a seed and two deltas, all written in place; each rank sends half."""
    errors = [path.read_text() for path in sorted((world / str(stage)).glob("error*"))]
    assert not errors, "\n".join(errors)
    ranks = [json.loads((world / str(stage) / f"facts{rank}.json").read_text()) for rank in range(2)]
    found = ranks[0]
    assert found["differ"] == [[]] * deepspeed_world.SYNCS
    assert found["loads"] == 0
    assert sum(rank["held"] for rank in ranks) == found["elements"]
    assert abs(ranks[0]["held"] - ranks[1]["held"]) < 100
    syncs = [json.loads(line) for line in (world / str(stage) / "events").read_text().splitlines()]
    assert [sync["seeded_workers"] for sync in syncs] == [1, 0, 0]
    assert [sync["changed_elements"] for sync in syncs[1:]] == found["changed"][1:]
    assert all(0 < changed < found["elements"] for changed in found["changed"][1:])


@pytest.mark.parametrize(("numel", "ranks"), [(1, 1), (1, 4), (7, 2), (8, 4), (9, 4), (5, 4)])
def test_ranges_cover_a_parameter_once(numel, ranks):
    parameter = torch.nn.Parameter(torch.arange(float(numel)))
    parts = [flat_range(parameter, rank, ranks) for rank in range(ranks)]
    assert torch.cat([part.local() for part in parts]).tolist() == list(range(numel))
    assert [part.start for part in parts if part.boxes] == [box.src_offset for part in parts for box in part.boxes]
