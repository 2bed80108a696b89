"""Everything in OpenRLHF that this adapter relies on."""

from __future__ import annotations

from slipstream.core.seams import Seam, SeamTable

_ENGINE = "openrlhf.trainer.ray.vllm_engine"
_ACTOR = "openrlhf.trainer.ray.ppo_actor"
_PLAIN = "__ray_metadata__.modified_class.__ray_actor_class__"


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _draft(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "drafter", signature, note)


def _route(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "router", signature, note)


def _note(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "stages", signature, note)


def seam_table() -> SeamTable:
    """The seam table for OpenRLHF; importing its targets pulls in DeepSpeed and vLLM as well."""
    return SeamTable(
        owner="openrlhf",
        distribution="openrlhf",
        versions=">=0.11.2,<0.12",
        tested=("0.11.2",),
        seams=(
            _sync("openrlhf.utils.config:hierarchize", "(args)", "nests the options, for the driver's check"),
            _sync(f"{_ENGINE}:RolloutRayActor.{_PLAIN}.__init__", "(*args, bundle_indices, ...)", "our extension"),
            _sync(f"{_ENGINE}:RolloutRayActor.{_PLAIN}.reset_prefix_cache", "()", "drops prefixes of old weights"),
            _sync(f"{_ENGINE}:create_vllm_engines", "(num_engines, tensor_parallel_size, ...)", "builds our actor"),
            _sync("openrlhf.trainer.ray.vllm_worker_wrap:WorkerWrap", None, "our worker extension derives from it"),
            _sync("vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", "(method, timeout, args, kwargs)", "a sync"),
            _sync(
                f"{_ACTOR}:PolicyModelActor.{_PLAIN}.init_model_from_pretrained",
                "(strategy, pretrain, max_steps, vllm_engines)",
                "builds our trainer",
            ),
            _sync(f"{_ACTOR}:PolicyModelActor.{_PLAIN}.broadcast_to_vllm", "()", "replaced"),
            _sync(f"{_ACTOR}:ActorPPOTrainer.broadcast_to_vllm", "()", "replaced"),
            _sync(f"{_ACTOR}:ActorPPOTrainer._init_vllm_sync_group", "(backend)", "replaced: no group is needed"),
            _sync("openrlhf.utils.distributed_util:torch_dist_barrier_and_cuda_sync", "()", "ends a sync"),
            _sync("openrlhf.trainer.ppo_trainer:BasePPOTrainer.broadcast_to_vllm", "()", "metrics after a sync"),
            _sync(
                "openrlhf.trainer.ppo_trainer:BasePPOTrainer.train_step",
                "(rollout_samples, global_step)",
                "metrics in what is logged",
            ),
            _draft(f"{_ENGINE}:RolloutRayActor.{_PLAIN}.__init__", "(*args, bundle_indices, ...)", "our drafter"),
            _draft(
                f"{_ENGINE}:RolloutRayActor.{_PLAIN}.generate_responses",
                "(prompt, label, sampling_params, ...)",
                "samples of one prompt are a group",
            ),
            _draft(
                f"{_ENGINE}:RolloutRayActor.{_PLAIN}.generate",
                "(prompt_token_ids, sampling_params, multi_modal_data)",
                "every request of an executor",
            ),
            _draft(
                "openrlhf.trainer.ppo_trainer:BasePPOTrainer.train_step",
                "(rollout_samples, global_step)",
                "metrics, and exchange between engines",
            ),
            _route(
                f"{_ENGINE}:RolloutRayActor.{_PLAIN}.__init__", "(*args, bundle_indices, ...)", "watches the engine"
            ),
            _route(
                f"{_ENGINE}:RolloutRayActor.{_PLAIN}.generate_responses",
                "(prompt, label, sampling_params, ...)",
                "samples of one prompt are a group",
            ),
            _route(
                f"{_ENGINE}:RolloutRayActor.{_PLAIN}.generate",
                "(prompt_token_ids, sampling_params, multi_modal_data)",
                "every request of an executor goes where the router says",
            ),
            _route(f"{_ENGINE}:RolloutRayActor.{_PLAIN}.pause_generation", "()", "an engine that stands still"),
            _route(f"{_ENGINE}:RolloutRayActor.{_PLAIN}.resume_generation", "()", "goes on"),
            _route(
                "openrlhf.utils.agent:AgentExecutorBase.execute",
                "(prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images)",
                "a trajectory from its first turn to its end",
            ),
            _route("openrlhf.utils.agent:SingleTurnAgentExecutor", None, "its trajectories end with their only turn"),
            _route(
                "vllm.v1.engine.async_llm:AsyncLLM.generate", "(prompt, sampling_params, request_id, ...)", "a turn"
            ),
            _route("vllm.outputs:CompletionOutput.__init__", "(index, text, token_ids, ...)", "attempts are joined"),
            _route(
                "vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request",
                "(tokenizer, request)",
                "text of joined attempts",
            ),
            _route("openrlhf.trainer.ppo_trainer:BasePPOTrainer.broadcast_to_vllm", "()", "a new version of weights"),
            _route(
                "openrlhf.trainer.ppo_trainer:BasePPOTrainer.train_step",
                "(rollout_samples, global_step)",
                "metrics in what is logged",
            ),
            _note("openrlhf.trainer.ppo_trainer:BasePPOTrainer.ppo_train", "(global_steps)", "a stage"),
            _note(
                "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker.make_experience_batch",
                None,
                "a stage",
            ),
            _note(
                "openrlhf.trainer.ppo_utils.samples_generator:SamplesGenerator.generate_samples",
                "(**generate_kwargs)",
                "a stage",
            ),
            _note(
                "openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_logs_and_checkpoints",
                "(global_step, logs_dict, client_states)",
                "ends a step",
            ),
            _sync(f"openrlhf.trainer.ppo_trainer:PPOTrainer.{_PLAIN}", None, "our controller derives from it"),
            _sync(f"openrlhf.trainer.ppo_trainer_async:TrainingActor.{_PLAIN}", None, "the same, asynchronous"),
            _sync("deepspeed:zero.GatheredParameters", "(params, modifier_rank, fwd_module, enabled)", "whole tensors"),
            _sync(
                "deepspeed.module_inject.layers:GatherReplacedLayerParams",
                "(params, module, enabled)",
                "whole tensors under AutoTP",
            ),
            _sync(
                "deepspeed.runtime.zero.partition_parameters:Init._partition_param",
                None,
                "lays flat ranges of equal size out as `ds_tensor`",
            ),
        ),
        switch_off={
            "weight_sync": "--slipstream.weight_sync native",
            "drafter": "--slipstream.drafter off",
            "router": "--slipstream.router native",
            "stages": "--slipstream.weight_sync.strict_seams false",
        },
    )
