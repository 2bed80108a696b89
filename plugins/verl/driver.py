"""In the driver: check the `slipstream` node before anything starts, and hand it to every Ray process of the run."""

from __future__ import annotations

import functools
import os
import uuid
from types import ModuleType
from typing import Any

from slipstream.core.config import (
    RUN_NONCE,
    SLIPSTREAM_NODE,
    ConfigError,
    SlipstreamConfig,
    enabled_features,
    parse_config,
    to_json,
    with_absolute_paths,
)
from slipstream.core.seams import require
from slipstream.plugins.verl.requirements import check
from slipstream.plugins.verl.seams import seam_table


def install(module: ModuleType) -> None:
    """Wrap the function of `module` through which verl's entry points show us their configuration.

    A verl without it is left alone: only a run with the override needs it, and that checks (`_check_seams`).
    """
    for name, wrap in (("validate_config", _validating), ("get_ppo_ray_runtime_env", _carrying)):
        if module.__name__ == _DRIVER_SEAMS[name] and hasattr(module, name):
            setattr(module, name, wrap(getattr(module, name)))


_DRIVER_SEAMS = {"validate_config": "verl.utils.config", "get_ppo_ray_runtime_env": "verl.trainer.constants_ppo"}


def _check_seams(slipstream: SlipstreamConfig) -> None:
    """Raise where verl no longer has a function that hands the node over: nothing would be switched on, silently."""
    if features := enabled_features(slipstream):
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
            slipstream = with_absolute_paths(slipstream, _run_folder())
            env["env_vars"][SLIPSTREAM_NODE] = to_json(slipstream)
            env["env_vars"][RUN_NONCE] = uuid.uuid4().hex
        return env

    return runtime_env


def _run_folder() -> str | None:
    """Where Hydra keeps the configuration and the log of this run; None for a driver that Hydra did not start."""
    from hydra.core.hydra_config import HydraConfig

    return str(HydraConfig.get().runtime.output_dir) if HydraConfig.initialized() else None


def _check_ray() -> None:
    import ray

    if ray.is_initialized() and SLIPSTREAM_NODE not in os.environ:
        raise ConfigError(
            "Ray was initialised before verl could give it slipstream's configuration, so the workers would run "
            "without slipstream. Let verl call ray.init, or pass runtime_env={'env_vars': {'SLIPSTREAM_NODE': ...}} "
            "with the output of `slipstream config --json`"
        )
