"""The router inside verl: verl's client classes, and servers of toy engines.

Two tests take actors of a local Ray, as verl starts them; the others call the same objects in one event loop, where
nothing has to start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from metric_names import missing, undescribed
from toy_handles import Handle
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import RequestLoadBalancer, get_router_handle

from slipstream.core.rollout import LoadReport, ReplicaLimits
from slipstream.core.rollout.messages import EngineReport
from slipstream.plugins.verl.routing.actor import RouterActor
from slipstream.plugins.verl.routing.client import RoutedAsyncClient, RoutedClient, client_class, joined, next_attempt
from slipstream.plugins.verl.routing.manager import router_config_path
from slipstream.plugins.verl.routing.samples import in_samples

pytestmark = pytest.mark.timeout(120)
STALL_SECONDS = 2.0


NODE = json.dumps({"router": {"mode": "cache_aware", "stall_seconds": STALL_SECONDS}})


@pytest.fixture(autouse=True)
def node(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_NODE", NODE)


@pytest.fixture(scope="module")
def local_ray():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80_000_000,
        runtime_env={"env_vars": {"SLIPSTREAM_NODE": NODE, "VERL_USE_EXTERNAL_PLUGINS": "none"}},
    )
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def text(prompt: list[int], count: int) -> list[int]:
    """What a toy engine generates: a function of the whole context, so that a continuation shows."""
    ids = list(prompt)
    for _ in range(count):
        ids.append((31 * ids[-1] + len(ids)) % 10_007)
    return ids[len(prompt) :]


class Server:
    """A toy engine with the calls that our server adds to verl's."""

    def __init__(self, kv_tokens: int = 100_000, token_seconds: float = 0.001, version: int = 0) -> None:
        self.limits = ReplicaLimits(kv_tokens, 8)
        self.seconds, self.version = token_seconds, version
        self.going: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.seen: list[tuple[str, int, dict[str, Any]]] = []
        self.most = self.reports = 0
        self.stuck = False

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, priority: int = 0, **_: Any
    ) -> TokenOutput:
        self.seen.append((request_id, len(prompt_ids), sampling_params))
        version = self.version
        whole = text(prompt_ids, sampling_params["max_tokens"])
        done = self.going[request_id] = []
        self.most = max(self.most, len(self.going))
        while len(done) < len(whole) and request_id not in self.aborted:
            await asyncio.sleep(self.seconds)
            if not self.stuck:
                done.append(whole[len(done)])
        del self.going[request_id]
        stop = "completed" if len(done) == len(whole) else "aborted"
        return TokenOutput(
            token_ids=done,
            log_probs=[float(each) for each in done],
            stop_reason=stop,
            extra_fields={"global_steps": version, "num_cached_tokens": 0},
        )

    async def slipstream_report(self) -> EngineReport:
        progress = {name: len(done) for name, done in self.going.items()}
        while self.stuck and not progress:
            await asyncio.sleep(0.05)
        self.reports += 1
        batch = 1 + self.reports % 4  # a token costs what it costs, alone or among others
        steps = 0 if self.stuck else 10
        load = LoadReport(steps, steps * self.seconds * batch, steps * batch)
        return EngineReport(self.limits, load, progress, not self.stuck, self.version)

    async def slipstream_abort(self, request_id: str) -> None:
        self.aborted.add(request_id)

    async def abort_all(self) -> None:
        self.aborted |= set(self.going)

    async def set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    async def get(self, name: str) -> Any:
        return getattr(self, name)


CONFIG = SimpleNamespace(
    actor_rollout_ref=SimpleNamespace(
        rollout=SimpleNamespace(name="vllm", prompt_length=64, response_length=96, full_determinism=False)
    )
)


