"""A trainer of one or two ranks and its engine workers on a `FaultyNet`, with everything that must hold at any time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from faulty_net import Fault, FaultyNet, Killed, PublisherEnd, SubscriberEnd
from torch import Tensor
from toy_engine import ToyEngine, checkpoint
from virtual_time import Outcome, VirtualTime

from slipstream.core.weights import (
    Publisher,
    PublisherSettings,
    Subscriber,
    SyncError,
    TensorSpec,
    TrainerShards,
    delivery,
    feed,
    subscriber,
)
from slipstream.core.weights.plan import Cut, sharded
from slipstream.triton_kernels import Box, as_bits

TIMEOUT = 0.3
"""Virtual seconds; a call may wait for a few messages, and twice as long for the verdict."""
LONGEST = 8 * TIMEOUT
Weights = dict[str, Tensor]


class PartialEngine(ToyEngine):
    """A worker that holds no router, as a pipeline or expert-parallel rank may."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__(rank, size)
        del self.tensors["router"]

    def _load_router(self, weight: Tensor) -> None:
        """Another rank's."""

    def densely_loaded(self, weights: Weights) -> dict[str, str]:
        checksums = super().densely_loaded(weights)
        del checksums["router"]
        return checksums


ENGINES = {
    "whole": lambda: ToyEngine(0, 1),
    "first half": lambda: ToyEngine(0, 2),
    "second half": lambda: ToyEngine(1, 2),
    "partial": lambda: PartialEngine(0, 1),
}


@dataclass
class Worker:
    """One engine worker process."""

    kind: str
    engine: ToyEngine
    subscriber: Subscriber
    garbage: dict[str, str] | None
    """Checksums of memory that no trainer wrote; None once it took an update."""


@dataclass(frozen=True)
class Result:
    """One sync."""

    trainer: list[Outcome]
    workers: list[Outcome]
    messages: int
    hit: list[str]

    @property
    def clean(self) -> bool:
        """Whether nobody raised."""
        return all(outcome.error is None for outcome in (*self.trainer, *self.workers))

    def explain(self) -> str:
        """Every error."""
        return "; ".join(repr(outcome.error) for outcome in (*self.trainer, *self.workers))


