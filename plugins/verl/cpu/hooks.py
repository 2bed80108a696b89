"""Install the CPU test bed into the verl of this process."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from slipstream.plugins.verl.post_import import after_import

__all__ = ["SEEDED_AGENT_LOOP", "activate"]

SEEDED_AGENT_LOOP = "seeded_single_turn_agent"
"""Name for ``actor_rollout_ref.rollout.agent.default_agent_loop``: every sample draws from a seed of its own."""

_activated = False


def activate() -> None:
    """Register the platform now and the rest as soon as verl and vLLM import the modules concerned. Idempotent."""
    global _activated
    if _activated:
        return
    from slipstream.plugins.verl.cpu.platform import CpuPlatform
    from verl.plugin.platform import PlatformRegistry

    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    after_import("verl.workers.engine.fsdp.transformer_impl", _register_fsdp)
    after_import("verl.utils.distributed", _single_gloo_backend)
    after_import("verl.experimental.agent_loop.agent_loop", _register_agent_loop)
    after_import("vllm.model_executor.layers.utils", _keep_weights_unpacked)
    after_import("vllm.model_executor.layers.fused_moe.experts.cpu_moe", _keep_experts_unpacked)
    _activated = True


def _register_fsdp(module: ModuleType) -> None:
    backends = ["fsdp", "fsdp2"]
    registry = module.EngineRegistry
    registry.register(model_type="language_model", backend=backends, device="cpu")(module.FSDPEngineWithLMHead)
    registry.register(model_type="value_model", backend=backends, device="cpu")(module.FSDPEngineWithValueHead)


def _single_gloo_backend(module: ModuleType) -> None:
    """Default to one backend where verl would name the device `cpu` twice."""
    original = module.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray  # type: ignore[attr-defined]


def _register_agent_loop(module: ModuleType) -> None:
    # By path, not with verl's decorator: the class derives from one whose module is still being imported.
    module._agent_loop_registry[SEEDED_AGENT_LOOP] = {
        "_target_": "slipstream.plugins.verl.cpu.agent_loop.SeededSingleTurnAgentLoop"
    }


def _keep_weights_unpacked(module: ModuleType) -> None:
    from slipstream.plugins.vllm.cpu_packing import keep_weights_unpacked

    keep_weights_unpacked(module)


def _keep_experts_unpacked(module: ModuleType) -> None:
    from slipstream.plugins.vllm.cpu_experts import keep_experts_unpacked

    keep_experts_unpacked(module)
