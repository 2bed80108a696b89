"""The asyncio front: callers wait for admission, survive lost replicas and migrations, and can give up."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.core.rollout import (
    Abort,
    CacheAwareRouter,
    FinishedLengths,
    LiveRouter,
    ReplicaLimits,
    RouterSettings,
    Segment,
    Turn,
    TurnResult,
)


def turn(name: int, index: int = 0, own: int = 300) -> Turn:
    return Turn((name, index), name, name, (Segment(("own", name), own),), index == 0)


def front(replicas: int = 1, kv: int = 1000) -> tuple[LiveRouter, list[Abort]]:
    aborts: list[Abort] = []
    policy = CacheAwareRouter(RouterSettings(move_seconds=0.02), history=[FinishedLengths(50, 0, 2)] * 8)
    live = LiveRouter(policy, aborts.append)
    for name in range(replicas):
        live.add_replica(name, ReplicaLimits(kv, 8))
    return live, aborts


def test_callers_wait_until_they_fit():
    async def scene() -> None:
        live, _ = front()
        running = 0
        most = 0

        async def client(name: int) -> None:
            nonlocal running, most
            own = 300
            for index in range(3):
                where = await live.acquire(turn(name, index, own))
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1
                assert live.release(where, TurnResult(20, ended=index == 2))
                own += 30

        await asyncio.wait_for(asyncio.gather(*map(client, range(12))), 20)
        assert most == 2
        assert live.policy.waiting == 0  # type: ignore[attr-defined]
        live.close()

    asyncio.run(scene())


def test_a_lost_replica_costs_its_callers_a_second_attempt():
    async def scene() -> None:
        live, aborts = front(2)
        where = await live.acquire(turn(0))
        live.remove_replica(where.replica)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [each.request_id for each in aborts] == [where.request_id]
        assert not live.release(where, TurnResult(5))
        again = await asyncio.wait_for(live.reacquire(where.request_id), 5)
        assert again.replica != where.replica
        assert again.attempt == 2
        assert live.release(again, TurnResult(5, ended=True))
        live.close()

    asyncio.run(scene())


def test_an_aborted_attempt_is_bound_again():
    async def scene() -> None:
        live, _ = front()
        where = await live.acquire(turn(0))
        assert live.release(where, TurnResult(5, aborted=True))
        again = await asyncio.wait_for(live.reacquire(where.request_id), 5)
        assert again.attempt == 2
        live.close()

    asyncio.run(scene())


def test_a_caller_that_gives_up_makes_room():
    async def scene() -> None:
        live, _ = front()
        first = [await live.acquire(turn(name)) for name in range(2)]
        third = asyncio.ensure_future(live.acquire(turn(2)))
        await asyncio.sleep(0.01)
        assert not third.done()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert live.policy.waiting == 0  # type: ignore[attr-defined]
        live.release(first[0], TurnResult(1, ended=True))
        assert await asyncio.wait_for(live.acquire(turn(2, 7)), 5)
        live.close()

    asyncio.run(scene())
