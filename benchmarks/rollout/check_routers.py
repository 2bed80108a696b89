"""Peers decision by decision against the real router binaries, in front of fake workers.

    python -m venv ROUTERS && ROUTERS/bin/pip install sglang-router==0.3.2 vllm-router==0.1.17
    .venv/bin/python benchmarks/rollout/check_routers.py ROUTERS [--steps 400]

Requests are sent one at a time and stay in flight until the script lets them end, so every decision is made in a known
state. The binary decides; the simulator's peer must have that worker among its candidates, which is one worker unless
the binary decides by chance or by map order. Exit status 1 when a decision differs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import socket
import string
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from slipstream.core.rollout import ReplicaLimits, Segment, Turn, TurnResult
from slipstream.core.rollout.simulation.peers import PEERS, Peer

WORKERS = 4
CASES = (
    ("sglang-router", "round_robin", "round_robin"),
    ("sglang-router", "cache_aware", "sglang"),
    ("vllm-router", "round_robin", "round_robin"),
    ("vllm-router", "sticky_least_loaded", "skyrl"),
)


@dataclass
class Worker:
    """An engine that answers when told to."""

    url: str
    held: dict[str, asyncio.Event]
    arrived: asyncio.Queue[tuple[str, str]]
    """Request and worker, shared by all workers."""

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = (body.get("text") or body.get("prompt")).rsplit("#", 1)[1]
        event = self.held[name] = asyncio.Event()
        await self.arrived.put((name, self.url))
        await event.wait()
        choice = {"index": 0, "text": "x", "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        common = {"id": name, "object": "text_completion", "created": 0, "model": "m"}
        return web.json_response({**common, "choices": [choice], "usage": usage, "text": "x", "meta_info": {}})

    async def about(self, request: web.Request) -> web.Response:
        data = [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]
        return web.json_response({"model_path": "m", "is_generation": True, "object": "list", "data": data})


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def worker(arrived: asyncio.Queue[tuple[str, str]]) -> AsyncIterator[Worker]:
    """Run a fake engine."""
    port = free_port()
    made = Worker(f"http://127.0.0.1:{port}", {}, arrived)
    app = web.Application()
    app.add_routes([web.post("/generate", made.generate), web.post("/v1/completions", made.generate)])
    app.add_routes([web.route("*", "/{anything:.*}", made.about)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def router(venv: Path, binary: str, policy: str, workers: list[str]) -> AsyncIterator[str]:
    """Run a router binary and yield its address."""
    port = free_port()
    command = [str(venv / "bin" / binary), *(["launch"] if binary == "sglang-router" else [])]
    command += ["--worker-urls", *workers, "--policy", policy, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(free_port())]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()


@dataclass
class Check:
    """One binary beside the simulator's peer."""

    ours: Peer
    address: str
    endpoint: str
    workers: dict[str, Worker]
    arrived: asyncio.Queue[tuple[str, str]]
    session: aiohttp.ClientSession
    chance: random.Random
    running: list[tuple[Turn, str, int, asyncio.Task[None]]] = field(default_factory=list)
    texts: dict[object, str] = field(default_factory=dict)
    turns: Counter[int] = field(default_factory=Counter)
    forced: int = 0
    differing: int = 0

    def text(self, segment: Segment) -> str:
        """A segment's characters: one a token, unlike any other segment's."""
        if segment.key not in self.texts:
            source = random.Random(repr(segment.key))
            self.texts[segment.key] = "".join(source.choices(string.ascii_letters, k=4000))
        return self.texts[segment.key][: segment.tokens]

    async def wait_until_up(self) -> None:
        """Wait for the first answer."""
        for _ in range(300):
            try:
                async with self.session.get(f"{self.address}/health") as answer:
                    if answer.status == 200:
                        await asyncio.sleep(2)
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{self.address} did not come up in 60 s")

    async def start(self, trajectory: int) -> None:
        """Send the next turn of a trajectory and compare the decision."""
        index = self.turns[trajectory]
        self.turns[trajectory] += 1
        group = trajectory // 4
        name = f"{trajectory}-{index}"
        suffix = Segment(("end", name), len(name) + 1)
        prompt = (
            Segment(("system", group % 3), 300 if group % 3 else 20),
            Segment(("group", group), 100),
            Segment(("own", trajectory), 60 + 200 * index),
            suffix,
        )
        turn = Turn((trajectory, index), trajectory, group, prompt, index == 0)
        text = "".join(map(self.text, prompt[:-1])) + f"#{name}"
        candidates = self.ours.candidates(turn)
        task = asyncio.create_task(self.send(text, trajectory))
        arrived, url = await asyncio.wait_for(self.arrived.get(), 20)
        assert arrived == name
        self.forced += len(candidates) == 1
        if url not in candidates:
            self.differing += 1
        self.running.append((turn, url, self.ours.bind(turn, url).attempt, task))

    async def send(self, text: str, trajectory: int) -> None:
        """One request, held by its worker."""
        key = "text" if self.endpoint == "/generate" else "prompt"
        body = {key: text, "model": "m", "max_tokens": 1}
        headers = {"X-Session-ID": f"session-{trajectory}"}
        async with self.session.post(self.address + self.endpoint, json=body, headers=headers) as answer:
            await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the router answered {answer.status}: {await answer.text()}")

    async def finish(self) -> None:
        """Let a random request end."""
        turn, url, attempt, task = self.running.pop(self.chance.randrange(len(self.running)))
        trajectory, index = turn.request_id  # type: ignore[misc]
        self.workers[url].held.pop(f"{trajectory}-{index}").set()
        await task
        await asyncio.sleep(0.01)  # the router counts down after its answer
        self.ours.finished(turn.request_id, attempt, TurnResult(1), 0.0)


