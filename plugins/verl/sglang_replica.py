"""verl's SGLang replica whose engine takes slipstream's weight sync."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Any

import numpy as np
import ray

from slipstream.core.config import from_environment
from slipstream.core.weights import EngineFailedError
from slipstream.plugins.sglang.control import sync_workers, tell_drafter
from slipstream.plugins.sglang.drafter import GROUP, engine_arguments, register_algorithm
from slipstream.plugins.sglang.messages import LOADER
from slipstream.plugins.verl.drafting_server import DraftingServer
from slipstream.plugins.verl.limited_server import LimitedServer
from slipstream.plugins.verl.routing.sglang_server import RoutedSglangServer
from slipstream.plugins.vllm.drafter import Rollout
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


class SglangDraftingServer(DraftingServer):
    """Mixin for verl's SGLang server actor."""

    config: Any
    tokenizer_manager: Any

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """See verl's `SGLangHttpServer.launch_server`; the engine also drafts."""
        config = from_environment()
        assert config is not None, "registered only in runs that carry the node"
        register_algorithm()  # verl's way of starting resolves arguments before SGLang runs its plugins
        engine = dict(self.config.engine_kwargs.get("sglang") or {})
        self.config.engine_kwargs["sglang"] = {**engine, **engine_arguments(config.drafter.longest_draft)}
        await super().launch_server(*args, **kwargs)  # type: ignore[misc]

    async def slipstream_feed_rollouts(self, *written: list[Rollout]) -> None:
        """See `DraftingEngine`."""
        rollouts = [(each.group, _ids(each.prompt), _ids(each.response), each.version) for each in chain(*written)]
        await tell_drafter(self.tokenizer_manager, rollouts=rollouts)

    async def slipstream_drafter_version(self, version: int) -> None:
        """See `DraftingEngine`."""
        await tell_drafter(self.tokenizer_manager, version)

    async def slipstream_drafter_statistics(self) -> dict[str, float]:
        """See `DraftingEngine`."""
        return await tell_drafter(self.tokenizer_manager)

    def _sampling_params(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        params = dict(sampling_params)
        extra = params.pop("extra_args", None) or {}
        if GROUP in extra:
            params["custom_params"] = {**(params.get("custom_params") or {}), GROUP: extra[GROUP]}
        return params


def _ids(tokens: Any) -> list[int]:
    found: list[int] = np.frombuffer(tokens, np.int32).tolist()
    return found


_SERVERS: dict[str, tuple[type, ...]] = {
    "weight_sync": (SyncedSglangServer,),
    "drafter": (SglangDraftingServer,),
    "router": (RoutedSglangServer,),
    "placement": (LimitedServer,),
}


def replica_class(features: Collection[str]) -> type[SGLangReplica]:
    """verl's SGLang replica, with a server that does what `features` need."""
    mixins = [mixin for feature, its in _SERVERS.items() if feature in features for mixin in its]
    server = type("SlipstreamSglangServer", (*mixins, SGLangHttpServer), {})

    class SlipstreamReplica(SGLangReplica):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(server)

    return SlipstreamReplica
