"""verl's client with requests that go where the router says, and go on elsewhere when they are moved."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.rollout import Part, continuation, stitch
from slipstream.core.rollout.client import Attempted, Desk
from slipstream.core.rollout.messages import Answer, Placement
from verl.utils.rollout_trace import rollout_trace_op
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

ABORTED = ("aborted", "abort")


class _OneServer(LLMServerClient):
    """verl's client for an attempt whose server has been chosen."""

    generate = inspect.unwrap(LLMServerClient.generate)  # traced once, around all attempts

    def __init__(self, config: Any, placement: Placement) -> None:
        super().__init__(config)
        self._placement = placement

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return self._placement.replica, self._placement.server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass

    def _vllm_request_id(self, request_id: str) -> str:
        return self._placement.engine_id


class RoutedClient(LLMServerClient):
    """Stands in for verl's `LLMServerClient`."""

    resumes = False
    """Whether a request that somebody else aborted goes on as well (verl's partial rollout)."""

    _desk: Desk | None = None

    @rollout_trace_op  # type: ignore[untyped-decorator]
    async def generate(
        self,
        request_id: Any,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """See verl's `LLMServerClient.generate`. Waits until the router admits the request."""
        prompt_ids = normalize_token_ids(prompt_ids)
        media = {"image_data": image_data, "video_data": video_data, "audio_data": audio_data}
        media["mm_processor_kwargs"] = mm_processor_kwargs  # type: ignore[assignment]
        limit = self._limit(sampling_params, len(prompt_ids))
        desk = self._desk = self._desk or Desk(self._load_balancer)

        async def generate(placement: Placement, outputs: Sequence[TokenOutput]) -> Attempted[TokenOutput]:
            ids, params = next_attempt(prompt_ids, sampling_params, outputs, limit)
            more = {**kwargs, "priority": int(kwargs.get("priority", 0) or placement.priority)}
            output = await _OneServer(self.config, placement).generate(
                placement.request_id, prompt_ids=ids, sampling_params=params, **media, **more
            )
            done = sum(len(each.token_ids) for each in (*outputs, output))
            return Attempted(output, _answer(ids, output), output.stop_reason in ABORTED and done < limit)

        outputs = await desk.serve(desk.request(str(request_id), prompt_ids), generate, self._goes_on())
        return outputs[0] if len(outputs) == 1 else joined(outputs, limit)

    def _goes_on(self) -> bool:
        return self.resumes

    def _limit(self, sampling_params: dict[str, Any], prompt_tokens: int) -> int:
        """Tokens that the whole response may have: what the server would allow the first attempt."""
        stated = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        if stated is not None:
            return int(stated)
        rollout = self.config.actor_rollout_ref.rollout
        left = rollout.prompt_length + rollout.response_length - prompt_tokens
        return max(1, min(int(rollout.response_length), int(left)))


class RoutedAsyncClient(RoutedClient):
    """Stands in for verl's `FullyAsyncLLMServerClient`: requests go on after aborts for weight syncs."""

    resumes = True

    def __init__(self, config: Any, load_balancer_handle: Any = None, only_hybrid: bool = False, **kwargs: Any) -> None:
        # Without any server the router waits for one, which is what `only_hybrid` asks for.
        super().__init__(config, load_balancer_handle, **kwargs)

    def _goes_on(self) -> bool:
        asynchronous = getattr(self.config, "async_training", None)
        return asynchronous is None or bool(asynchronous.partial_rollout)

    def _limit(self, sampling_params: dict[str, Any], prompt_tokens: int) -> int:
        # verl's asynchronous client pins the response length, whatever the prompt's.
        stated = sampling_params.get("max_tokens", sampling_params.get("max_new_tokens"))
        return int(stated if stated is not None else self.config.actor_rollout_ref.rollout.response_length)


def client_class(asked: type[LLMServerClient] | None) -> type[LLMServerClient] | None:
    """Return the client to use where verl asks for `asked`; classes of others speak verl's own protocol."""
    if asked in (None, LLMServerClient):
        return RoutedClient
    return RoutedAsyncClient if asked is FullyAsyncLLMServerClient else asked


def next_attempt(
    prompt_ids: list[int], sampling_params: dict[str, Any], outputs: Sequence[TokenOutput], limit: int
) -> tuple[list[int], dict[str, Any]]:
    """Return prompt and sampling parameters of the attempt after `outputs`; what they have counts against the budget.

    A seed is moved on by the tokens so far: the engine would draw the same random numbers once more. Penalties that
    look at the output alone see what was generated before as prompt.
    """
    ids, left = continuation(prompt_ids, [_part(each) for each in outputs], limit)
    done = limit - left
    params = {name: value for name, value in sampling_params.items() if name not in ("max_tokens", "max_new_tokens")}
    params["max_tokens"] = left
    if done and params.get("min_tokens"):
        params["min_tokens"] = max(params["min_tokens"] - done, 0)
    if done and params.get("seed") is not None:
        params["seed"] += done
    return ids, params


def joined(outputs: Sequence[TokenOutput], limit: int) -> TokenOutput:
    """Return the attempts of a request as one answer: tokens, logprobs, experts, and the range of weight versions."""
    last = outputs[-1]
    whole = stitch([_part(each) for each in outputs])
    done = len(whole.token_ids)
    preempted = [each.num_preempted for each in outputs if each.num_preempted is not None]
    fields = {**last.extra_fields, "num_cached_tokens": outputs[0].extra_fields.get("num_cached_tokens")}
    versions = [span.weight_version for span in whole.versions if span.weight_version != _NO_VERSION]
    if versions:
        fields["min_global_steps"], fields["max_global_steps"] = min(versions), max(versions)
    return last.model_copy(
        update={
            "token_ids": list(whole.token_ids),
            "log_probs": None if whole.logprobs is None else list(whole.logprobs),
            "routed_experts": _routed_experts(outputs),
            "num_preempted": sum(preempted) if preempted else None,
            "stop_reason": "completed" if last.stop_reason in ABORTED and done >= limit else last.stop_reason,
            "extra_fields": fields,
        }
    )


_NO_VERSION = -1


def _part(output: TokenOutput) -> Part:
    version = output.extra_fields.get("global_steps")
    return Part(
        tuple(output.token_ids),
        None if output.log_probs is None else tuple(output.log_probs),
        _NO_VERSION if version is None else version,
        None if output.stop_reason in ABORTED else output.stop_reason or "completed",
    )


def _routed_experts(outputs: Sequence[TokenOutput]) -> Any:
    """Rows of all tokens: an attempt reports those of its prompt, earlier attempts included, as well."""
    rows: list[Any] = []
    for each in outputs:
        if each.routed_experts is not None and each.token_ids:
            rows.append(each.routed_experts[-len(each.token_ids) :] if rows else each.routed_experts)
    return np.concatenate(rows) if rows else None


def _answer(prompt_ids: list[int], output: TokenOutput) -> Answer:
    fields = output.extra_fields
    return Answer(len(prompt_ids), len(output.token_ids), fields.get("num_cached_tokens"), fields.get("global_steps"))
