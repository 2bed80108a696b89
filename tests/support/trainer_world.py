"""What every rank of a sharded trainer does in a test: train a little, publish, and compare with what was gathered."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_engine import PlainEngine

from slipstream.triton_kernels import as_bits

RANKS = 2
SYNCS = 3


def follow(
    rank: int,
    folder: Path,
    source: Any,
    gather: Callable[[], Iterable[tuple[str, torch.Tensor]]],
    train: Callable[[int], None],
    *,
    frozen: Iterable[str] = (),
    dtype_of: Callable[[str], torch.dtype] = lambda name: torch.bfloat16,
    more: dict[str, Any] | None = None,
) -> None:
    """Publish `SYNCS` times; rank 0 has an engine, and leaves what it found in `folder`, facts.json and events.

    Args:
        source: the adapter's `ShardSource`.
        gather: the framework's own export, a collective: (name, whole tensor).
        train: makes the n-th change of the weights, from 1 on.
        frozen: names that `train` leaves alone.
        dtype_of: of an engine's tensor.
        more: facts of the caller's own, complete when all is done.
    """
    from slipstream.core.config import SLIPSTREAM_NODE, parse_config, to_json
    from slipstream.core.weights.publishing import RunPublisher, all_ranks

    sync = {"mode": "delta", "timeout_seconds": 60, "verify_every": 1}
    os.environ[SLIPSTREAM_NODE] = to_json(parse_config({"weight_sync": sync, "events": str(folder / "events")}))
    publisher = RunPublisher(source)
    assert publisher.shards is source, source.obstacle()
    facts: dict[str, Any] = {"differ": [], "changed": []}
    inference: PlainEngine | None = None
    subscribe: Callable[[list[str]], None] | None = None
    before: dict[str, torch.Tensor] = {}
    for step in range(SYNCS):
        if step:
            train(step)
        gathered = {name: tensor.clone() for name, tensor in gather()}
        if inference is None:
            inference = PlainEngine(
                {name: tuple(tensor.shape) for name, tensor in gathered.items()},
                {name: dtype_of(name) for name in gathered},
            )
            subscribe = _subscriber(inference)
        channel, addresses = publisher.shared(f"ipc://{folder}/rank{rank}", same_host=True)
        call = _calling(subscribe if rank == 0 else None, addresses)
        facts["metrics"] = asyncio.run(publisher.publish((), channel, 1, call, step, all_ranks, log=rank == 0))
        if rank == 0:
            wanted = {name: _bits(t.to(inference.tensors[name].dtype)) for name, t in gathered.items()}
            have = {name: _bits(t) for name, t in inference.tensors.items()}
            facts["differ"].append([name for name in wanted if not torch.equal(wanted[name], have[name])])
            facts["changed"].append({n: int((wanted[n] != before[n]).sum()) for n in wanted} if before else {})
            before = wanted
    held: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(held, sum(tensor.numel() for _, tensor in source.tensors()))
    if rank == 0:
        assert inference is not None
        facts |= {
            **(more or {}),
            "frozen": [name for name in frozen if name in before],
            "loads": inference.loads,
            "held": held,
            "elements": sum(tensor.numel() for tensor in gathered.values()),
            "dtypes": {n: str(t.dtype) for n, t in gathered.items()},
            "beyond_bf16": {n: not torch.equal(t.bfloat16().float(), t.float()) for n, t in gathered.items()},
        }
        (folder / "facts.json").write_text(json.dumps(facts))


def _calling(subscribe: Callable[[list[str]], None] | None, addresses: list[str]) -> Callable[[], Any]:
    async def call() -> None:
        if subscribe is not None:
            await asyncio.to_thread(subscribe, addresses)

    return call


def _subscriber(engine: PlainEngine) -> Callable[[list[str]], None]:
    from slipstream.core.weights import Connections, Subscriber

    held, connections = Subscriber(engine, "engine"), Connections()

    def sync(addresses: list[str]) -> None:
        with connections.joined(addresses, 60.0) as channels:
            held.sync(channels, 60.0)

    return sync


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return as_bits(tensor.contiguous())
