"""What a load through vLLM's loader changes beside the weights goes back with them; no engine is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.transaction import Transaction
from slipstream.plugins.vllm.engine import VllmEngine


class Fp8Method:
    """Stands for a method that replaces a parameter when it is loaded, as vLLM's quantising ones do."""


class Attention(nn.Module):
    """A layer with a hook of its own, like latent attention: keeps an absorbed copy as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = nn.Linear(4, 3, bias=False)
        self.process_weights_after_loading(None)

    def process_weights_after_loading(self, dtype):
        self.absorbed = self.kv_b_proj.weight.detach().t().contiguous()


def model() -> nn.Module:
    torch.manual_seed(1)
    found = nn.ModuleDict(
        {"attention": Attention(), "quantised": nn.Linear(4, 4, bias=False), "plain": nn.Linear(4, 4)}
    )
    found["quantised"].quant_method = Fp8Method()
    found["quantised"].register_buffer("scale", torch.ones(1))
    return found


def load(engine_model: nn.Module, fails: bool) -> None:
    attention, quantised = engine_model["attention"], engine_model["quantised"]
    with torch.no_grad():
        attention.kv_b_proj.weight.add_(1)
        quantised.scale.mul_(3)
    attention.process_weights_after_loading(None)
    quantised.weight = nn.Parameter(quantised.weight.detach() / 3)
    quantised.packed = torch.ones(7)
    del quantised.quant_method
    if fails:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize("fails", [False, True])
def test_layers_that_transform_are_restored_by_reference_and_content(fails, monkeypatch):
    network = model()
    engine = VllmEngine(SimpleNamespace(model_runner=SimpleNamespace(model=network)))
    monkeypatch.setattr(engine, "load_weights", lambda weights: load(network, fails))
    monkeypatch.setattr(engine, "finish_loading", lambda: None)
    attention, quantised = network["attention"], network["quantised"]
    before = [(t, t.detach().clone()) for t in (attention.absorbed, attention.kv_b_proj.weight, quantised.weight)]
    checksums, method = engine.checksums(), quantised.quant_method
    transaction = Transaction(LayoutMap((), (), []), (), engine)
    try:
        transaction.load([("x", torch.ones(1))])
    except RuntimeError:
        assert fails
    assert engine.checksums() != checksums
    transaction.roll_back()
    assert engine.checksums() == checksums
    for (tensor, value), now in zip(
        before, (attention.absorbed, attention.kv_b_proj.weight, quantised.weight), strict=True
    ):
        assert now is tensor
        assert torch.equal(now, value)
    assert quantised.quant_method is method
    assert not hasattr(quantised, "packed")
