"""verl's SGLang replica whose engine takes slipstream's weight sync."""

from __future__ import annotations

from typing import Any

import ray

from slipstream.core.weights import EngineFailedError
from slipstream.plugins.sglang.control import sync_workers
from slipstream.plugins.sglang.messages import LOADER
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica


class SyncedSglangServer:
    """Mixin for verl's SGLang server actor.

    Its engine keeps released weights in host memory (verl sets `enable_weights_cpu_backup` where it releases them), so
    deltas go on after a sleep.
    """

    config: Any
    tokenizer_manager: Any

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """See verl's `SGLangHttpServer.launch_server`; the engine also gets our weight loader."""
        engine = dict(self.config.engine_kwargs.get("sglang") or {})
        engine["custom_weight_loader"] = [*(engine.get("custom_weight_loader") or []), LOADER]
        self.config.engine_kwargs["sglang"] = engine
        await super().launch_server(*args, **kwargs)  # type: ignore[misc]

    async def slipstream_sync(self, endpoints: list[str], timeout: float) -> None:
        """Make every worker take part in the sync at `endpoints`.

        Raises:
            EngineFailedError: with the errors of all workers that failed, or SGLang's own.
        """
        try:
            await sync_workers(self.tokenizer_manager, endpoints, timeout)
        except EngineFailedError:
            raise
        except Exception as error:
            raise EngineFailedError(
                f"the engine's workers did not answer the sync ({type(error).__name__}: {error}); if one of them died, "
                "the engine's log above says why"
            ) from error

    async def set_global_steps(self, global_steps: int) -> None:
        """See verl's `SGLangHttpServer.set_global_steps`; SGLang's own stamp of each token says the same."""
        from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

        await super().set_global_steps(global_steps)  # type: ignore[misc]
        request = UpdateWeightVersionReqInput(new_version=str(global_steps), abort_all_requests=False)
        await self.tokenizer_manager.update_weight_version(request)


def replica_class() -> type[SGLangReplica]:
    """verl's SGLang replica, with a server that does what weight sync needs."""
    server = type("SlipstreamSglangServer", (SyncedSglangServer, SGLangHttpServer), {})

    class SlipstreamReplica(SGLangReplica):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(server)

    return SlipstreamReplica
