"""What slipstream needs of a verl configuration: combinations that this version cannot serve are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from slipstream.core.config import ConfigError, SlipstreamConfig
from slipstream.core.telemetry import check_path, check_prometheus

BACKEND = "slipstream"
"""Name of our checkpoint engine, `actor_rollout_ref.rollout.checkpoint_engine.backend`."""


def check(config: Any, slipstream: SlipstreamConfig) -> None:
    """Refuse combinations that this version cannot serve: in the driver of a run, and in `slipstream config`.

    Args:
        config: the composed configuration of a verl trainer, with a `slipstream` node.
        slipstream: that node, parsed.

    Raises:
        ConfigError: with the key, what it needs and what to do.
    """
    rollout = config.actor_rollout_ref.rollout
    backend = rollout.checkpoint_engine.backend
    chosen = [config.slipstream.get(part) or {} for part in ("weight_sync", "drafter", "router", "placement")]
    if backend != BACKEND and not any("mode" in part for part in chosen):
        raise ConfigError(
            "slipstream: expected +slipstream=sync beside its settings, got settings alone, with which the run would "
            "go on without slipstream; add +slipstream=sync and write the settings without a plus"
        )
    if slipstream.events is not None:
        check_path(slipstream.events)
    if slipstream.prometheus_port is not None:
        check_prometheus()
    if slipstream.drafter.mode != "off":
        _check_drafter(config, slipstream.drafter.mode)
    if slipstream.router.mode != "native":
        _check_router(rollout, slipstream.router.mode)
    if slipstream.placement.mode != "native":
        _check_placement(config, slipstream)
    if slipstream.weight_sync.mode == "native":
        if backend == BACKEND:
            raise ConfigError(
                f"slipstream.weight_sync.mode=native leaves checkpoint_engine.backend={BACKEND}, which would have "
                "nothing to do: choose the group instead, slipstream/weight_sync=native"
            )
        return
    # torch is slow to import
    from slipstream.core.weights.chain import check_chain
    from slipstream.core.weights.transports import check_transport

    check_transport(slipstream.weight_sync.transport)
    if slipstream.weight_sync.chain is not None:
        check_chain(slipstream.weight_sync.chain)
    off = "or add slipstream/weight_sync=native"
    if backend != BACKEND:
        raise ConfigError(
            f"slipstream.weight_sync.mode={slipstream.weight_sync.mode} needs "
            f"actor_rollout_ref.rollout.checkpoint_engine.backend={BACKEND}, got {backend}; "
            f"add +slipstream=sync, which sets it, remove an override of it, {off}"
        )
    setting = f"slipstream.weight_sync.mode={slipstream.weight_sync.mode}"
    _check_engine(rollout, setting, off, _UNSPLIT, ("vllm", "sglang"))
    _check_adapters(config)
    if _name(rollout) == "sglang":
        _check_sglang(config, setting, off)


# Sizes of an engine that have to be 1.
_UNSPLIT = ("data_parallel_size", "pipeline_model_parallel_size")
_ONE_CACHE = ("data_parallel_size",)  # an engine with several caches places requests by itself


def _name(rollout: Any) -> str | None:
    """The engine; verl leaves it to the user, and its own error says so when there is none."""
    return None if OmegaConf.is_missing(rollout, "name") else str(rollout.name)


def _check_engine(rollout: Any, setting: str, off: str, ones: Sequence[str], names: Sequence[str] = ("vllm",)) -> None:
    """Refuse engines that no part of slipstream serves under verl yet."""
    start = f"{setting} needs actor_rollout_ref.rollout."
    name = _name(rollout)
    if name is not None and name not in names:
        known = " or ".join(names)
        raise ConfigError(f"{start}name={known} in this version, got {name}; choose {known} {off}")
    for key in ones:
        if rollout.get(key, 1) != 1:
            raise ConfigError(
                f"{start}{key}=1 in this version, got {rollout.get(key)}; use more replicas instead {off}"
            )
    if (rollout.get("disaggregation") or {}).get("enabled", False):
        raise ConfigError(f"{start}disaggregation.enabled=false in this version; set it {off}")


def _check_router(rollout: Any, mode: str) -> None:
    setting, off = f"slipstream.router.mode={mode}", "or add slipstream/router=native"
    _check_engine(rollout, setting, off, _ONE_CACHE, ("vllm", "sglang"))
    start = f"{setting} needs actor_rollout_ref.rollout."
    if rollout.get("full_determinism", False):  # requests have one name then, and may not choose their replica
        raise ConfigError(f"{start}full_determinism=false, got true; set it {off}")
    if rollout.get("router_config_path") is not None:
        raise ConfigError(
            f"{start}router_config_path=null, got {rollout.router_config_path}; there is one router, remove it {off}"
        )


def _check_drafter(config: Any, mode: str) -> None:
    rollout = config.actor_rollout_ref.rollout
    setting, off = f"slipstream.drafter.mode={mode}", "or add slipstream/drafter=off"
    _check_engine(rollout, setting, off, _UNSPLIT, ("vllm", "sglang"))
    start = f"{setting} needs actor_rollout_ref.rollout."
    if rollout.checkpoint_engine.backend == "delta_sharded":
        raise ConfigError(
            f"{start}checkpoint_engine.backend other than delta_sharded, which refuses engines that draft; add "
            f"+slipstream=sync {off}"
        )
    name = _name(rollout) or "vllm"
    engine = (rollout.get("engine_kwargs") or {}).get(name) or {}
    key = {"vllm": "speculative_config", "sglang": "speculative_algorithm"}[name]
    if engine.get(key) is not None:
        raise ConfigError(
            f"{start}engine_kwargs.{name}.{key}=null, got {engine[key]}: an engine has one drafter; remove it {off}"
        )
    if name == "vllm" and engine.get("async_scheduling"):
        raise ConfigError(
            f"{start}engine_kwargs.vllm.async_scheduling=null, got true: vLLM takes no drafts of a proposer class with "
            f"it; remove it {off}"
        )
    mtp = config.actor_rollout_ref.model.get("mtp") or {}
    if mtp.get("enable", False) and mtp.get("enable_rollout", False):
        raise ConfigError(
            f"{setting} needs actor_rollout_ref.model.mtp.enable_rollout=false, got true: an "
            f"engine has one drafter; set it {off}"
        )


def _check_sglang(config: Any, setting: str, off: str) -> None:
    """What SGLang's workers cannot be given yet."""
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    lora = model.get("lora") or {}
    if max(model.get("lora_rank", 0), lora.get("rank", 0) or 0) > 0 and not lora.get("merge", False):
        raise ConfigError(
            f"{setting} with rollout.name=sglang and LoRA needs actor_rollout_ref.model.lora.merge=true, got false; "
            f"set it, choose vllm {off}"
        )
    if rollout.get("quantization") is not None:
        raise ConfigError(
            f"{setting} with rollout.name=sglang needs actor_rollout_ref.rollout.quantization=null, got "
            f"{rollout.quantization}; remove it, choose vllm {off}"
        )
    mtp = model.get("mtp") or {}
    if mtp.get("enable", False) and mtp.get("enable_rollout", False):
        raise ConfigError(
            f"{setting} with rollout.name=sglang needs actor_rollout_ref.model.mtp.enable_rollout=false, got true: the "
            f"draft model would keep its first weights; set it {off}"
        )


