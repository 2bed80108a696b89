"""The side of the router that is in OpenRLHF's engine actors: their executors' requests go where the router says.

OpenRLHF binds each prompt to an engine's actor before anything runs. Its executors still run there, and its groups come
back from there; but each turn asks the router for an engine when it is about to be sent, and goes on at another one
when it is moved.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

from vllm.inputs import TokensPrompt
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from openrlhf.utils.agent import SingleTurnAgentExecutor
from slipstream.core.rollout import Part, continuation, stitch
from slipstream.core.rollout.client import Attempted, Desk, Sample, current
from slipstream.core.rollout.messages import Answer, Placement
from slipstream.plugins.vllm.routing import RoutedEngine

ABORTED = "abort"
"""vLLM's finish reason of a request that was stopped."""

_group: ContextVar[str | None] = ContextVar("slipstream_group", default=None)
"""Of the samples that the running task generates."""


class Piece(NamedTuple):
    """What one attempt of a request produced."""

    output: Any
    """vLLM's `RequestOutput`; None when the attempt was stopped before it reached the engine."""

    version: int
    """Of the weights at its start."""

    @property
    def token_ids(self) -> list[int]:
        """Of the response, so far."""
        return [] if self.output is None else self.output.outputs[0].token_ids

    @property
    def part(self) -> Part:
        """The same for `stitch`; logprobs are vLLM's records."""
        if self.output is None:
            return Part((), None, self.version)
        made = self.output.outputs[0]
        logprobs = None if made.logprobs is None else tuple(made.logprobs)
        ended = None if made.finish_reason == ABORTED else made.finish_reason
        return Part(tuple(made.token_ids), logprobs, self.version, ended)


class RoutedRollout(RoutedEngine):
    """Mixin for `RolloutRayActor`."""

    llm: Any
    executor: Any
    _policy: int
    _desk: Desk | None = None
    _replica = ""
    """The router's name for this engine."""

    _paused = False

    async def slipstream_join(self, router: Any, name: str) -> None:
        """Send requests where `router` says, which calls this engine `name`."""
        self._desk, self._replica = Desk(router), name
        self._calls = itertools.count()
        if type(self.executor) is not SingleTurnAgentExecutor:
            # A single turn is a trajectory of its own, which ends before its reward is computed.
            self.executor.execute = _in_samples(self.executor.execute)

    def _routed_engine(self) -> Any:
        return self.llm

    def _stands_still(self) -> bool:
        return self._paused

    def _weight_version(self) -> int:
        return self._policy

    async def pause_generation(self) -> None:
        """See `RolloutRayActor.pause_generation`."""
        self._paused = True
        await super().pause_generation()  # type: ignore[misc]

    async def resume_generation(self) -> None:
        """See `RolloutRayActor.resume_generation`."""
        await super().resume_generation()  # type: ignore[misc]
        self._paused = False

    def _begin_group(self) -> None:
        """The running task, and those it starts, generate samples of one prompt."""
        if self._desk is not None:
            _group.set(f"{self._replica}, call {next(self._calls)}")

    async def slipstream_generate(self, engine_id: str, prompt_ids: list[int], params: Any, priority: int) -> Piece:
        """Generate with this engine.

        Args:
            engine_id: the name by which `slipstream_abort` stops it.
            prompt_ids: tokens.
            params: vLLM's `SamplingParams`.
            priority: in the engine's own queue, lower first.
        """
        version, output = self._policy, None
        if engine_id not in self._refused:
            prompt = TokensPrompt(prompt_token_ids=prompt_ids)
            async for each in self.llm.generate(prompt, params, request_id=engine_id, priority=priority):
                output = each
        return Piece(output, version)

    async def _generate_routed(self, prompt_ids: list[int], params: Any, multi_modal_data: Any = None) -> Any:
        """Generate a turn wherever the router says; see `RolloutRayActor.generate`.

        Raises:
            ValueError: the prompt has images.
        """
        if multi_modal_data:
            raise ValueError(
                f"--slipstream.router cache_aware: expected prompts of text alone, got {', '.join(multi_modal_data)}; "
                "use --slipstream.router native"
            )
        assert self._desk is not None
        limit = params.max_tokens
        if limit is None:
            limit = self.llm.model_config.max_model_len - len(prompt_ids)
        movable = can_move(params)

        async def attempt(placement: Placement, pieces: Sequence[Piece]) -> Attempted[Piece]:
            pieces = pieces if movable else ()
            ids, left = next_attempt(prompt_ids, params, pieces, limit)
            here = placement.replica == self._replica
            generate = self.slipstream_generate if here else placement.server.slipstream_generate.remote
            piece: Piece = await generate(placement.engine_id, ids, left, placement.priority)
            made = piece.output
            stopped = made is None or made.outputs[0].finish_reason == ABORTED
            stopped = stopped and sum(len(each.token_ids) for each in (*pieces, piece)) < limit
            answer = Answer(
                prompt_tokens=len(ids),
                output_tokens=len(piece.token_ids) if movable or not stopped else 0,
                cached_tokens=None if made is None else made.num_cached_tokens,
                version=piece.version,
            )
            return Attempted(piece, answer, stopped)

        sample = current.get()
        request = self._desk.request("" if sample is None else sample.name, prompt_ids, _group.get(), movable)
        pieces = await self._desk.serve(request, attempt, goes_on=False)
        if len(pieces) == 1 or not movable:
            return pieces[-1].output
        return joined(prompt_ids, params, pieces, limit, self.llm.output_processor.tokenizer)


