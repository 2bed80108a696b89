"""The router inside OpenRLHF: its own executors and engine actors over toy engines, all in one event loop; and over a
real vLLM engine. Real runs are in `test_runs.py`."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_qwen2
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from toy_handles import Handle
from vllm import AsyncEngineArgs, SamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from slipstream.core.config import RouterConfig
from slipstream.core.rollout import LoadReport
from slipstream.core.rollout.service import RouterService
from slipstream.plugins.openrlhf.engine_actor import SlipstreamRolloutActor
from slipstream.plugins.openrlhf.routing import can_move
from slipstream.plugins.verl.demo.model import build_tokenizer

pytestmark = pytest.mark.timeout(120)
TOKENIZER = build_tokenizer()
FIRST, LAST = 3, 258
"""Tokens that are bytes: most texts of a toy engine are no valid UTF-8."""


def tokens(prompt: list[int], count: int) -> list[int]:
    """What a toy engine generates: a function of the whole context, so that a continuation shows."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(FIRST + (31 * ids[-1] + len(ids)) % (LAST - FIRST + 1))
    return ids[len(prompt) :]


class State:
    """vLLM's `RequestState`, as far as it is looked at; its own detokenizer."""

    def __init__(self, name: str, prompt: list[int], params: SamplingParams) -> None:
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        self.external_req_id, self.prompt, self.params = name, prompt, params
        self.prompt_len, self.is_prefilling = len(prompt), False
        self.whole = tokens(prompt, params.max_tokens)
        request: Any = SimpleNamespace(
            request_id=name, prompt_token_ids=prompt, prompt_embeds=None, sampling_params=params
        )
        self.detokenizer = IncrementalDetokenizer.from_new_request(TOKENIZER, request)
        self.ended = asyncio.get_running_loop().create_future()

    def output(self, reason: str) -> RequestOutput:
        ids = list(self.detokenizer.output_token_ids)
        logprobs = [{each: Logprob(-float(each))} for each in ids]
        text = self.detokenizer.get_next_output_text(True, False)
        made = CompletionOutput(0, text, ids, -float(sum(ids)), logprobs, finish_reason=reason)
        return RequestOutput(self.external_req_id, None, self.prompt, None, [made], True, num_cached_tokens=0)


class Engine:
    """vLLM's `AsyncLLM`: a step takes `seconds` for each request."""

    def __init__(self, seconds: float = 0.0005, kv_tokens: int = 100_000) -> None:
        self.seconds, self.paused, self.dead_error = seconds, False, EngineDeadError()
        self.errored = False
        self.seen: list[State] = []
        self.states: dict[str, State] = {}
        self.numbers = itertools.count()
        self.model_config = SimpleNamespace(max_model_len=512)
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(kv_cache_size_tokens=kv_tokens),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
        )
        self.output_processor = SimpleNamespace(
            tokenizer=TOKENIZER,
            request_states=self.states,
            external_req_ids={},
            process_outputs=lambda outputs, timestamp: None,
        )
        self.stepping = asyncio.ensure_future(self.step())

    async def step(self) -> None:
        while True:
            await asyncio.sleep(self.seconds * max(len(self.states), 1))
            if self.paused or not self.states:
                continue
            outputs = [SimpleNamespace(request_id=name, prefill_stats=None) for name in self.states]
            for name, state in list(self.states.items()):
                done = state.detokenizer.num_output_tokens()
                state.detokenizer.update([state.whole[done]], False)
                if done + 1 == len(state.whole):
                    self.end(name, "length")
            self.output_processor.process_outputs(outputs, time.monotonic())

    def end(self, name: str, reason: str) -> None:
        state = self.states.pop(name)
        del self.output_processor.external_req_ids[state.external_req_id]
        state.ended.set_result(state.output(reason))

    async def generate(self, prompt: Any, params: SamplingParams, request_id: str, priority: int = 0) -> Any:
        state, name = State(request_id, prompt["prompt_token_ids"], params), f"{request_id}-{next(self.numbers)}"
        self.states[name] = state
        self.output_processor.external_req_ids[request_id] = [name]
        self.seen.append(state)
        yield await state.ended

    async def abort(self, request_id: str) -> None:
        self.end(self.output_processor.external_req_ids[request_id][0], "abort")

    async def is_sleeping(self) -> bool:
        return False

    async def pause_generation(self, mode: str) -> None:
        self.paused = mode == "keep"

    async def resume_generation(self) -> None:
        self.paused = False

    def die(self) -> None:
        self.errored = True
        self.stepping.cancel()
        for state in self.states.values():
            state.ended.set_exception(self.dead_error)


