"""Shards of Megatron models: real Megatron-Core with mbridge where both are installed, a bridge of our own elsewhere.

Neither is in the locked environment. To run against them:
`pip install --no-deps --target FOLDER megatron-core==0.16.1 mbridge==0.15.1`, and this with PYTHONPATH=FOLDER.
"""

from __future__ import annotations

import json

import pytest
import torch

from slipstream.plugins.verl.exported import differing, trace_export

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("tensor_parallel", "pipeline_parallel"), [(2, 1), (1, 2), (2, 2)])
def test_every_rank_sends_its_own_and_the_engine_holds_what_the_bridge_exports(
    tmp_path, monkeypatch, tensor_parallel, pipeline_parallel
):
    """Fused QKV of grouped heads, gate and up, columns and rows, stages."""
    pytest.importorskip("mbridge")
    import megatron_world

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "slipstream.plugins.verl.cpu")
    ranks = tensor_parallel * pipeline_parallel
    torch.multiprocessing.spawn(
        megatron_world.rank_main, (str(tmp_path), tensor_parallel, pipeline_parallel), nprocs=ranks
    )
    errors = [path.read_text() for path in sorted(tmp_path.glob("error*"))]
    assert not errors, "\n".join(errors)
    facts = json.loads((tmp_path / "facts.json").read_text())
    syncs = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert facts["differ"] == [[], [], []]
    assert facts["loads"] == 0
    assert [sync["seeded_workers"] for sync in syncs] == [1, 0, 0]
    assert all(0 < sync["changed_elements"] < sync["total_elements"] / 10 for sync in syncs[1:])


def parameters(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(*shape, generator=generator).to(dtype)) for shape in [(12, 5), (7,), (4, 6)]]


def test_what_a_bridge_moves_is_found():
    """Interleaved groups, halves, a transposed tensor, one made of two, and another rank's part."""
    first, second, third = kept = parameters()

    def export():
        groups = first.view(2, 6, 5)
        yield "q", groups[:, :4].reshape(8, 5)
        yield "k", groups[:, 4:].reshape(4, 5)
        yield "turned", third.t()
        yield "both", torch.cat([second, first[0]])
        yield "theirs", torch.cat([second + 2.0**42, second])  # rank 1 has the first half

    before = [parameter.detach().clone() for parameter in kept]
    held = trace_export(kept, export, rank=0)
    assert all(torch.equal(old, new) for old, new in zip(before, kept, strict=True))
    assert {name: part.numel for name, part in held.items()} == {
        "q": 40,
        "k": 20,
        "turned": 24,
        "both": 12,
        "theirs": 7,
    }
    assert [len(held[name].boxes) for name in ("q", "k", "turned", "both")] == [1, 1, 1, 2]
    assert held["q"].dtype == torch.bfloat16
    with torch.no_grad():
        first += 1
        second *= 3
    for name, whole in export():
        if name != "theirs":
            rebuilt = torch.full((whole.numel(),), float("nan"), dtype=whole.dtype)
            for box in held[name].boxes:
                part = held[name].local().as_strided(box.sizes, box.dst_strides, box.dst_offset)
                rebuilt.as_strided(box.sizes, box.src_strides, box.src_offset).copy_(part)
            assert torch.equal(rebuilt, whole.detach().reshape(-1)), name
    assert differing({k: v for k, v in held.items() if k != "theirs"}, export()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda p: p.to(torch.bfloat16), "casts norm"), (lambda p: p * 0.7, "computes on norm")],
)
def test_a_bridge_that_computes_is_noticed(change, message):
    kept = parameters(torch.float32)
    seen = []

    def export():
        yield "norm", change(kept[1])
        yield "rest", kept[0]
        seen.append(True)

    with pytest.raises(ValueError, match=message):
        trace_export(kept, export, rank=0)
    assert seen, "the export is a collective: it runs to its end"
    assert kept[1].dtype == torch.float32


def test_a_bridge_that_adds_one_is_noticed_by_the_weights():
    """Norms centred at zero (Gemma): the number of one place plus one is that of the next."""
    kept = parameters(torch.float32)

    def export():
        yield "norm", kept[1] + 1
        yield "rest", kept[0]

    held = trace_export(kept, export, rank=0)
    assert differing(held, export()) == ["norm"]