class World:
    """A router, servers, and one client."""

    def __init__(
        self, servers: int = 2, client: type[LLMServerClient] = RoutedClient, actors: bool = False, **toy: Any
    ) -> None:
        self.servers: dict[str, Any] = {}
        for index in range(servers):
            self.servers[f"host:{index}"] = ray.remote(Server).remote(**toy) if actors else Handle(Server(**toy))
        if actors:
            self.router = get_router_handle(servers=self.servers, router_config_path=router_config_path())
        else:
            self.router = Handle(RouterActor(self.servers))
        self.client = client(CONFIG, self.router)

    def generate(self, name: str, prompt: list[int], tokens: int | None = None, **params: Any) -> Any:
        if tokens is not None:
            params["max_tokens"] = tokens
        return self.client.generate(name, prompt_ids=prompt, sampling_params=params)

    async def seen(self) -> list[tuple[str, int, dict[str, Any]]]:
        return [each for server in self.servers.values() for each in await server.get.remote("seen")]

    async def idle(self) -> None:
        status = await self.router.get_status.remote()
        assert (status["total_inflight"], status["waiting"], status["trajectories"]) == (0, 0, 0)


def prompt(name: int, length: int = 40) -> list[int]:
    return [name * 1000 + each for each in range(length)]


def scene(course: Any) -> None:
    asyncio.run(asyncio.wait_for(course, 60))


def test_the_balancer_has_all_of_verls_protocol_and_serves_verls_own_client():
    async def course() -> None:
        world = World(client=LLMServerClient)
        for name in vars(RequestLoadBalancer):
            assert name.startswith("_") or hasattr(world.router, name), name
        outputs = await asyncio.gather(*(world.generate(str(each), prompt(each), 5) for each in range(32)))
        assert [each.token_ids for each in outputs] == [text(prompt(each), 5) for each in range(32)]
        assert min([len(await server.get.remote("seen")) for server in world.servers.values()]) > 8
        await asyncio.sleep(0.1)  # verl's client releases without waiting
        await world.idle()

    scene(course())


def test_requests_wait_until_their_context_fits_and_come_back_as_the_server_gave_them():
    async def course() -> None:
        world = World(servers=1, kv_tokens=3000, token_seconds=0.01)

        async def sample(index: int) -> None:
            output = await world.generate(f"t{index}", prompt(index), 20)
            assert output.token_ids == text(prompt(index), 20)
            assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 0

        await asyncio.gather(*map(sample, range(24)))
        # 1.25 trajectories a slot; before any has ended, 0.85 x 3000 tokens hold fewer of 40 + a quarter of 1024.
        assert 1 < await world.servers["host:0"].get.remote("most") <= 10
        metrics = await world.router.take_metrics.remote()
        assert not missing("router", metrics)
        assert not undescribed(f"slipstream/router/{name}" for name in metrics)
        assert metrics["queue_max"] >= 6
        assert metrics["replica_0/answers"] == 24
        assert metrics["replica_0/output_tokens"] == 24 * 20
        assert await world.router.take_metrics.remote() == {}
        await world.idle()

    scene(course())


def test_a_server_that_leaves_hands_its_requests_over_with_what_they_have():
    """verl's hybrid replicas leave between steps: budgets shrink (slime 2260), no token is lost or generated twice."""

    async def course() -> None:
        world = World(token_seconds=0.02)
        requests = [asyncio.ensure_future(world.generate(f"t{each}", prompt(each), 90, seed=5)) for each in range(8)]
        await asyncio.sleep(0.7)
        await world.router.remove_servers.remote(["host:1"])
        outputs = await asyncio.gather(*requests)
        for index, output in enumerate(outputs):
            assert output.token_ids == text(prompt(index), 90)
            assert output.log_probs == list(map(float, output.token_ids))
            assert output.stop_reason == "completed"
        handed = [each for each in await world.seen() if each[1] > 40]
        assert len(handed) == 4
        for _, length, params in handed:
            assert length - 40 + params["max_tokens"] == 90
            assert params["seed"] == 5 + length - 40
        assert await world.router.get_all_servers.remote() == ["host:0"]
        assert (await world.router.take_metrics.remote())["evacuated"] == 4
        await world.idle()

    scene(course())