class World:
    """A router and engine actors; only vLLM is a toy."""

    def __init__(
        self, engines: int = 2, executor: Any = SingleTurnAgentExecutor, make: Any = Engine, **settings: Any
    ) -> None:
        self.executor, self.make = executor, functools.partial(make, **settings)
        self.actors = [self.actor() for _ in range(engines)]

    def actor(self) -> Any:
        actor = SlipstreamRolloutActor.__new__(SlipstreamRolloutActor)
        actor.llm, actor.executor, actor._mm_pad_token_ids = self.make(), self.executor(), None
        actor._watch_engine()
        return actor

    async def start(self, **settings: Any) -> World:
        servers = {f"engine {index}": Handle(actor) for index, actor in enumerate(self.actors)}
        self.router = Handle(RouterService(servers, RouterConfig(mode="cache_aware", **settings)))
        for name, actor in zip(servers, self.actors, strict=True):
            await actor.slipstream_join(self.router, name)
        return self

    def responses(self, text: str, samples: int, actor: int = 0, limit: int | None = None, most: int = 200) -> Any:
        return self.actors[actor].generate_responses(
            prompt=text,
            label="",
            sampling_params=SamplingParams(max_tokens=limit, logprobs=1),
            max_length=most,
            hf_tokenizer=TOKENIZER,
            num_samples=samples,
        )

    def seen(self) -> list[State]:
        return [state for actor in self.actors for state in actor.llm.seen]

    async def idle(self) -> dict[str, float]:
        await asyncio.sleep(0.1)  # ends are told without waiting
        status = await self.router.get_status.remote()
        assert (status["total_inflight"], status["waiting"], status["trajectories"]) == (0, 0, 0)
        metrics: dict[str, float] = await self.router.take_metrics.remote()
        return metrics


def scene(course: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(course, 60))


def as_one(output: RequestOutput, prompt: list[int], limit: int) -> None:
    """Assert that an answer is what one engine gives in one go."""
    made, expected = output.outputs[0], tokens(prompt, limit)
    state = State("alone", prompt, SamplingParams(max_tokens=limit))
    state.detokenizer.update(expected, False)
    whole = state.output("length").outputs[0]
    assert made.token_ids == expected
    assert made.text == whole.text
    assert [list(each) for each in made.logprobs] == [[token] for token in expected]
    assert made.cumulative_logprob == whole.cumulative_logprob
    assert made.finish_reason == "length"
    assert output.prompt_token_ids == prompt


def test_samples_of_a_prompt_run_on_all_engines_and_come_back_as_its_group():
    """OpenRLHF sent every prompt to one engine's actor; nothing waits for it while another engine is free."""

    async def course() -> None:
        world = await World().start()
        prompts = ["what is this, and why", "something else, which is longer than the first", "third"]
        groups = await asyncio.gather(*(world.responses(each, 4, limit=12) for each in prompts))
        for prompt, group in zip(prompts, groups, strict=True):
            ids = TOKENIZER(prompt)["input_ids"]
            assert [each["observation_tokens"] for each in group] == [ids + tokens(ids, 12)] * 4
            assert {each["prompt"] for each in group} == {prompt}
            assert group[0]["rollout_log_probs"][len(ids) :] == [-float(each) for each in tokens(ids, 12)]
        assert [len(actor.llm.seen) for actor in world.actors] == [6, 6]
        metrics = await world.idle()
        assert (metrics["replica_0/answers"], metrics["replica_1/answers"]) == (6, 6)

    scene(course())


def test_what_does_not_fit_waits_and_goes_to_the_engine_that_is_done_first():
    async def course() -> None:
        world = World(kv_tokens=1200)
        world.actors[1].llm.seconds = 0.005  # ten times slower
        await world.start(move_seconds=0)
        groups = await asyncio.gather(*(world.responses(f"prompt {each}", 4, each % 2, 40) for each in range(12)))
        assert all(len(each["observation_tokens"]) > 40 for group in groups for each in group)
        fast, slow = (len(actor.llm.seen) for actor in world.actors)
        assert fast + slow == 48
        assert fast > 2 * slow, "OpenRLHF binds as many to each"
        assert (await world.idle())["queue_max"] > 10

    scene(course())


