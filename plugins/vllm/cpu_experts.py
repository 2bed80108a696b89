"""Keep the experts of a mixture-of-experts layer unpacked when vLLM runs on a CPU.

vLLM's CPU backend prepacks expert weights after the first load and never again: weights that a later load writes are
read by a kernel that expects the packed order, and other tokens are generated without an error (the CPU's
member of the family of vLLM #42821 and SkyRL #1680). With :func:`keep_experts_unpacked` the parameters stay as the
loader writes them, and every call of the kernel packs what it needs. That is slow, and meant for tests and demos; GPU
engines never come here.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

EXPERTS_MODULE = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"
"""The vLLM module with the class of the CPU's experts."""

_CLASS = "CPUUnquantizedExperts"
_WEIGHTS = ("w13_weight", "w2_weight")
_ROUTING = ("use_grouped_topk", "renormalize", "scoring_func", "custom_routing_function")
_DONE = "slipstream_keeps_weights"


def keep_experts_unpacked(module: ModuleType | None = None) -> bool:
    """Make vLLM's CPU experts compute with live weights in this process. Safe to call repeatedly.

    Args:
        module: `EXPERTS_MODULE`, if the caller has it at hand; imported otherwise.

    Returns:
        Whether experts are kept unpacked from now on; False on a platform that has its experts elsewhere.

    Raises:
        RuntimeError: this vLLM has no such class, or a different one.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    if module is None:
        import vllm.model_executor.layers.fused_moe.experts.cpu_moe as imported

        module = imported
    experts = getattr(module, _CLASS, None)
    methods = ("process_weights_after_loading", "apply", "_padded_intermediate_size")
    if experts is None or not all(hasattr(experts, method) for method in methods):
        raise RuntimeError(
            f"{EXPERTS_MODULE}.{_CLASS} is not there or lacks one of {', '.join(methods)}: this vLLM prepares experts "
            "on a CPU in another way, so weight updates of a mixture-of-experts model cannot be made safe"
        )
    if not hasattr(experts, _DONE):
        pack = experts.process_weights_after_loading
        experts.process_weights_after_loading = _unpacked(pack)
        experts.apply = _packing_first(experts.apply, pack)
        setattr(experts, _DONE, True)
    return True


def experts_are_unpacked(experts: object) -> bool:
    """Whether these experts compute with the weights as the loader wrote them."""
    return hasattr(experts, _DONE)


def _unpacked(pack: Any) -> Any:
    """vLLM's preparation without what it does to the weights."""

    @functools.wraps(pack)
    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        size = self.moe_config.intermediate_size_per_partition
        if hasattr(layer, "w13_bias") and type(self)._padded_intermediate_size(self.moe_config) != size:
            raise RuntimeError(
                f"slipstream cannot update experts with biases on a CPU whose intermediate size, {size}, vLLM pads; "
                "use slipstream/weight_sync=native"
            )
        weights = {name: getattr(layer, name) for name in _WEIGHTS}
        pack(self, layer)
        for name, weight in weights.items():
            setattr(layer, name, weight)

    return process_weights_after_loading


def _packing_first(apply: Any, pack: Any) -> Any:
    @functools.wraps(apply)
    def packed(self: Any, hidden_states: torch.Tensor, w1: Any, w2: Any, *rest: Any, **more: Any) -> Any:
        if not self._use_zentorch:
            stand_in: Any = torch.nn.Module()
            for name, weight in zip(_WEIGHTS, (w1, w2), strict=True):
                setattr(stand_in, name, torch.nn.Parameter(weight, requires_grad=False))
            for name in _ROUTING:
                setattr(stand_in, name, getattr(self, name))
            pack(self, stand_in)
            w1, w2 = stand_in.w13_weight, stand_in.w2_weight
        return apply(self, hidden_states, w1, w2, *rest, **more)

    return packed