def _in_samples(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `AgentExecutorBase.execute`: its requests are turns of one trajectory, which ends with it."""

    @functools.wraps(execute)
    async def run(*args: Any, **kwargs: Any) -> Any:
        sample = Sample(_group.get())
        current.set(sample)  # this is a task of its own
        try:
            return await execute(*args, **kwargs)
        finally:
            sample.end()

    return run


def can_move(params: Any) -> bool:
    """Whether a request can go on at another engine with prompt and partial answer as its prompt: not where vLLM looks
    at the answer as a whole."""
    looks_back = params.stop, params.bad_words, params.presence_penalty, params.frequency_penalty
    whole = params.prompt_logprobs, params.structured_outputs, params.repetition_detection, params.thinking_token_budget
    return params.n == 1 and not any(looks_back) and all(each is None for each in whole)


def next_attempt(prompt_ids: list[int], params: Any, pieces: Sequence[Piece], limit: int) -> tuple[list[int], Any]:
    """Return prompt and sampling parameters of the attempt after `pieces`; what they have counts against the budget.

    A seed is moved on by the tokens so far: the engine would draw the same random numbers once more.
    """
    ids, left = continuation(prompt_ids, [piece.part for piece in pieces], limit)
    done = limit - left
    params = copy.deepcopy(params)
    params.max_tokens = left
    params.min_tokens = max(params.min_tokens - done, 0)
    if done and params.seed is not None:
        params.seed += done
    return ids, params


def joined(prompt_ids: list[int], params: Any, pieces: Sequence[Piece], limit: int, tokenizer: Any) -> Any:
    """Return the attempts of a request as one `RequestOutput`."""
    whole = stitch([piece.part for piece in pieces])
    made = [piece.output.outputs[0] for piece in pieces if piece.output is not None]
    sums = [each.cumulative_logprob for each in made]
    last = made[-1]
    reason = last.finish_reason
    if reason == ABORTED and len(whole.token_ids) >= limit:
        reason = "length"
    output = copy.copy(pieces[-1].output)
    output.prompt_token_ids = list(prompt_ids)
    output.num_cached_tokens = next(piece.output.num_cached_tokens for piece in pieces if piece.output is not None)
    output.outputs = [
        dataclasses.replace(
            last,
            token_ids=list(whole.token_ids),
            text=_text(tokenizer, prompt_ids, params, whole.token_ids, reason),
            logprobs=None if whole.logprobs is None else list(whole.logprobs),
            cumulative_logprob=None if None in sums else sum(sums),
            finish_reason=reason,
        )
    ]
    return output


def _text(tokenizer: Any, prompt_ids: list[int], params: Any, token_ids: Sequence[int], reason: str | None) -> str:
    """Return what vLLM makes of all tokens in one go; the parts may break characters."""
    request: Any = SimpleNamespace(
        request_id="joined", prompt_token_ids=prompt_ids, prompt_embeds=None, sampling_params=params
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer if params.detokenize else None, request)
    detokenizer.update(list(token_ids), reason == "stop")
    return detokenizer.get_next_output_text(finished=True, delta=False)
