"""Everything in SGLang that this adapter relies on."""

from __future__ import annotations

from slipstream.core.seams import Seam, SeamTable

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater"
_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager"
_NGRAM = "sglang.srt.speculative.ngram_worker:"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager:TokenizerManager"


def _sync(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "weight_sync", signature, note)


def _draft(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "drafter", signature, note)


def _route(target: str, signature: str | None, note: str) -> Seam:
    return Seam(target, "router", signature, note)


def seam_table() -> SeamTable:
    """The seam table for SGLang."""
    return SeamTable(
        owner="sglang",
        distribution="sglang",
        versions=">=0.5.23,<0.6",
        tested=("0.5.23",),
        seams=(
            _sync("sglang.srt.server_args:ServerArgs.custom_weight_loader", None, "lets our loader run in the workers"),
            _sync(
                "sglang.srt.plugins.hook_registry:HookRegistry.register",
                "(target, hook, hook_type, ...)",
                "hooks the methods below",
            ),
            _sync(
                f"{_UPDATER}.update_weights_from_tensor",
                "(named_tensors, load_format)",
                "runs our loader; hooked: answers for it, and notices other writers",
            ),
            _sync(
                f"{_UPDATER}.load_weights_from_distributed",
                "(named_tensors)",
                "hooked: takes our commands, and notices other writers",
            ),
            _sync(f"{_UPDATER}.update_weights_from_disk", "(model_path, load_format, ...)", "hooked: notices others"),
            _sync(f"{_UPDATER}.update_weights_from_ipc", "(recv_req)", "hooked: notices other writers"),
            _sync(f"{_UPDATER}.get_model", None, "whose weights these are"),
            _sync(f"{_MANAGER}.begin_weight_update", "(recv_req)", "opens the session; brings packed weights back"),
            _sync(f"{_MANAGER}.end_weight_update", "(recv_req)", "closes the session; packs weights again"),
            _sync(f"{_MANAGER}.release_memory_occupation", "(recv_req)", "hooked: weights may be lost"),
            _sync(f"{_MANAGER}.resume_memory_occupation", "(recv_req)", "hooked: weights have memory again"),
            _sync(f"{_MANAGER}.check_weights", "(recv_req)", "hooked: one of its actions writes"),
            _sync(f"{_TOKENIZER}.pause_generation", "(obj)", "mode=retract before an update"),
            _sync(f"{_TOKENIZER}.continue_generation", "(obj)", "after it"),
            _sync(f"{_TOKENIZER}.begin_weight_update", "(obj, request)", "opens the session"),
            _sync(f"{_TOKENIZER}.end_weight_update", "(obj, request)", "closes the session"),
            _sync(f"{_TOKENIZER}.update_weights_from_tensor", "(obj, request)", "carries our command to every worker"),
            _sync(f"{_TOKENIZER}.update_weight_version", "(obj)", "names the weights that requests were served with"),
            _sync("sglang.srt.runtime_context:get_parallel", "()", "rank and number of the workers"),
            _sync("sglang.srt.runtime_context:get_exec", "()", "whether released weights stay in host memory"),
            _sync("sglang.srt.utils.common:SafeUnpickler.ALLOWED_GLOBALS", None, "admits how our command is packed"),
            _sync("sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod", None, "layers written in place"),
            _sync("sglang.srt.layers.quantization.unquant:UnquantizedEmbeddingMethod", None, "layers written in place"),
            _sync("sglang.srt.layers.quantization.unquant:UnquantizedFusedMoEMethod", None, "experts written in place"),
            _draft(
                "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.register",
                "(name, ...)",
                "registers our algorithm",
            ),
            _draft("sglang.srt.speculative.spec_info:SpeculativeAlgorithm.NGRAM", None, "answers for our algorithm"),
            _draft(f"{_NGRAM}NGRAMWorker.__init__", "(server_args, gpu_id, nccl_port, target_worker)", "derived from"),
            _draft(f"{_NGRAM}NGRAMWorker._prepare_draft_tokens", "(batch)", "replaced: our drafts"),
            _draft(f"{_NGRAM}NGRAMWorker._update_ngram_corpus", "(batch)", "replaced: there is none"),
            _draft(f"{_NGRAM}NGRAMWorker._init_preallocated_tensors", "()", "buffers for one token a row"),
            _draft(
                f"{_NGRAM}NGRAMWorker.forward_batch_generation", "(batch, on_publish, ...)", "wrapped: drafts first"
            ),
            _draft(f"{_NGRAM}NgramCorpus", None, "not built"),
            _draft(
                "sglang.srt.managers.scheduler:Scheduler.add_external_corpus",
                "(recv_req)",
                "hooked: rollouts of other engines, versions, counters",
            ),
            _draft(
                "sglang.srt.managers.io_struct:AddExternalCorpusReqInput.token_chunks", None, "carries messages to it"
            ),
            _route(f"{_TOKENIZER}.generate_request", "(obj, request)", "says what of a prompt was cached"),
            _route(f"{_TOKENIZER}.abort_request", "(rid, abort_all)", "stops one request"),
            _route(f"{_TOKENIZER}.get_internal_state", "()", "capacity; whether the scheduler answers"),
            _route("sglang.srt.managers.tokenizer_manager:ReqState.dispatched", None, "whether the engine has it"),
        ),
        switch_off={"drafter": "slipstream/drafter=off"},
    )