def scramble(engine: ToyEngine, seed: int = 0) -> None:
    """Fill the memory with garbage."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in engine.tensors.values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))


def trained(weights: Weights, how: str, seed: int) -> Weights:
    """The weights after one step."""
    rng = random.Random(seed)
    moved = {name: tensor.clone() for name, tensor in weights.items()}
    for name, tensor in moved.items():
        if how == "nothing" or name == "lm_head":
            continue
        flat = tensor.view(-1)
        if how == "everything":
            flat += 0.5
        elif how == "sparse":
            places = torch.tensor(rng.sample(range(flat.numel()), max(1, flat.numel() // 50)))
            flat[places] = flat[places] * -1.01 + 0.01
        elif how == "one tensor":
            flat[rng.randrange(flat.numel())] += 1 if name == "flipped" else 0
        elif how == "special":
            values = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3e38]
            for value in values:
                flat[rng.randrange(flat.numel())] = value
    if "lm_head" in moved:
        moved["lm_head"] = moved["embed"]
    return moved


def shard_of(weights: Weights, held: Mapping[str, Sequence[Box]] | None) -> list[tuple[str, Tensor]]:
    """The flat local tensors of a rank that holds these boxes; the whole tensors of one that holds all."""
    if held is None:
        return list(weights.items())
    result = []
    for name, tensor in weights.items():
        local = torch.zeros(sum(box.numel for box in held[name]), dtype=tensor.dtype)
        for box in held[name]:
            source = tensor.contiguous().as_strided(box.sizes, box.src_strides, box.src_offset)
            local.as_strided(box.sizes, box.dst_strides, box.dst_offset).copy_(source)
        result.append((name, local))
    return result


STEPS = ("nothing", "sparse", "everything", "special", "one tensor")


@dataclass
class World:
    """One trainer with its workers."""

    ranks: int = 1
    kinds: tuple[str, ...] = ("whole",)
    level: int = 0
    fresh_channels: bool = False
    settings: PublisherSettings = field(default_factory=PublisherSettings)

    def __post_init__(self) -> None:
        self.clock = VirtualTime()
        self.net = FaultyNet(self.clock)
        self.weights = checkpoint()
        self.versions: dict[tuple[int, int], Weights] = {}
        self._dense: dict[tuple[int, str], dict[str, str]] = {}
        self._runs = 0
        self._names = 0
        self.settings = dataclasses.replace(self.settings, level=self.level, timeout=TIMEOUT, verify_every=3)
        self.start_trainer(self.ranks)
        self.workers = [self.new_worker(kind) for kind in self.kinds]
        self._refusals = 0

    def start_trainer(self, ranks: int) -> None:
        """A new trainer process (group), with a new run id."""
        self._runs += 1
        self.ranks = ranks
        if ranks == 1:
            self.senders = None
            self.publishers = [Publisher(self.settings)]
            return
        specs = tuple(TensorSpec.of(name, tensor) for name, tensor in self.weights.items())
        self.senders = {r: {s.name: sharded(s.shape, [Cut(0, ranks, r)]) for s in specs} for r in range(ranks)}
        self.publishers = [
            Publisher(self.settings, TrainerShards(rank, 1000 + self._runs, specs, self.senders))
            for rank in range(ranks)
        ]

    def sleep(self, index: int) -> None:
        """Sleep level 2: the memory of a worker is garbage afterwards, and its adapter says so."""
        worker = self.workers[index]
        scramble(worker.engine, self._names)
        worker.subscriber.invalidate("sleep level 2")
        worker.garbage = worker.engine.checksums()

    def other_table(self) -> None:
        """The trainer sends the same model in another dtype and order, without the tied head."""
        dtype = torch.float32 if self.weights["q"].dtype == torch.bfloat16 else torch.bfloat16
        names = [name for name in reversed(self.weights) if name != "lm_head"]
        self.weights = {name: self.weights[name].to(dtype) for name in names}
        if self.ranks > 1:
            self.start_trainer(self.ranks)  # what the ranks hold is fixed for a run

    def settle(self) -> None:
        """A first sync after engines or table have changed: it may be refused once, and says why."""
        result = self.sync(fresh=True)
        for outcome in result.trainer:
            refused = (
                isinstance(outcome.error, SyncError) and "the next sync is a dense seed" in str(outcome.error).lower()
            )
            assert outcome.error is None or refused, result.explain()
        self.heal()

    def new_worker(self, kind: str, memory: Mapping[str, Tensor] | None = None) -> Worker:
        """A new worker process, with garbage or with `memory`."""
        engine = ENGINES[kind]()
        if memory is None:
            scramble(engine, self._names)
        else:
            for name, tensor in memory.items():
                engine.tensors[name].copy_(tensor)
        self._names += 1
        return Worker(kind, engine, Subscriber(engine, kind), engine.checksums())

    def set(self, **changes: object) -> None:
        """Change options of the running trainer."""
        self.settings = dataclasses.replace(self.settings, **changes)
        for publisher in self.publishers:
            publisher._settings = self.settings

    def shard(self, rank: int) -> list[tuple[str, Tensor]]:
        """What a trainer rank has of the present weights."""
        return shard_of(self.weights, None if self.senders is None else self.senders[rank])

    def sync(
        self, faults: Mapping[int, Fault] | None = None, broken_collective: int | None = None, fresh: bool = False
    ) -> Result:
        """One sync. Processes that a fault killed are replaced afterwards, a worker by one with its memory before."""
        self.net.start(self.ranks, faults or {}, fresh or self.fresh_channels)
        self.net.broken_collective = broken_collective
        before = [{name: t.clone() for name, t in worker.engine.tensors.items()} for worker in self.workers]

        self._refusals = 0

        def trainer(rank: int) -> object:
            publisher, channel = self.publishers[rank], PublisherEnd(self.net, rank)
            try:
                update = publisher.stage(self.shard(rank))
            except BaseException as error:
                self._refusals += 1
                publisher.refuse(channel, len(self.workers), str(error))
                raise
            self.versions[publisher.run, update.target] = self.weights
            return publisher.deliver(update, channel, len(self.workers), lambda ready: self.net.agree(rank, ready))

        def worker(index: int) -> int:
            channels = [SubscriberEnd(self.net, rank, index) for rank in range(self.ranks)]
            return self.workers[index].subscriber.sync(channels, TIMEOUT)

        parties = {f"trainer rank {r}": lambda r=r: trainer(r) for r in range(self.ranks)}
        parties |= {f"worker {i}": lambda i=i: worker(i) for i in range(len(self.workers))}
        with (
            patch.multiple(subscriber, time=self.clock),
            patch.multiple(feed, time=self.clock),
            patch.multiple(delivery, time=self.clock),
        ):
            outcomes = self.clock.run(parties)
        result = Result(
            list(outcomes.values())[: self.ranks], list(outcomes.values())[self.ranks :], self.net.count, self.net.hit
        )
        self._check_kept(before, result)
        self._bury(before)
        self.check(result)
        return result

    def _bury(self, before: list[dict[str, Tensor]]) -> None:
        for index in self.net.dead_workers:
            self.workers[index] = self.new_worker(self.workers[index].kind, before[index])
        if self.net.trainer_dead:
            self.start_trainer(self.ranks)

    def _check_kept(self, before: list[dict[str, Tensor]], result: Result) -> None:
        """As long as no trainer rank said that the update is final, every worker goes back to what it had."""
        for index, memory in enumerate(before):
            if not self.net.commit_sent and index not in self.net.dead_workers:
                tensors = self.workers[index].engine.tensors
                kept = all(torch.equal(as_bits(tensors[name]), as_bits(tensor)) for name, tensor in memory.items())
                assert kept, f"worker {index} kept an update that nobody committed: {result.explain()}"

    def check(self, result: Result) -> None:
        """Everything that must hold after any sync, whatever happened in it."""
        longest = LONGEST + 5 * self._refusals
        for outcome in (*result.trainer, *result.workers):
            assert outcome.seconds <= longest, f"a call took {outcome.seconds} s: {result.explain()}"
        delivered = {o.value.target for o in result.trainer if o.error is None and not self.net.trainer_dead}
        for index, worker in enumerate(self.workers):
            held, version = worker.engine.checksums(), worker.subscriber.version
            known = [self.dense(weights, worker) for weights in self.versions.values()]
            if worker.garbage is not None:
                known.append(worker.garbage)
            assert held in known, f"worker {index} holds a mixture: {result.explain()}"
            if version is not None:
                worker.garbage = None
                of_version = self.dense(self.versions[worker.subscriber._run, version], worker)
                assert held == of_version, f"worker {index} says version {version} and does not hold it"
            if delivered and index not in self.net.dead_workers:
                assert {version} == delivered, f"the trainer counts worker {index} in: {result.explain()}"
        for rank, publisher in enumerate(self.publishers):
            if publisher.acked is not None:
                self._check_snapshot(rank, publisher)

    def heal(self) -> Result:
        """A sync without faults, on channels of its own: it must work, and leave every engine with these weights."""
        result = self.sync(fresh=True)
        assert result.clean, result.explain()
        for index, worker in enumerate(self.workers):
            assert worker.engine.checksums() == self.dense(self.weights, worker), f"worker {index} is not up to date"
        return result

    def dense(self, weights: Weights, worker: Worker) -> dict[str, str]:
        """Checksums after a dense load."""
        key = (id(weights), worker.kind)
        if key not in self._dense:
            self._dense[key] = worker.engine.densely_loaded(weights)
        return self._dense[key]

    def _check_snapshot(self, rank: int, publisher: Publisher) -> None:
        weights, table = self.versions[publisher.run, publisher.acked or 0], publisher._table
        now, self.weights = self.weights, weights
        local = dict(self.shard(rank))
        self.weights = now
        for index, spec in enumerate(table.specs):
            if table.kinds[index] != "unused":
                want = as_bits(local[spec.name].to(table.dtypes[index]).contiguous()).reshape(-1)
                assert torch.equal(publisher._snapshot.bits(index), want), f"the snapshot of {spec.name} is not acked"


__all__ = ["ENGINES", "STEPS", "Fault", "Killed", "Result", "World", "scramble", "trained"]