def test_a_request_of_the_long_tail_goes_on_at_an_engine_that_has_nothing_left():
    async def course() -> None:
        world = await World(engines=1, seconds=0.01).start()
        prompt = TOKENIZER("a long story")["input_ids"]
        params = SamplingParams(max_tokens=150, min_tokens=20, seed=5, logprobs=1)
        requests = [asyncio.ensure_future(world.actors[0].generate(prompt, params)) for _ in range(4)]
        await asyncio.sleep(0.3)
        for batch in (1, 2, 3, 4) * 5:  # what a request costs cannot be told from four at once
            world.router._actor._live.report("engine 0", LoadReport(10, 10 * 0.01 * batch, 10 * batch))
        world.actors.append(world.actor())
        await world.actors[1].slipstream_join(world.router, "engine 1")
        await world.router.add_servers.remote({"engine 1": Handle(world.actors[1])})
        for output in await asyncio.gather(*requests):
            as_one(output, prompt, 150)
        assert (await world.idle())["migrations"] > 0
        moved = world.actors[1].llm.seen
        assert moved
        for state in moved:
            done = state.prompt_len - len(prompt)
            assert done > 0
            assert state.params.max_tokens == 150 - done
            assert (state.params.min_tokens, state.params.seed) == (max(20 - done, 0), 5 + done)
        assert (params.max_tokens, params.min_tokens, params.seed) == (150, 20, 5), "the executor's own"

    scene(course())


@pytest.mark.parametrize("death", [True, False])
def test_requests_of_an_engine_that_is_lost_are_done_elsewhere(death):
    async def course() -> None:
        world = await World(seconds=0.003).start()
        prompts = [TOKENIZER(f"prompt number {each}")["input_ids"] for each in range(6)]
        params = [SamplingParams(max_tokens=60, logprobs=1, stop=["never"] if each < 2 else None) for each in range(6)]
        # All asked by the actor that stays.
        requests = [
            asyncio.ensure_future(world.actors[0].generate(*each)) for each in zip(prompts, params, strict=True)
        ]
        await asyncio.sleep(0.3)
        if death:
            world.actors[1].llm.die()
        else:
            await world.router.remove_servers.remote(["engine 1"])
        for prompt, output in zip(prompts, await asyncio.gather(*requests), strict=True):
            as_one(output, prompt, 60)
        assert (await world.idle())["evacuated"] == 3
        again = world.actors[0].llm.seen[3:]
        assert len(again) == 3
        for state in again:  # with a stop string, whose match could lie across both parts, from the start
            whole = death or bool(state.params.stop)
            assert (state.prompt in prompts) == whole

    scene(course())


def test_a_pause_for_new_weights_is_not_a_stall_and_their_version_is_told():
    async def course() -> None:
        world = await World(seconds=0.003).start(stall_seconds=1.0)
        group = asyncio.ensure_future(world.responses("partial rollout", 4, limit=60))
        await asyncio.sleep(0.2)
        for actor in world.actors:
            await actor.pause_generation()
        await asyncio.sleep(2.5)
        for actor in world.actors:
            await actor.slipstream_drafter_version(1)
            await actor.resume_generation()
        ids = TOKENIZER("partial rollout")["input_ids"]
        assert [each["observation_tokens"] for each in await group] == [ids + tokens(ids, 60)] * 4
        assert len(world.seen()) == 4, "nothing was done again"
        metrics = await world.idle()
        assert metrics["evacuated"] == 0
        report = await world.actors[0].slipstream_report()
        assert report.version == 1
        await world.responses("new weights", 1, limit=4)
        assert world.router._actor._version == 1

    scene(course())


class Turns(AgentInstanceBase):
    """Three turns, with time between them."""

    def __init__(self) -> None:
        self.turns = 0

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        self.turns += 1
        feedback = "" if self.turns == 3 else " go on "
        return {"rewards": torch.tensor(1.0), "environment_feedback": feedback, "done": self.turns == 3}