async def run(venv: Path, case: tuple[str, str, str], steps: int) -> bool:
    """Compare one binary; True when every decision is among ours."""
    binary, policy, peer = case
    arrived: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(worker(arrived)) for _ in range(WORKERS)]
        urls = [each.url for each in workers]
        address = await stack.enter_async_context(router(venv, binary, policy, urls))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(120))
        )
        endpoint = "/generate" if binary == "sglang-router" else "/v1/completions"
        ours = PEERS[peer](lambda replica, prompt: 0)
        check = Check(
            ours, address, endpoint, dict(zip(urls, workers, strict=True)), arrived, session, random.Random(1)
        )
        await check.wait_until_up()
        for url in urls:
            ours.add_replica(url, ReplicaLimits(10**6, 64), 0.0)
        if peer == "round_robin":
            await align(check, urls)
        for step in range(steps):
            # the number in flight wanders far enough for a lead of 64 on one worker
            if check.running and check.chance.random() < (0.2 if step < steps // 2 else 0.6):
                await check.finish()
            else:
                busy = {turn.trajectory for turn, *_ in check.running}
                await check.start(check.chance.choice([name for name in range(40 + step) if name not in busy]))
        decisions = sum(check.turns.values())
        while check.running:
            await check.finish()
    verdict = "the same" if not check.differing else f"{check.differing} DIFFER"
    print(f"{binary} {policy}: {decisions} decisions, {check.forced} without a choice, {verdict}", flush=True)
    return not check.differing


async def align(check: Check, urls: list[str]) -> None:
    """Find out where the binary's round robin stands: it has an order of its own and may have started elsewhere."""
    order: list[str] = []
    for name in range(-1, -2 * WORKERS, -1):
        task = asyncio.create_task(check.send(f"#{name}", name))
        arrived, url = await asyncio.wait_for(check.arrived.get(), 20)
        check.workers[url].held.pop(arrived).set()
        await task
        order.append(url)
        if len(order) == WORKERS:
            break
    if len(set(order)) != len(urls):
        return  # no round robin at all: the comparison will say so
    for url in urls:
        check.ours.remove_replica(url, 0.0)
    for url in order:
        check.ours.add_replica(url, ReplicaLimits(10**6, 64), 0.0)


def main() -> int:
    """Compare all binaries that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path, help="virtual environment with the routers")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    logging.getLogger("aiohttp.server").disabled = True  # routers also try gRPC on the workers
    cases = [case for case in CASES if (arguments.venv / "bin" / case[0]).exists()]
    if not cases:
        parser.error(f"no router in {arguments.venv}/bin; expected sglang-router or vllm-router")
    same = [asyncio.run(run(arguments.venv, case, arguments.steps)) for case in cases]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