def _check_placement(config: Any, slipstream: SlipstreamConfig) -> None:
    """Whoever has no lease must leave the GPUs' memory to others."""
    setting, off = f"slipstream.placement.mode={slipstream.placement.mode}", "or add slipstream/placement=native"
    if not config.trainer.get("use_v1", True):
        raise ConfigError(f"{setting} needs trainer.use_v1=true in this version, got false; set it {off}")
    mode = OmegaConf.select(config, "trainer.v1.trainer_mode")
    if mode == "separate_async":
        raise ConfigError(
            f"{setting} needs trainer.v1.trainer_mode=sync or colocate_async in this version, got separate_async, "
            f"whose standalone engines never let go of their GPUs; choose one of them {off}"
        )
    correction = config.algorithm.get("rollout_correction") or {}
    if slipstream.placement.overlap and correction.get("bypass_mode", False):
        raise ConfigError(
            "slipstream.placement.overlap=true needs algorithm.rollout_correction.bypass_mode=false, got true, with "
            "which no log-probabilities are computed that could overlap; set one of them to false"
        )
    if config.trainer.get("device") == "cpu":
        return
    actor = config.actor_rollout_ref.actor
    engine, wanted = {
        "megatron": ("megatron", ("param_offload", "grad_offload", "optimizer_offload")),
    }.get(actor.strategy, ("fsdp_config", ("param_offload", "optimizer_offload")))
    missing = [key for key in wanted if not (actor.get(engine) or {}).get(key, False)]
    if missing:
        raise ConfigError(
            f"{setting} needs "
            + " ".join(f"actor_rollout_ref.actor.{engine}.{key}=true" for key in missing)
            + f": the trainer must leave GPU memory to other runs while they have the GPUs; add them {off}"
        )
    if not config.actor_rollout_ref.rollout.get("free_cache_engine", True):
        raise ConfigError(
            f"{setting} needs actor_rollout_ref.rollout.free_cache_engine=true, got false: engines must leave GPU "
            f"memory to other runs while they sleep; set it {off}"
        )


def _check_adapters(config: Any) -> None:
    """verl's disaggregated sync sends the weights under the adapters and never the adapters (verl #7495)."""
    model = config.actor_rollout_ref.model
    lora = model.get("lora") or {}
    rank = max(model.get("lora_rank", 0), lora.get("rank", 0) or 0)
    mode = OmegaConf.select(config, "trainer.v1.trainer_mode")
    if rank > 0 and not lora.get("merge", False) and mode == "separate_async":
        raise ConfigError(
            "trainer.v1.trainer_mode=separate_async with LoRA needs actor_rollout_ref.model.lora.merge=true: verl "
            "sends its standalone engines the weights under the adapters only, so they would generate with the base "
            "model; add ++actor_rollout_ref.model.lora.merge=true, which makes deltas of the merged weights"
        )
