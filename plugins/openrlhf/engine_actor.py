"""OpenRLHF's vLLM actor with slipstream in its engine workers."""

from __future__ import annotations

from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import ray

from openrlhf.trainer.ray import vllm_engine
from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.plugins.openrlhf.actor_classes import by_reference, plain
from slipstream.plugins.openrlhf.routing import Piece, RoutedRollout
from slipstream.plugins.vllm.drafter import GROUP, speculative_config
from slipstream.plugins.vllm.drafting import DraftingEngine
from slipstream.plugins.vllm.frontend import sync_workers

WORKER_EXTENSION = "slipstream.plugins.openrlhf.vllm_worker.SlipstreamWorkerExtension"

_Base: Any = plain(vllm_engine.RolloutRayActor)
_prompt: ContextVar[str | None] = ContextVar("slipstream_prompt", default=None)
"""Of the samples that the running task generates: executors do not hand it on."""


@by_reference
class SlipstreamRolloutActor(DraftingEngine, RoutedRollout, _Base):  # type: ignore[misc]
    """Takes the place of `RolloutRayActor`."""

    _policy = 0
    """Version of the weights that generate."""
    _drafts = False

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # as Ray allows
        config = from_environment() or SlipstreamConfig()
        self._drafts = config.drafter.mode != "off"
        kwargs["worker_extension_cls"] = WORKER_EXTENSION
        if self._drafts:
            kwargs["speculative_config"] = speculative_config(config.drafter.longest_draft)
        routed = config.router.mode != "native"
        if routed:
            kwargs["scheduling_policy"] = "priority"
        await super().__init__(*args, **kwargs)
        if routed:
            self._watch_engine()

    def _engine(self) -> Any:
        return self.llm

    async def generate_responses(self, prompt: str, *args: Any, **kwargs: Any) -> Any:
        """See `RolloutRayActor.generate_responses`: all samples and turns of a prompt are one group."""
        _prompt.set(prompt)  # this call is a task of its own, and those it starts take its context over
        self._begin_group()
        return await super().generate_responses(prompt, *args, **kwargs)

    async def generate(self, prompt_token_ids: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        """See `RolloutRayActor.generate`."""
        group, policy = _prompt.get(), self._policy
        if self._drafts and group is not None:
            sampling_params = deepcopy(sampling_params)
            sampling_params.extra_args = {**(sampling_params.extra_args or {}), GROUP: group}
        if self._desk is not None:
            return await self._generate_routed(prompt_token_ids, sampling_params, *args, **kwargs)
        output = await super().generate(prompt_token_ids, sampling_params, *args, **kwargs)
        if self._drafts and output is not None:
            self._note_rollout(group, prompt_token_ids, output.outputs[0].token_ids, policy)
        return output

    async def slipstream_generate(self, engine_id: str, prompt_ids: list[int], params: Any, priority: int) -> Piece:
        """See `RoutedRollout.slipstream_generate`."""
        piece = await super().slipstream_generate(engine_id, prompt_ids, params, priority)
        if self._drafts:
            group = (params.extra_args or {}).get(GROUP)
            self._note_rollout(group, prompt_ids, piece.token_ids, piece.version)
        return piece

    async def slipstream_drafter_version(self, version: int) -> None:
        """Name the policy that generates from now on."""
        self._policy = version
        if self._drafts:
            await super().slipstream_drafter_version(version)

    async def slipstream_sync(self, endpoints: list[str], timeout: float) -> None:
        """Make every worker take part in the sync at `endpoints`.

        Raises:
            EngineFailedError: with the errors of all workers that failed, or that they did not answer.
        """
        await sync_workers(self.llm, endpoints, timeout)
        self._policy += 1  # the workers have told their drafters

    async def slipstream_checksums(self) -> list[dict[str, str]]:
        """SHA-256 of every parameter and buffer, by worker."""
        checksums: list[dict[str, str]] = await self.llm.collective_rpc("slipstream_checksums")
        return checksums

    def slipstream_node(self) -> str:
        """The Ray node this engine is on."""
        return str(ray.get_runtime_context().get_node_id())
