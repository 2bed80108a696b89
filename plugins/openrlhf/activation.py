"""In the driver: check the seams, then put our actor classes where OpenRLHF looks its own up."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable
from typing import Any

from slipstream.core.config import (
    RUN_NONCE,
    SLIPSTREAM_NODE,
    ConfigError,
    SlipstreamConfig,
    enabled_features,
    to_json,
    with_absolute_paths,
)
from slipstream.core.rollout.service import CALLS_AT_ONCE
from slipstream.core.seams import require
from slipstream.plugins.openrlhf.seams import seam_table
from slipstream.plugins.vllm.seams import seam_table as vllm_seam_table


def activate(config: SlipstreamConfig) -> None:
    """Rebind OpenRLHF's names in this process, which must not have imported its command line yet.

    Raises:
        SeamError: OpenRLHF or vLLM does not look as expected.
        ConfigError: Ray runs already, without slipstream's configuration.
    """
    features = enabled_features(config)
    if not features:
        return
    for table in (seam_table(), vllm_seam_table()):
        require(table, {*features, "stages"}, strict=config.weight_sync.strict_seams)
    import ray

    if ray.is_initialized() and SLIPSTREAM_NODE not in os.environ:
        raise ConfigError(
            "Ray was initialised before slipstream could give it its configuration, so its workers would run without "
            "slipstream; let OpenRLHF call ray.init"
        )
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async
    from openrlhf.trainer.ray import ppo_actor, vllm_engine
    from slipstream.plugins.openrlhf.engine_actor import SlipstreamRolloutActor
    from slipstream.plugins.openrlhf.policy import SlipstreamPolicyActor
    from slipstream.plugins.openrlhf.trainer import SlipstreamAsyncTrainer, SlipstreamTrainer

    remote: Callable[..., Any] = ray.remote
    # Engines serve each other's executors: with Ray's 1000 calls at once, these could wait for themselves.
    routed = {"max_concurrency": CALLS_AT_ONCE} if "router" in features else {}
    vllm_engine.RolloutRayActor = remote(**routed)(SlipstreamRolloutActor) if routed else remote(SlipstreamRolloutActor)
    ppo_trainer.PPOTrainer = remote(SlipstreamTrainer)
    ppo_trainer_async.TrainingActor = remote(SlipstreamAsyncTrainer)
    if "weight_sync" in features:
        ppo_actor.PolicyModelActor = remote(num_gpus=1)(SlipstreamPolicyActor)


def carry(config: SlipstreamConfig, run_folder: str | None = None) -> None:
    """Make `ray.init` give the node to every process of the run; to be called before OpenRLHF calls it.

    Args:
        config: the node.
        run_folder: where the run leaves its results, and `events: auto` its log.
    """
    import ray

    node = {SLIPSTREAM_NODE: to_json(with_absolute_paths(config, run_folder)), RUN_NONCE: uuid.uuid4().hex}
    ray.init = _carrying(ray.init, node)


def _carrying(init: Callable[..., Any], node: dict[str, str]) -> Callable[..., Any]:

    @functools.wraps(init)
    def carrying(*args: Any, **kwargs: Any) -> Any:
        runtime = dict(kwargs.pop("runtime_env", None) or {})
        runtime["env_vars"] = {**(runtime.get("env_vars") or {}), **node}
        return init(*args, runtime_env=runtime, **kwargs)

    return carrying
