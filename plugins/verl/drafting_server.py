"""verl's servers whose engines draft with slipstream, and which hand their rollouts to the other replicas."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.core.config import from_environment
from slipstream.plugins.vllm.drafter import GROUP, Rollout, prompt_group, speculative_config


class DraftingServer:
    """Mixin for verl's server actors: what does not depend on the engine."""

    _alone = False
    """Whether no other replica wants what this one writes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._written: list[Rollout] = []

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        """See verl's `vLLMHttpServer.generate`."""
        group = (sampling_params.get("extra_args") or {}).get(GROUP)
        params = self._sampling_params(sampling_params)
        output = await super().generate(prompt_ids, params, request_id, *args, **kwargs)  # type: ignore[misc]
        if not self._alone and output.token_ids:
            prompt, response = (np.asarray(tokens, np.int32) for tokens in (prompt_ids, output.token_ids))
            version = output.extra_fields.get("global_steps") or 0
            rollout = Rollout(group or prompt_group(prompt), prompt.tobytes(), response.tobytes(), version)
            self._written.append(rollout)
        return output

    async def set_global_steps(self, global_steps: int) -> None:
        """See verl's `vLLMHttpServer.set_global_steps`; the drafter learns of the new policy."""
        await super().set_global_steps(global_steps)  # type: ignore[misc]
        await self._tell_version(global_steps)

    async def slipstream_take_rollouts(self, alone: bool) -> list[Rollout]:
        """What this replica wrote since the last call; `alone`: there is no other one, so none is kept from now on."""
        written, self._written = self._written, []
        self._alone = alone
        return written

    async def slipstream_feed_rollouts(self, *written: list[Rollout]) -> None:
        """Take what other replicas wrote into the history."""
        await self._feed([rollout for part in written for rollout in part])

    async def slipstream_drafter_statistics(self) -> dict[str, float]:
        """Every counter of this replica's drafter."""
        raise NotImplementedError

    def _sampling_params(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        """In the words of the engine; vLLM's are those of the agent loops."""
        return sampling_params

    async def _tell_version(self, version: int) -> None:
        raise NotImplementedError

    async def _feed(self, rollouts: list[Rollout]) -> None:
        raise NotImplementedError


class VllmDraftingServer(DraftingServer):
    """Mixin for verl's vLLM server actor."""

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)  # type: ignore[misc]
        config = from_environment()
        assert config is not None, "registered only in runs that carry the node"
        engine_kwargs["speculative_config"] = speculative_config(config.drafter.longest_draft)

    async def slipstream_drafter_statistics(self) -> dict[str, float]:
        """See `DraftingServer`."""
        found: list[dict[str, float] | None] = await self._ask("slipstream_drafter_statistics")
        return next(statistics for statistics in found if statistics is not None)

    async def _tell_version(self, version: int) -> None:
        await self._ask("slipstream_drafter_version", version)

    async def _feed(self, rollouts: list[Rollout]) -> None:
        await self._ask("slipstream_drafter_feed", [tuple(rollout) for rollout in rollouts])

    async def _ask(self, method: str, *args: Any) -> Any:
        engine: Any = self.engine  # type: ignore[attr-defined]
        return await engine.collective_rpc(method=method, args=args)
