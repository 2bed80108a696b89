"""What an SGLang tensor-parallel worker does with a command of slipstream.

A command reaches every worker as the payload of SGLang's own weight update, a uint8 tensor named `COMMAND`:

- `update_weights_from_tensor` with the custom weight loader `LOADER`, or
- `update_weights_from_distributed`, for engines that are driven by broadcasts.

The weights themselves do not travel in it: the worker fetches them from the trainer ranks that the command names. How
it went, in all workers of the engine, is the answer of the SGLang call (`hooks`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch

from slipstream.core.config import from_environment
from slipstream.core.seams import require
from slipstream.core.weights import Connections, Subscriber, SyncError
from slipstream.core.weights.chain import ChainReader
from slipstream.plugins.sglang.drafter import weights_changed
from slipstream.plugins.sglang.engine import SglangEngine
from slipstream.plugins.sglang.messages import COMMAND, Command, Follow, Outcome, Sync, decode_command
from slipstream.plugins.sglang.seams import seam_table

logger = logging.getLogger(__name__)


class Worker:
    """Weight sync of one model of this process."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Start without a version.

        Raises:
            SeamError: SGLang does not look as expected.
        """
        config = from_environment()
        require(seam_table(), {"weight_sync"}, strict=config is None or config.weight_sync.strict_seams)
        from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        self.rank = int(parallel.tp_rank)
        self.ranks = int(parallel.tp_size)
        self._local_rank = self.rank % max(1, self.ranks // int(parallel.nnodes))
        self._engine = SglangEngine(model, in_session=hasattr(WeightUpdater, "begin_weight_update"))
        self._subscriber: Subscriber | None = None
        self._connections: Connections | None = None
        self._reader: ChainReader | None = None
        self.asleep = False
        """Whether the memory of the weights is given back to the system."""

    @property
    def subscriber(self) -> Subscriber:
        """Built by the first command.

        Raises:
            SyncError: the weights have no memory now.
        """
        name = f"replica {os.environ.get('VERL_REPLICA_RANK', '0')} SGLang worker rank {self.rank}"
        if self.asleep:
            raise SyncError(
                f"{name} sleeps, so its weights have no memory to write to; wake them before the sync: "
                "resume_memory_occupation(tags=['weights'])"
            )
        if self._subscriber is None:
            self._subscriber = Subscriber(self._engine, name)
        return self._subscriber

    def obey(self, command: Command) -> Outcome:
        """Carry out a command. Never raises: an exception in a weight loader ends SGLang's scheduler."""
        try:
            version = self._sync(command) if isinstance(command, Sync) else self._follow(command)
            if version is not None:
                weights_changed(version)
            return Outcome(version)
        except Exception as error:
            logger.exception("slipstream: this worker could not take the update")
            return Outcome(self._version(command), f"{type(error).__name__}: {error}")

    def lose(self, reason: str) -> None:
        """Somebody else writes or discards the weights."""
        if self._subscriber is not None:
            self._subscriber.invalidate(reason)
        if self._reader is not None:
            self._reader.invalidate()

    def _sync(self, command: Sync) -> int:
        if self._reader is not None:
            self._reader.invalidate()
        subscriber = self.subscriber
        self._connections = self._connections or Connections()
        addresses = [endpoint.format(local_rank=self._local_rank) for endpoint in command.endpoints]
        with self._connections.joined(addresses, command.timeout) as channels:
            return subscriber.sync(channels, command.timeout)

    def _follow(self, command: Follow) -> int | None:
        try:
            subscriber = self.subscriber
            if self._reader is None or self._reader.url != command.url:
                self._reader = ChainReader(command.url, self._engine)
            held = self._reader.version
            version = self._reader.update()
            if version != held:
                subscriber.invalidate("the weights come from a chain now")
            return version
        except Exception:
            if self._subscriber is not None:
                self._subscriber.invalidate("an update from a chain failed")
            raise

    def _version(self, command: Command) -> int | None:
        holder = self._subscriber if isinstance(command, Sync) else self._reader
        return None if holder is None else holder.version


workers: WeakKeyDictionary[torch.nn.Module, Worker] = WeakKeyDictionary()
"""Of this process, by model; only models that a command has reached."""

outcomes: WeakKeyDictionary[torch.nn.Module, Outcome] = WeakKeyDictionary()
"""What became of the last command, until the hook that answers takes it."""

watched = False
"""Whether SGLang ran the hooks of this plugin in this process (`hooks.register`)."""


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """SGLang's custom weight loader: carry out the command in the payload.

    Args:
        model: of the model runner.
        named_tensors: one uint8[bytes] tensor named `COMMAND`.
    """
    tensors = dict(named_tensors)
    outcomes[model] = _obey(model, tensors)


def _obey(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> Outcome:
    if set(tensors) != {COMMAND}:
        return Outcome(None, f"SyncError: expected one tensor named {COMMAND}, got {sorted(tensors)}")
    try:
        command = decode_command(tensors[COMMAND])
        worker = workers.get(model)
        if worker is None:
            if not watched:
                raise SyncError(
                    "SGLang did not run slipstream's plugin in this process, so nobody would notice other writers of "
                    "the weights; is SGLANG_PLUGINS set without slipstream?"
                )
            worker = workers[model] = Worker(model)
    except Exception as error:
        logger.exception("slipstream: this worker cannot take updates")
        return Outcome(None, f"{type(error).__name__}: {error}")
    return worker.obey(command)


def gathered(outcome: Outcome) -> list[Outcome]:
    """The outcomes of all tensor-parallel workers of the engine, in rank order; a collective."""
    from sglang.srt.runtime_context import get_parallel

    parallel: Any = get_parallel()
    if parallel.tp_size == 1:
        return [outcome]
    found: list[Any] = [None] * int(parallel.tp_size)
    torch.distributed.all_gather_object(found, msgspec.json.encode(outcome), group=parallel.tp_group.cpu_group)
    return [msgspec.json.decode(each, type=Outcome) for each in found]
