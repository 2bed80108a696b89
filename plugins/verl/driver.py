"""In the driver: check the `slipstream` node before anything starts, and hand it to every Ray process of the run."""

from __future__ import annotations

import dataclasses
import functools
import os
import uuid
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

from slipstream.core.config import SLIPSTREAM_NODE, ConfigError, SlipstreamConfig, parse_config, to_json
from slipstream.core.seams import require
from slipstream.core.telemetry import check_path
from slipstream.plugins.verl.seams import seam_table

RUN_NONCE = "SLIPSTREAM_RUN_NONCE"
"""Environment variable that sets the sockets of one run apart from those of another on the same node."""
BACKEND = "slipstream"
"""Name of our checkpoint engine, `actor_rollout_ref.rollout.checkpoint_engine.backend`."""


def install(module: ModuleType) -> None:
    """Wrap the function of `module` through which verl's entry points show us their configuration.

    A verl without it is left alone: only a run with the override needs it, and that checks (`_check_seams`).
    """
    for name, wrap in (("validate_config", _validating), ("get_ppo_ray_runtime_env", _carrying)):
        if module.__name__ == _DRIVER_SEAMS[name] and hasattr(module, name):
            setattr(module, name, wrap(getattr(module, name)))


_DRIVER_SEAMS = {"validate_config": "verl.utils.config", "get_ppo_ray_runtime_env": "verl.trainer.constants_ppo"}


def enabled(slipstream: SlipstreamConfig) -> set[str]:
    """Return the features that are switched on, by their names in the seam table."""
    modes = {
        "weight_sync": slipstream.weight_sync.mode,
        "drafter": slipstream.drafter.mode,
    }
    return {feature for feature, mode in modes.items() if mode not in ("native", "off")}


def _check_seams(slipstream: SlipstreamConfig) -> None:
    """Raise where verl no longer has a function that hands the node over: nothing would be switched on, silently."""
    if features := enabled(slipstream):
        modules = set(_DRIVER_SEAMS.values())
        require(seam_table(), features, modules, strict=slipstream.weight_sync.strict_seams)


def _validating(validate_config: Any) -> Any:
    @functools.wraps(validate_config)
    def validate(config: Any, *args: Any, **kwargs: Any) -> Any:
        node = config.get("slipstream")
        if node is not None:
            slipstream = parse_config(node)
            _check_seams(slipstream)
            _check_ray()
            check(config, slipstream)
        return validate_config(config, *args, **kwargs)

    return validate


def _carrying(get_ppo_ray_runtime_env: Any) -> Any:
    @functools.wraps(get_ppo_ray_runtime_env)
    def runtime_env(config: Any = None) -> Any:
        env = get_ppo_ray_runtime_env(config)
        node = config.get("slipstream") if config is not None else None
        if node is not None:
            slipstream = parse_config(node)
            _check_seams(slipstream)
            slipstream = _absolute(slipstream)
            env["env_vars"][SLIPSTREAM_NODE] = to_json(slipstream)
            env["env_vars"][RUN_NONCE] = uuid.uuid4().hex
        return env

    return runtime_env


def _absolute(slipstream: SlipstreamConfig) -> SlipstreamConfig:
    """Paths as seen from here: Ray's workers have folders of their own."""
    sync = slipstream.weight_sync
    if sync.chain is not None and "://" not in sync.chain:
        sync = dataclasses.replace(sync, chain=os.path.abspath(sync.chain))
    events = None if slipstream.events is None else os.path.abspath(slipstream.events)
    return dataclasses.replace(slipstream, weight_sync=sync, events=events)


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
    chosen = [config.slipstream.get(part) or {} for part in ("weight_sync", "drafter")]
    if backend != BACKEND and not any("mode" in part for part in chosen):
        raise ConfigError(
            "slipstream: expected +slipstream=sync beside its settings, got settings alone, with which the run would "
            "go on without slipstream; add +slipstream=sync and write the settings without a plus"
        )
    if slipstream.events is not None:
        check_path(slipstream.events)
    if slipstream.drafter.mode != "off":
        _check_drafter(config, slipstream.drafter.mode)
    if slipstream.router.mode != "native":
        raise ConfigError(
            f"slipstream.router.mode={slipstream.router.mode}: expected native, this version has no load balancer for "
            "verl yet; leave out slipstream/router (slipstream replay shows what the router would do)"
        )
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
    # verl leaves the name to the user; its own error says so when there is none.
    if not OmegaConf.is_missing(rollout, "name") and rollout.name != "vllm":
        raise ConfigError(
            f"slipstream.weight_sync.mode={slipstream.weight_sync.mode} needs actor_rollout_ref.rollout.name=vllm "
            f"in this version, got {rollout.name}; choose vllm {off}"
        )
    for key in ("data_parallel_size", "pipeline_model_parallel_size"):
        if rollout.get(key, 1) != 1:
            raise ConfigError(
                f"slipstream weight sync needs actor_rollout_ref.rollout.{key}=1 in this version, "
                f"got {rollout.get(key)}; use more replicas instead {off}"
            )
    if (rollout.get("disaggregation") or {}).get("enabled", False):
        raise ConfigError(
            "slipstream weight sync does not serve prefill/decode disaggregation yet: set "
            f"actor_rollout_ref.rollout.disaggregation.enabled=false {off}"
        )
    _check_adapters(config)


def _check_drafter(config: Any, mode: str) -> None:
    rollout = config.actor_rollout_ref.rollout
    start = f"slipstream.drafter.mode={mode} needs actor_rollout_ref.rollout."
    off = "or add slipstream/drafter=off"
    if not OmegaConf.is_missing(rollout, "name") and rollout.name != "vllm":
        raise ConfigError(f"{start}name=vllm in this version, got {rollout.name}; choose vllm {off}")
    for key in ("data_parallel_size", "pipeline_model_parallel_size"):
        if rollout.get(key, 1) != 1:
            raise ConfigError(f"{start}{key}=1, got {rollout.get(key)}; use more replicas instead {off}")
    if (rollout.get("disaggregation") or {}).get("enabled", False):
        raise ConfigError(f"{start}disaggregation.enabled=false in this version; set it {off}")
    if rollout.checkpoint_engine.backend == "delta_sharded":
        raise ConfigError(
            f"{start}checkpoint_engine.backend other than delta_sharded, which refuses engines that draft; add "
            f"+slipstream=sync {off}"
        )
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    if engine.get("speculative_config") is not None:
        raise ConfigError(
            f"{start}engine_kwargs.vllm.speculative_config=null, got {engine['speculative_config']}: an engine has one "
            f"drafter; remove it {off}"
        )
    if engine.get("async_scheduling"):
        raise ConfigError(
            f"{start}engine_kwargs.vllm.async_scheduling=null, got true: vLLM takes no drafts of a proposer class with "
            f"it; remove it {off}"
        )
    mtp = config.actor_rollout_ref.model.get("mtp") or {}
    if mtp.get("enable", False) and mtp.get("enable_rollout", False):
        raise ConfigError(
            f"slipstream.drafter.mode={mode} needs actor_rollout_ref.model.mtp.enable_rollout=false, got true: an "
            f"engine has one drafter; set it {off}"
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


def _check_ray() -> None:
    import ray

    if ray.is_initialized() and SLIPSTREAM_NODE not in os.environ:
        raise ConfigError(
            "Ray was initialised before verl could give it slipstream's configuration, so the workers would run "
            "without slipstream. Let verl call ray.init, or pass runtime_env={'env_vars': {'SLIPSTREAM_NODE': ...}} "
            "with the output of `slipstream config --json`"
        )
