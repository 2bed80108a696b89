"""verl's client with requests that go where the router says, and go on elsewhere when they are moved."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray.exceptions

from slipstream.core.rollout import Part, continuation, stitch
from slipstream.core.rollout.prefix.blocks import block_keys
from slipstream.plugins.verl.routing.messages import BLOCK_TOKENS, Answer, Placement, Request
from slipstream.plugins.verl.routing.samples import current
from verl.utils.rollout_trace import rollout_trace_op
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

FAILURES = 3
"""Times a request is tried again after its server failed in the middle of it."""

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


class _Desk:
    """What the client of one process keeps: which requests it has, and the router's word that one was taken away."""

    def __init__(self, router: Any) -> None:
        self.name = uuid.uuid4().hex
        self.busy: set[str] = set()
        """Trajectories with a request under way."""

        self.numbers = itertools.count()
        self._router = router
        self._attempts: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._listener = asyncio.ensure_future(self._listen())

    @contextlib.contextmanager
    def attempt(self, placement: Placement) -> Any:
        """Give a future that is done once the router has taken the attempt away."""
        key = placement.request_id, placement.attempt
        self._attempts[key] = asyncio.get_running_loop().create_future()
        try:
            yield self._attempts[key]
        finally:
            self._attempts.pop(key).cancel()

    async def _listen(self) -> None:
        while True:
            for key in await self._router.taken.remote(self.name):
                future = self._attempts.get(tuple(key))
                if future is not None and not future.done():
                    future.set_result(None)


class RoutedClient(LLMServerClient):
    """Stands in for verl's `LLMServerClient`."""

    resumes = False
    """Whether a request that somebody else aborted goes on as well (verl's partial rollout)."""

    _desk: _Desk | None = None

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
        desk = self._desk = self._desk or _Desk(self._load_balancer)
        request = self._request(desk, str(request_id), prompt_ids)
        router: Any = self._load_balancer
        outputs: list[TokenOutput] = []
        failures = 0
        desk.busy.add(request.trajectory)
        try:
            placement: Placement | None = await router.acquire.remote(request)
            while placement is not None:
                ids, params = next_attempt(prompt_ids, sampling_params, outputs, limit)
                try:
                    output = await self._attempt(desk, placement, ids, params, media, kwargs)
                except Exception as error:
                    failures += 1
                    if not _server_is_gone(error) or failures > FAILURES:
                        raise
                    placement = await router.failed.remote(request.request_id, placement.attempt, str(error))
                    continue
                if output is None:
                    placement = await router.again.remote(request.request_id)
                    continue
                outputs.append(output)
                answer = _answer(ids, output)
                done = sum(len(each.token_ids) for each in outputs)
                if output.stop_reason in ABORTED and done < limit:
                    placement = await router.aborted.remote(
                        request.request_id, placement.attempt, answer, self._goes_on()
                    )
                else:
                    await router.answered.remote(request.request_id, placement.attempt, answer)
                    break
        except BaseException:
            router.cancel.remote(request.request_id)
            raise
        finally:
            desk.busy.discard(request.trajectory)
            if request.trajectory != str(request_id):  # of its own, nobody else ends it
                router.end.remote([request.trajectory])
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

    def _request(self, desk: _Desk, name: str, prompt_ids: list[int]) -> Request:
        """Name the request. Outside an agent loop, and beside another request of its trajectory, it is one of its own:
        nobody would say when it ends."""
        sample = current.get()
        number = next(desk.numbers)
        request_id = f"{desk.name}-{number}"
        trajectory = request_id if sample is None or name in desk.busy else name
        first = sample is None or not sample.knows(trajectory)
        if sample is not None and trajectory == name:
            sample.add(trajectory, self._load_balancer)
        blocks = np.array(block_keys(prompt_ids, BLOCK_TOKENS), np.uint64) if first else None
        group = None if sample is None else sample.group
        return Request(desk.name, request_id, trajectory, group, blocks, len(prompt_ids))

    async def _attempt(
        self,
        desk: _Desk,
        placement: Placement,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        media: dict[str, Any],
        others: dict[str, Any],
    ) -> TokenOutput | None:
        """Generate at one server; None when the router took the attempt away and nothing came back so far."""
        more = dict(others)
        more["priority"] = int(more.get("priority", 0) or placement.priority)
        call = _OneServer(self.config, placement).generate(
            placement.request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **media, **more
        )
        task = asyncio.ensure_future(call)
        with desk.attempt(placement) as taken:
            try:
                await asyncio.wait({task, taken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not task.done():
                    task.cancel()
        return None if task.cancelled() or not task.done() else task.result()


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


def _server_is_gone(error: BaseException) -> bool:
    """Whether a replica failed, not the request. vLLM's class by name: this process need not have loaded vLLM."""
    names = {each.__name__ for each in type(error).__mro__}
    return isinstance(error, ray.exceptions.RayActorError) or "EngineDeadError" in names
