"""In the processes of a run that was started with slipstream: put our classes where verl looks its own up."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from slipstream.core.config import SlipstreamConfig, enabled_features, from_environment
from slipstream.core.seams import SeamTable, require
from slipstream.plugins.sglang.seams import seam_table as sglang_seam_table
from slipstream.plugins.verl.requirements import BACKEND
from slipstream.plugins.verl.seams import seam_table
from slipstream.plugins.vllm.seams import seam_table as vllm_seam_table


def install(module: ModuleType) -> None:
    """Register what belongs to `module`, if this run has slipstream switched on."""
    config = from_environment()
    if config is None:
        return
    features = {*enabled_features(config), "stages"}
    if config.events is not None or config.prometheus_port is not None:
        features.add("events")
    for feature, patch in _PATCHES[module.__name__]:
        if feature not in features:
            continue
        # What is patched here must be there: say so now, not in an AttributeError.
        broken = require(seam_table(), {feature}, {module.__name__}, strict=config.weight_sync.strict_seams)
        try:
            patch(module, config)
        except AttributeError:
            if not any(result.broken for result in broken):
                raise  # strict_seams=false: named in a warning already


def _rollout_adapter(module: Any, config: SlipstreamConfig) -> None:
    for engine in ("vllm", "sglang"):
        name = f"slipstream.plugins.verl.{engine}_rollout.SlipstreamServerAdapter"
        module._ROLLOUT_REGISTRY[(engine, "async")] = name


def _replica(module: Any, config: SlipstreamConfig) -> None:
    def check_seams(engine: str, table: SeamTable) -> None:
        for each in (seam_table(engine), table):
            require(each, enabled_features(config), strict=config.weight_sync.strict_seams)

    def load_vllm() -> type:
        check_seams("vllm", vllm_seam_table())
        from slipstream.plugins.verl.replica import replica_class

        return replica_class(enabled_features(config))

    def load_sglang() -> type:
        module._load_sglang()  # imports SGLang in the way that a process without a GPU needs
        check_seams("sglang", sglang_seam_table())
        from slipstream.plugins.verl.sglang_replica import replica_class

        return replica_class(enabled_features(config))

    module.RolloutReplicaRegistry.register("vllm", load_vllm)
    module.RolloutReplicaRegistry.register("sglang", load_sglang)


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


def _llm_server(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.routing.manager import routed

    routed(module.LLMServerManager)


def _agent_loop(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.routing.samples import in_samples

    module.AgentLoopWorker._run_agent_loop = in_samples(module.AgentLoopWorker._run_agent_loop)


def _router_metrics(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.routing.manager import with_router_metrics

    module.PPOTrainer._consume_sync_metrics = with_router_metrics(module.PPOTrainer._consume_sync_metrics, config)


def _drafter_metrics(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.drafting import with_drafter_metrics

    module.PPOTrainer._consume_sync_metrics = with_drafter_metrics(module.PPOTrainer._consume_sync_metrics, config)


def _groups(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.drafting import in_groups

    module.AgentLoopWorker._run_agent_loop = in_groups(module.AgentLoopWorker._run_agent_loop)


def _stages(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.telemetry import in_stages

    module.marked_timer = in_stages(module.marked_timer)


def _steps(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.telemetry import numbered

    numbered(module.PPOTrainer)


def _run_log(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.telemetry import noted

    noted(module.PPOTrainer, module.Tracking, config)


def _placed_trainers(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.placement.trainer import with_placement

    module.get_trainer_cls = with_placement(module.get_trainer_cls, config)


def _limited_replica(module: Any, config: SlipstreamConfig) -> None:
    if config.placement.engine_threads is not None:
        _replica(module, config)


def _own_queue(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.placement.queues import own_queue

    own_queue(module)


def _sglang_server(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.sglang_versions import know_server_arguments

    know_server_arguments(module)


def _sglang_client(module: Any, config: SlipstreamConfig) -> None:
    from slipstream.plugins.verl.sglang_versions import open_sessions

    open_sessions(module)


_Patch = Callable[[Any, SlipstreamConfig], None]
_ANY = ("weight_sync", "drafter", "router", "placement", "events")
_PATCHES: dict[str, tuple[tuple[str, _Patch], ...]] = {
    "verl.workers.rollout.base": (("weight_sync", _rollout_adapter),),
    "verl.workers.rollout.replica": (
        ("weight_sync", _replica),
        ("drafter", _replica),
        ("router", _replica),
        ("placement", _limited_replica),
    ),
    "verl.checkpoint_engine.base": (("weight_sync", _checkpoint_engine),),
    "verl.trainer.ppo.v1.trainer_base": (
        ("weight_sync", _trainer),
        ("drafter", _drafter_metrics),
        ("router", _router_metrics),
        ("placement", _placed_trainers),
        ("events", _run_log),
        ("stages", _steps),
        ("stages", _stages),
    ),
    "verl.trainer.ppo.v1.trainer_sync": (("stages", _stages),),
    "verl.trainer.ppo.v1.trainer_colocate_async": (("stages", _stages),),
    "verl.trainer.ppo.v1.trainer_separate_async": (("stages", _stages),),
    "transfer_queue.interface": (("placement", _own_queue),),
    "verl.workers.engine_workers": (("weight_sync", _trainer_worker),),
    "verl.workers.rollout.llm_server": (("router", _llm_server),),
    "verl.experimental.agent_loop.agent_loop": (("drafter", _groups), ("router", _agent_loop)),
    "verl.workers.rollout.sglang_rollout.async_sglang_server": tuple((feature, _sglang_server) for feature in _ANY),
    "verl.workers.rollout.sglang_rollout.http_server_engine": tuple((feature, _sglang_client) for feature in _ANY),
}
"""By the module that verl imports: the feature, and what it does there."""