def test_turns_of_a_sample_go_home_and_its_end_is_told():
    class Short(MultiTurnAgentExecutor):
        async def execute(self, *args: Any, llm_engine: Any, **kwargs: Any) -> Any:
            class Engine:  # OpenRLHF gives a turn all that is left
                async def generate(self, ids: list[int], params: Any, multi_modal_data: Any = None) -> Any:
                    params.max_tokens = 8
                    return await llm_engine.generate(ids, params, multi_modal_data=multi_modal_data)

            return await super().execute(*args, llm_engine=Engine(), **kwargs)

    async def course() -> None:
        world = await World(executor=lambda: Short(Turns)).start(move_seconds=0)
        groups = await asyncio.gather(*(world.responses(f"agent {each}", 4, most=300) for each in range(3)))
        assert all(len(each["action_ranges"]) == 3 for group in groups for each in group)
        for actor in world.actors:
            lengths = [len(state.prompt) for state in actor.llm.seen]
            turns = [lengths.count(length) for length in sorted(set(lengths))]
            assert turns == [6, 6, 6], "each turn went where the one before had gone"
        metrics = await world.idle()
        assert metrics["return_moves"] == 0
        assert metrics["recomputed_tokens"] > 0, (
            "toy engines cache nothing, and the router knows what a turn had before"
        )

    scene(course())


def test_images_are_refused():
    async def course() -> None:
        world = await World().start()
        with pytest.raises(ValueError, match="prompts of text alone, got image; use"):
            await world.actors[0].generate([1, 2], SamplingParams(max_tokens=1), multi_modal_data={"image": [object()]})

    scene(course())


def test_what_looks_at_the_whole_answer_stays_where_it_is():
    assert can_move(SamplingParams(max_tokens=5, logprobs=1, seed=1, stop_token_ids=[7], repetition_penalty=1.1))
    for stays in ({"stop": ["x"]}, {"n": 2}, {"prompt_logprobs": 1}, {"presence_penalty": 0.1}, {"bad_words": ["x"]}):
        assert not can_move(SamplingParams(**stays))


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_real_engine_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    """fp32, greedy: tokens, text and logprobs of requests that moved in mid-turn are those of requests that did not."""
    for name, value in (
        ("CPU_OMP_THREADS_BIND", "nobind"),
        ("CPU_KVCACHE_SPACE", "1"),
        ("NO_USAGE_STATS", "1"),
        ("WORKER_MULTIPROC_METHOD", "spawn"),
    ):
        monkeypatch.setenv(f"VLLM_{name}", value)
    tiny_qwen2.save(tiny_qwen2.build(False, vocab=len(TOKENIZER)), tmp_path, False, torch.float32)
    TOKENIZER.save_pretrained(tmp_path)
    settings = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "logprobs_mode": "processed_logprobs"}
    params = SamplingParams(max_tokens=200, min_tokens=200, temperature=0, logprobs=1)
    prompts = [TOKENIZER(f"prompt number {each}")["input_ids"] for each in range(4)]

    async def course() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(str(tmp_path), scheduling_policy="priority", **settings))
        try:
            # Two actors that share an engine: to the router they are two.
            world = await World(make=lambda: llm).start(move_seconds=0)
            base = type(world.actors[0]).__mro__[-2]
            alone = await asyncio.gather(*(base.generate(world.actors[0], each, params) for each in prompts))
            requests = [asyncio.ensure_future(world.actors[0].generate(each, params)) for each in prompts]
            progress: list[int] = []
            while len(progress) < len(prompts) or min(progress) < 20:
                await asyncio.sleep(0.005)
                progress = list(world.actors[0]._meter.progress().values())
            await world.router.remove_servers.remote(["engine 1"])
            moved = await asyncio.gather(*requests)
            for ours, theirs in zip(moved, alone, strict=True):
                one, other = ours.outputs[0], theirs.outputs[0]
                assert (one.token_ids, one.text) == (other.token_ids, other.text)
                assert one.finish_reason == other.finish_reason == "length"
                for token, a, b in zip(one.token_ids, one.logprobs, other.logprobs, strict=True):
                    assert a[token].logprob == pytest.approx(b[token].logprob, abs=1e-4)
                assert ours.prompt_token_ids == theirs.prompt_token_ids
            metrics = await world.idle()
            assert metrics["evacuated"] == 2
            assert metrics["replica_0/answers"] + metrics["replica_1/answers"] == 6, "two in two attempts"
        finally:
            llm.shutdown()

    asyncio.run(asyncio.wait_for(course(), 500))