def test_a_request_of_the_long_tail_moves_to_a_replica_that_has_nothing_left():
    async def course() -> None:
        world = World(servers=1, token_seconds=0.04)
        requests = [asyncio.ensure_future(world.generate(f"t{each}", prompt(each), 120)) for each in range(4)]
        await asyncio.sleep(0.3)
        world.servers["host:9"] = Handle(Server(token_seconds=0.04))
        await world.router.add_servers.remote({"host:9": world.servers["host:9"]})
        outputs = await asyncio.gather(*requests)
        assert [each.token_ids for each in outputs] == [text(prompt(each), 120) for each in range(4)]
        metrics = await world.router.take_metrics.remote()
        assert metrics["migrations"] >= 1
        moved = await world.servers["host:9"].get.remote("seen")
        assert len(moved) == metrics["migrations"]
        assert all(length - 40 + params["max_tokens"] == 120 for _, length, params in moved)
        ids = [name for name, _, _ in await world.seen()]
        assert len(set(ids)) == len(ids), "an attempt has a name of its own"
        assert {len(name) for name in ids} == {32}
        await world.idle()

    scene(course())


@pytest.mark.parametrize("actors", [False, True], ids=["in one loop", "Ray actors"])
def test_requests_of_a_server_that_dies_are_done_again_elsewhere(actors, request):
    if actors:
        request.getfixturevalue("local_ray")

    async def course() -> None:
        world = World(actors=actors, token_seconds=0.02)
        await world.generate("first", prompt(50), 1)  # all actors have started
        await asyncio.gather(*(server.get.remote("seen") for server in world.servers.values()))
        requests = [asyncio.ensure_future(world.generate(f"t{each}", prompt(each), 60)) for each in range(12)]
        await asyncio.sleep(0.5)
        kill(world.servers["host:1"])
        outputs = await asyncio.gather(*requests)
        assert [each.token_ids for each in outputs] == [text(prompt(each), 60) for each in range(12)]
        assert await world.router.get_all_servers.remote() == ["host:0"]
        await world.idle()
        kill(world.servers["host:0"])
        with pytest.raises(RuntimeError, match=r"(?s)no rollout server is left.*host:0"):
            await world.generate("late", prompt(99), 5)

    def kill(server: Any) -> None:
        ray.kill(server) if actors else server.kill()

    scene(course())


def test_requests_of_an_engine_that_stalls_are_done_elsewhere():
    """Its server still answers, so only the missing progress tells."""

    async def course() -> None:
        world = World(token_seconds=0.02)
        requests = [asyncio.ensure_future(world.generate(f"t{each}", prompt(each), 60)) for each in range(6)]
        await asyncio.sleep(0.3)
        await world.servers["host:1"].set.remote(stuck=True)
        start = time.monotonic()
        outputs = await asyncio.gather(*requests)
        assert [each.token_ids for each in outputs] == [text(prompt(each), 60) for each in range(6)]
        assert time.monotonic() - start > STALL_SECONDS / 2
        await world.servers["host:1"].set.remote(stuck=False)
        metrics = await world.router.take_metrics.remote()
        assert metrics["evacuated"] + metrics["migrations"] == 3

    scene(course())


@pytest.mark.parametrize("asked", [LLMServerClient, FullyAsyncLLMServerClient])
def test_an_abort_by_the_trainer_means_what_it_means_to_verls_clients(asked):
    """verl's synchronous client hands the partial answer back, the asynchronous one goes on after the weight sync."""
    ours = client_class(asked)
    assert ours is (RoutedClient if asked is LLMServerClient else RoutedAsyncClient)

    async def course() -> None:
        world = World(servers=1, client=ours, token_seconds=0.01)
        request = asyncio.ensure_future(world.generate("t", prompt(1)))
        await asyncio.sleep(0.5)
        await world.servers["host:0"].abort_all.remote()
        await world.servers["host:0"].set.remote(version=1)
        output = await request
        if ours is RoutedClient:
            assert output.stop_reason == "aborted"
            assert output.token_ids == text(prompt(1), 96)[: len(output.token_ids)]
            assert 0 < len(output.token_ids) < 96
        else:
            assert output.token_ids == text(prompt(1), 96)
            assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (0, 1)
        await world.idle()

    scene(course())


def test_a_request_that_is_given_up_is_stopped_and_forgotten():
    async def course() -> None:
        world = World(servers=1, token_seconds=0.05)
        request = asyncio.ensure_future(world.generate("t", prompt(1), 90))
        await asyncio.sleep(0.4)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.sleep(0.3)
        assert await world.servers["host:0"].get.remote("going") == {}
        await world.idle()

    scene(course())


