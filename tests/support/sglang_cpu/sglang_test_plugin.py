"""Means to break weight sync inside a real SGLang scheduler: methods that `Engine.collective_rpc` reaches.

An engine that can draft does here, whether or not that pays on this host.

Found by SGLang like any plugin, through the distribution beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_repairs: list[Callable[[], None]] = []


def register() -> None:
    """Give the scheduler its test methods, and SGLang's plain PyTorch attention the step that verifies drafts."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    Scheduler.slipstream_test_break_writes = break_writes
    Scheduler.slipstream_test_lose = lose
    attention = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"
    HookRegistry.register(attention, verifying, HookType.AROUND)
    sampling = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
    HookRegistry.register(sampling, seeded, HookType.AFTER)
    drafting = "slipstream.plugins.sglang.drafter.Drafting.__init__"
    HookRegistry.register(drafting, always_drafting, HookType.AROUND)


def always_drafting(original: Callable[..., None], drafting: Any, *arguments: Any, **options: Any) -> None:
    """The load switch stays on."""
    original(drafting, *arguments, **options)
    if drafting.drafter is not None:
        drafting.drafter.load.wants_plain = lambda batch: False
        drafting.drafter.load.pays = lambda *_: True


def seeded(info: Any, cls: type, batch: Any, *arguments: Any, **options: Any) -> Any:
    """Requests that name a seed draw from it, as with `enable_deterministic_inference`, which no CPU backend has."""
    import torch

    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    if all(seed is not None for seed in seeds):
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64)
    return info


def verifying(
    original: Callable[..., Any],
    backend: Any,
    q: Any,
    k: Any,
    v: Any,
    layer: Any,
    batch: Any,
    *more: Any,
    **options: Any,
) -> Any:
    """The backend knows prompts and single tokens; a chain of drafts is a short piece of prompt."""
    if not batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, batch, *more, **options)
    before = batch.seq_lens, batch.extend_prefix_lens, batch.extend_seq_lens
    width = batch.spec_info.draft_token_num
    batch.extend_prefix_lens, batch.seq_lens = batch.seq_lens, batch.seq_lens + width
    batch.extend_seq_lens = batch.extend_prefix_lens * 0 + width
    try:
        return original(backend, q, k, v, layer, batch, *more, **options)
    finally:
        batch.seq_lens, batch.extend_prefix_lens, batch.extend_seq_lens = before


def break_writes(self: Any, broken: bool) -> None:
    """Make the next update fail half-way on the last rank."""
    from breaking import break_third_scatter
    from sglang.srt.runtime_context import get_parallel

    from slipstream.core.weights import transaction

    while _repairs:
        _repairs.pop()()
    if broken and get_parallel().tp_rank == get_parallel().tp_size - 1:
        _repairs.append(break_third_scatter(transaction))


def lose(self: Any) -> None:
    """What discards the weights behind the sync's back."""
    from slipstream.plugins.sglang import worker

    for each in worker.workers.values():
        each.lose("the test says so")
