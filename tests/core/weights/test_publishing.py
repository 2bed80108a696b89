"""The trainer side of several ranks: when one cannot stage, all of them say so at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sharded_trainer import Ranks

from slipstream.core.config import SLIPSTREAM_NODE, parse_config, to_json
from slipstream.core.weights import InProcessHub, SyncError, SyncTimeoutError
from slipstream.core.weights.publishing import RunPublisher
from slipstream.core.weights.transports import Address


def _weights(broken: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield "a", torch.ones(3, 5)
    if broken:
        raise RuntimeError("this rank lost its weights")


@pytest.mark.parametrize("broken_rank", [0, 1])
def test_a_rank_that_cannot_stage_does_not_leave_the_others_waiting(monkeypatch, broken_rank):
    monkeypatch.setenv(
        SLIPSTREAM_NODE, to_json(parse_config({"weight_sync": {"mode": "delta", "timeout_seconds": 60}}))
    )
    monkeypatch.setattr("slipstream.core.weights.publisher._REFUSE_SECONDS", 0.1)
    ranks = Ranks(2)
    called = []

    async def call_engine() -> None:
        called.append(True)

    def run(rank: int) -> BaseException | None:
        publish = RunPublisher().publish(
            _weights(rank == broken_rank), InProcessHub(), 1, call_engine, step=1, agree=ranks.agree, log=False
        )
        try:
            asyncio.run(publish)
        except Exception as error:
            return error
        return None

    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(run, range(2)))
    assert time.monotonic() - start < 20
    assert "lost its weights" in str(errors[broken_rank])
    assert isinstance(errors[1 - broken_rank], SyncError)
    assert "another trainer rank" in str(errors[1 - broken_rank])
    assert not called, "no engine worker is called for an update that does not exist"


@pytest.mark.parametrize("transport", ["zeromq", "shared_memory", "torch_distributed"])
def test_the_transport_that_was_chosen_is_the_one_that_workers_are_told(monkeypatch, tmp_path, transport):
    node = {"weight_sync": {"mode": "delta", "transport": transport}}
    monkeypatch.setenv(SLIPSTREAM_NODE, to_json(parse_config(node)))
    end = RunPublisher().open(f"ipc://{tmp_path}/z", same_host=True)
    assert Address.parse(end.invite()).transport == transport
    end.close()


def test_an_engine_that_says_nothing_ends_the_sync_and_where_to_look(monkeypatch):
    monkeypatch.setenv(
        SLIPSTREAM_NODE, to_json(parse_config({"weight_sync": {"mode": "delta", "timeout_seconds": 0.2}}))
    )

    async def call_engine() -> None:
        await asyncio.sleep(60)

    publish = RunPublisher().publish(
        _weights(False), InProcessHub(), 1, call_engine, step=1, agree=lambda ready: ready, log=False
    )
    with pytest.raises(SyncTimeoutError, match=r"no engine worker answered within 0\.2 s; if one .* died, its log"):
        asyncio.run(publish)