def test_turns_of_a_sample_go_home_and_its_end_is_told():
    """Two requests of one trajectory at a time are allowed, as verl allows them."""

    class Worker:
        """verl's `AgentLoopWorker`, as far as it matters here."""

        def __init__(self, world: World) -> None:
            self.world = world
            self.statuses: list[dict[str, Any]] = []

        @in_samples
        async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: Any, **kwargs: Any) -> Any:
            ids = prompt(kwargs["number"])
            for _ in range(3):
                output = await self.world.generate(f"t{kwargs['number']}", ids, 8)
                ids = [*ids, *output.token_ids]
            await asyncio.gather(*(self.world.generate(f"t{kwargs['number']}", ids, 4) for _ in range(2)))
            return await self._agent_loop_postprocess(ids, False, **kwargs)

        async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
            return output

    async def course() -> None:
        world = World()
        worker = Worker(world)
        runs = (worker._run_agent_loop({}, {}, uid=f"g{each // 4}", number=each) for each in range(8))
        outputs = await asyncio.gather(*runs)
        assert outputs == [prompt(each) + text(prompt(each), 24) for each in range(8)]
        homes: dict[int, set[str]] = {}
        for address, server in world.servers.items():
            for _, length, params in await server.get.remote("seen"):
                if params["max_tokens"] == 8:
                    homes.setdefault(length, set()).add(address)
        assert set(homes) == {40, 48, 56}
        spread = [len(await server.get.remote("seen")) for server in world.servers.values()]
        assert spread == [20, 20], "four trajectories each, all turns at home"
        await asyncio.sleep(0.1)
        await world.idle()

    scene(course())


def output(tokens: list[int], stop: str, version: int | None = 3, **more: Any) -> TokenOutput:
    fields = {"global_steps": version, "num_cached_tokens": more.pop("cached", 7)}
    return TokenOutput(token_ids=tokens, stop_reason=stop, extra_fields=fields, **more)


def test_attempts_are_joined_token_by_token():
    parts = [
        output([1, 2], "aborted", 3, log_probs=[0.1, 0.2], num_preempted=1, cached=16),
        output([], "aborted", 4),
        output([3], "completed", 5, log_probs=[0.3], num_preempted=2, cached=99),
    ]
    whole = joined(parts, 10)
    assert (whole.token_ids, whole.log_probs, whole.stop_reason) == ([1, 2, 3], [0.1, 0.2, 0.3], "completed")
    assert whole.num_preempted == 3
    assert whole.extra_fields == {
        "global_steps": 5,
        "num_cached_tokens": 16,
        "min_global_steps": 3,
        "max_global_steps": 5,
    }


def test_a_malformed_attempt_is_refused():
    with pytest.raises(ValueError, match="expected 2 logprobs, got 1"):
        joined([output([1, 2], "aborted", log_probs=[0.1]), output([3], "completed", log_probs=[0.3])], 10)


def test_the_next_attempt_asks_for_what_is_left():
    asked = {"max_tokens": 10, "min_tokens": 4, "seed": 8, "top_p": 0.9}
    ids, params = next_attempt([5, 6], asked, [output([1, 2, 3], "aborted")], 10)
    assert ids == [5, 6, 1, 2, 3]
    assert params == {"max_tokens": 7, "min_tokens": 1, "seed": 11, "top_p": 0.9}
    assert asked["max_tokens"] == 10, "verl shares one dictionary between samples"
    assert next_attempt([5], {"max_new_tokens": 3}, [], 3) == ([5], {"max_tokens": 3})


def test_without_a_limit_the_whole_response_counts_against_verls_own():
    client = RoutedClient(CONFIG)
    assert [client._limit({}, tokens) for tokens in (10, 64, 100, 200)] == [96, 96, 60, 1]
    assert RoutedAsyncClient(CONFIG, None, only_hybrid=True)._limit({}, 100) == 96
    assert client._limit({"max_new_tokens": 5}, 10) == 5


def test_the_configuration_file_is_in_the_package():
    assert os.path.isfile(router_config_path())
