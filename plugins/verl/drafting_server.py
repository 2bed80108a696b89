"""verl's servers whose engines draft with slipstream, and which hand their rollouts to the other replicas."""

from __future__ import annotations

from typing import Any

from slipstream.core.config import from_environment
from slipstream.plugins.vllm.drafter import GROUP, speculative_config
from slipstream.plugins.vllm.drafting import DraftingEngine


class DraftingServer(DraftingEngine):
    """Mixin for verl's server actors: what does not depend on the engine."""

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        """See verl's `vLLMHttpServer.generate`."""
        group = (sampling_params.get("extra_args") or {}).get(GROUP)
        params = self._sampling_params(sampling_params)
        output = await super().generate(prompt_ids, params, request_id, *args, **kwargs)  # type: ignore[misc]
        self._note_rollout(group, prompt_ids, output.token_ids, output.extra_fields.get("global_steps") or 0)
        return output

    async def set_global_steps(self, global_steps: int) -> None:
        """See verl's `vLLMHttpServer.set_global_steps`; the drafter learns of the new policy."""
        await super().set_global_steps(global_steps)  # type: ignore[misc]
        await self.slipstream_drafter_version(global_steps)

    def _sampling_params(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        """In the words of the engine; vLLM's are those of the agent loops."""
        return sampling_params


class VllmDraftingServer(DraftingServer):
    """Mixin for verl's vLLM server actor."""

    def _engine(self) -> Any:
        return self.engine  # type: ignore[attr-defined]  # an attribute of verl's server

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)  # type: ignore[misc]
        config = from_environment()
        assert config is not None, "registered only in runs that carry the node"
        engine_kwargs["speculative_config"] = speculative_config(config.drafter.longest_draft)
