"""What every engine over a `torch.nn.Module` shares."""

from __future__ import annotations

import pytest
import torch

from slipstream.core.weights.engine import keeps_parameters


def scaled(layer: torch.nn.Linear) -> None:
    layer.weight.data.mul_(2)


def packed(layer: torch.nn.Linear) -> None:
    layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous())


@pytest.mark.parametrize(("prepare", "kept"), [(lambda layer: None, True), (scaled, False), (packed, False)])
def test_a_preparation_that_changes_a_layer_is_found_and_undone(prepare, kept):
    layer = torch.nn.Linear(3, 2, bias=False)
    layer.weight.data[0, 0] = float("nan")
    parameter, bits = layer.weight, layer.weight.detach().clone().view(torch.int32)
    assert keeps_parameters(layer, prepare) is kept
    assert layer.weight is parameter
    assert torch.equal(layer.weight.detach().view(torch.int32), bits)
