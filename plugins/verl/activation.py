"""In the processes of a run that was started with slipstream: put our classes where verl looks its own up."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.core.seams import require
from slipstream.plugins.verl.driver import BACKEND
from slipstream.plugins.verl.seams import seam_table
from slipstream.plugins.vllm.seams import seam_table as vllm_seam_table


def install(module: ModuleType) -> None:
    """Register what belongs to `module`, if this run has slipstream switched on."""
    config = from_environment()
    if config is None or config.weight_sync.mode == "native":
        return
    # What is patched here must be there: say so now, not in an AttributeError.
    broken = require(seam_table(), {"weight_sync"}, {module.__name__}, strict=config.weight_sync.strict_seams)
    try:
        _PATCHES[module.__name__](module, config)
    except AttributeError:
        if not any(result.broken for result in broken):
            raise  # strict_seams=false: named in a warning already


def _rollout_adapter(module: Any, config: SlipstreamConfig) -> None:
    module._ROLLOUT_REGISTRY[("vllm", "async")] = "slipstream.plugins.verl.rollout.SlipstreamServerAdapter"


def _replica(module: Any, config: SlipstreamConfig) -> None:
    def load() -> type:
        for table in (seam_table(), vllm_seam_table()):
            require(table, {"weight_sync"}, strict=config.weight_sync.strict_seams)
        from slipstream.plugins.verl.replica import SlipstreamReplica

        return SlipstreamReplica

    module.RolloutReplicaRegistry.register("vllm", load)


def _checkpoint_engine(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.metrics import collect_after_sync

    module.CheckpointEngineManager.update_weights = collect_after_sync(module.CheckpointEngineManager.update_weights)

    class Lazy:
        """Stands in the registry until a checkpoint engine is built; the real class derives from verl's."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return _engine_class()(*args, **kwargs)

        @staticmethod
        def build_topology(*args: Any, **kwargs: Any) -> Any:
            return _engine_class().build_topology(*args, **kwargs)

    module.CheckpointEngineRegistry.register(BACKEND)(Lazy)


def _engine_class() -> Any:
    from slipstream.plugins.verl.checkpoint_engine import SlipstreamCheckpointEngine

    return SlipstreamCheckpointEngine


def _trainer(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.metrics import merge_into_step

    module.PPOTrainer._consume_sync_metrics = merge_into_step(module.PPOTrainer._consume_sync_metrics)


def _trainer_worker(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.shards import hand_over

    module.ActorRolloutRefWorker.init_model = hand_over(module.ActorRolloutRefWorker.init_model)


_PATCHES: dict[str, Callable[[Any, SlipstreamConfig], None]] = {
    "verl.workers.rollout.base": _rollout_adapter,
    "verl.workers.rollout.replica": _replica,
    "verl.checkpoint_engine.base": _checkpoint_engine,
    "verl.trainer.ppo.v1.trainer_base": _trainer,
    "verl.workers.engine_workers": _trainer_worker,
}
