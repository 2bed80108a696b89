"""Everything in verl that this adapter relies on."""

from __future__ import annotations

from slipstream.core.seams import Seam, SeamTable

_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_ADAPTER = "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter"
_ENGINE = "verl.checkpoint_engine.base:CheckpointEngine"


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _draft(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "drafter", signature, note)


def seam_table() -> SeamTable:
    """The seam table for verl; importing its targets pulls in vLLM as well."""
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
        ),
        switch_off={"drafter": "slipstream/drafter=off"},
    )
