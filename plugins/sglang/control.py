"""Calls into a running SGLang engine, from the process that holds its tokenizer manager.

For an engine of your own::

    engine = sglang.Engine(..., custom_weight_loader=[LOADER])
    synchronise(engine, ["ipc://..."], timeout=60.0)

verl's server calls the coroutines (`plugins/verl/sglang_server.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from slipstream.core.weights import EngineFailedError
from slipstream.plugins.sglang.messages import (
    CORPUS,
    LOADER,
    Command,
    DrafterMessage,
    Follow,
    Outcome,
    Sync,
    decode_answer,
    encode_command,
)


def synchronise(engine: Any, endpoints: list[str], timeout: float) -> list[Outcome]:
    """`sync_workers` of an `sglang.Engine`."""
    return _run(engine, sync_workers(engine.tokenizer_manager, endpoints, timeout))


def follow(engine: Any, url: str) -> list[Outcome]:
    """`follow_chain` of an `sglang.Engine`."""
    return _run(engine, follow_chain(engine.tokenizer_manager, url))


async def sync_workers(
    manager: Any, endpoints: list[str], timeout: float, weight_version: str | None = None
) -> list[Outcome]:
    """Make every worker take part in the sync at `endpoints`.

    Requests that run are retracted, and go on with the new weights from a cache that holds nothing of the old ones.

    Args:
        manager: SGLang's tokenizer manager.
        endpoints: what the publishers' ends gave out, one for each trainer rank that sends.
        timeout: seconds to wait for each message.
        weight_version: what `meta_info["weight_versions"]` of requests calls the new weights; the version of the sync
            when there is none.

    Returns:
        What every worker holds, in rank order.

    Raises:
        EngineFailedError: with the errors of all workers that failed, or SGLang's own. The weights are what they were.
    """
    return await _command(manager, Sync(endpoints, timeout), weight_version)


async def follow_chain(manager: Any, url: str, weight_version: str | None = None) -> list[Outcome]:
    """Bring every worker to the newest version of the chain at `url`; the rest as in `sync_workers`."""
    return await _command(manager, Follow(url), weight_version)


async def tell_drafter(
    manager: Any,
    version: int | None = None,
    rollouts: Sequence[tuple[str, list[int], list[int], int]] = (),
) -> dict[str, float]:
    """Tell the engine's drafter something, and ask for its counters; requests go on meanwhile.

    Args:
        manager: SGLang's tokenizer manager.
        version: of the policy that the engine generates with from now on; None: the one before.
        rollouts: group, prompt, response and policy version of what other engines wrote.

    Returns:
        See `Drafting.statistics`.

    Raises:
        EngineFailedError: the engine does not draft with slipstream, or its drafter failed.
    """
    from sglang.srt.managers.io_struct import AddExternalCorpusReqInput

    message = DrafterMessage(version, tuple((group, version) for group, _, _, version in rollouts))
    request = AddExternalCorpusReqInput(
        corpus_id=CORPUS,
        documents=[msgspec.json.encode(message).decode()],
        token_chunks=[tokens for _, prompt, response, _ in rollouts for tokens in (prompt, response)],
    )
    manager.auto_create_handle_loop()
    answer, *_ = await manager.add_external_corpus_communicator(request)
    if not answer.success:
        raise EngineFailedError(f"the engine's drafter: {answer.message}")
    return msgspec.json.decode(answer.message, type=dict[str, float])


@asynccontextmanager
async def paused(manager: Any) -> AsyncIterator[None]:
    """Stand still between requests: those that run go back to the queue, so that the cache can be dropped whole.

    `in_place` would keep the prefixes that old weights computed, and serve later requests from them; `abort` waits for
    a second. An engine that somebody paused already stays so.
    """
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    manager.auto_create_handle_loop()
    if manager.is_pause:
        yield
        return
    await manager.pause_generation(PauseGenerationReqInput(mode="retract"))
    try:
        yield
    finally:
        await manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))


@asynccontextmanager
async def weight_update_session(manager: Any) -> AsyncIterator[None]:
    """The session without which SGLang from 0.5.21 on refuses updates; nothing before.

    Raises:
        EngineFailedError: SGLang does not open or close it.
    """
    if not hasattr(manager, "begin_weight_update"):
        yield
        return
    from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput, EndWeightUpdateReqInput

    _succeeded("begin_weight_update", await manager.begin_weight_update(BeginWeightUpdateReqInput(selector="target")))
    try:
        yield
    finally:
        _succeeded("end_weight_update", await manager.end_weight_update(EndWeightUpdateReqInput()))


async def _command(manager: Any, command: Command, weight_version: str | None) -> list[Outcome]:
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput, UpdateWeightVersionReqInput
    from sglang.srt.runtime_context import get_parallel

    async with paused(manager):
        async with weight_update_session(manager):
            request = UpdateWeightsFromTensorReqInput(
                serialized_named_tensors=[encode_command(command)] * int(get_parallel().tp_size),
                load_format=LOADER,
                flush_cache=True,
                selector="target",
            )
            outcomes = _outcomes(*await manager.update_weights_from_tensor(request))
        version = weight_version if weight_version is not None else str(outcomes[0].version)
        await manager.update_weight_version(UpdateWeightVersionReqInput(new_version=version, abort_all_requests=False))
    return outcomes


def _outcomes(success: bool, message: str) -> list[Outcome]:
    try:
        outcomes = decode_answer(message)
    except msgspec.DecodeError:
        raise EngineFailedError(f"SGLang did not carry out the update: {message}") from None
    if failed := failures(outcomes):
        raise EngineFailedError("; ".join(failed))
    if not success:
        raise EngineFailedError(f"SGLang says that the update failed: {message}")
    return outcomes


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """The errors, with the rank; empty when all is well."""
    return [f"rank {rank}: {outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error]


def _succeeded(call: str, answer: tuple[bool, str]) -> None:
    success, message = answer
    if not success:
        raise EngineFailedError(f"SGLang refused {call}: {message}")


def _run(engine: Any, call: Coroutine[Any, Any, list[Outcome]]) -> list[Outcome]:
    loop: asyncio.AbstractEventLoop = engine.loop
    return loop.run_until_complete(call)
