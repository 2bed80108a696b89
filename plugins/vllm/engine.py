"""One vLLM worker as weight sync sees it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from slipstream.core.weights.engine import ModuleEngine, keeps_parameters, layer_state
from slipstream.plugins.vllm.cpu_experts import experts_are_unpacked

_PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
"""vLLM layer methods that leave weights in checkpoint form after loading. Every other one (quantised, experts with
block layouts of their own: vLLM #42821, SkyRL #1680) takes the loader path, because shapes alone cannot tell."""
_PLAIN_EXPERTS = frozenset({"TRITON", "BATCHED_TRITON"})
"""Backends of vLLM's unquantised experts that compute with `w13` and `w2` as the loader writes them."""


class VllmEngine(ModuleEngine):
    """Implements `slipstream.core.weights.engine.Engine` over a live vLLM worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    @property
    def model(self) -> Any:
        """The worker's model."""
        return self._worker.model_runner.model

    def finish_loading(self) -> None:
        """Rebuild what vLLM derives from loaded weights."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        config = self._worker.model_runner.vllm_config
        with set_current_vllm_config(config):
            process_weights_after_loading(self.model, config.model_config, self.device)

    def derived(self) -> list[MutableMapping[str, Any]]:
        """Attributes, parameters and buffers of every layer with post-load processing."""
        return layer_state(layer for layer in self.model.modules() if _is_transformed(layer))

    def transformed(self) -> list[torch.Tensor]:
        """Parameters of layers whose post-load processing may change the memory layout."""
        transformed = (m for m in self.model.modules() if _is_transformed(m) or not self._keeps_experts(m))
        return [parameter for module in transformed for parameter in module.parameters()]

    def _keeps_experts(self, module: torch.nn.Module) -> bool:
        """Whether vLLM's preparation leaves the experts of this layer alone; layers without are not looked at."""
        if not _has_experts(module):
            return True
        from vllm.config import set_current_vllm_config

        method: Any = module.quant_method
        with set_current_vllm_config(self._worker.model_runner.vllm_config):
            return keeps_parameters(module, method.process_weights_after_loading)


def _is_transformed(module: torch.nn.Module) -> bool:
    """Whether vLLM derives something from the module's weights after loading, in place or beside them.

    A hook of the module itself counts with everything below it: latent attention keeps absorbed copies of `kv_b_proj`,
    which only a load through vLLM's own loader rebuilds.
    """
    method = getattr(module, "quant_method", None)
    plain = method is None or type(method).__name__ in _PLAIN_METHODS or _has_plain_experts(method)
    return not plain or hasattr(module, "process_weights_after_loading")


def _has_plain_experts(method: Any) -> bool:
    if type(method).__name__ != "UnquantizedFusedMoEMethod":
        return False
    experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
    if method.unquantized_backend.name == "CPU":
        return experts_are_unpacked(experts)
    # A kernel with a hook of its own keeps something that only vLLM's loader renews.
    return method.unquantized_backend.name in _PLAIN_EXPERTS and not hasattr(experts, "process_weights_after_loading")


def _has_experts(module: torch.nn.Module) -> bool:
    return hasattr(module, "w13_weight") and _has_plain_experts(getattr(module, "quant_method", None))
