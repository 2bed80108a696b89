"""A sync as the process that owns a vLLM engine sees it."""

from __future__ import annotations

from typing import Any

from slipstream.core.weights import EngineFailedError
from slipstream.plugins.vllm.worker_extension import failures


async def sync_workers(
    engine: Any, endpoints: list[str], timeout: float, method: str = "slipstream_sync", **more: Any
) -> None:
    """Make every worker of `engine`, an `AsyncLLM`, take part in the sync at `endpoints`.

    Args:
        engine: its workers have `worker_extension.WorkerExtension`.
        endpoints: what the publishers' ends gave out.
        timeout: seconds that a worker waits for each message.
        method: of the extension; `more` are its further arguments.

    Raises:
        EngineFailedError: with the errors of all workers that failed, or that they did not answer.
    """
    try:
        outcomes = await engine.collective_rpc(
            method=method, kwargs={"endpoints": endpoints, "timeout": timeout, **more}
        )
    except Exception as error:  # workers return theirs; vLLM says no more than "cancelled" where one has died
        raise EngineFailedError(
            f"the engine's workers did not answer the sync ({type(error).__name__}: {error}); if one of them died, "
            "the engine's log above says why"
        ) from error
    if failed := failures(outcomes):
        raise EngineFailedError("; ".join(failed))
