"""What slipstream adds to a vLLM worker, through vLLM's own `worker_extension_cls`.

For an engine of your own: `LLM(...,
worker_extension_cls="slipstream.plugins.vllm.worker_extension.WorkerExtension")`, then
`collective_rpc("slipstream_sync", kwargs={"endpoints": [...], "timeout": ...})` for every sync (`failures` reads its
answer), and `reset_prefix_cache()`, since the cached prefixes belong to the old weights.

The calls `slipstream_drafter_*` are for engines that draft with slipstream (`drafter.SuffixProposer`); every worker
answers them, and those that do not draft with None.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from slipstream.core.config import from_environment
from slipstream.core.seams import require
from slipstream.core.weights import Connections, Subscriber, SyncError
from slipstream.core.weights.chain import ChainReader
from slipstream.plugins.vllm.cpu_experts import keep_experts_unpacked
from slipstream.plugins.vllm.cpu_packing import keep_weights_unpacked
from slipstream.plugins.vllm.drafter import Rollout, SuffixProposer, proposer_of
from slipstream.plugins.vllm.engine import VllmEngine
from slipstream.plugins.vllm.seams import seam_table

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

Outcome = tuple[int | None, str]
"""(version now held, "") or (version still held or None, the error)."""


class WorkerExtension:
    """Mixed into the worker class by vLLM; every method is reachable by `collective_rpc`."""

    _slipstream_subscriber: Subscriber | None = None
    _slipstream_connections: Connections | None = None
    _slipstream_reader: ChainReader | None = None
    _slipstream_asleep = False
    """Whether the memory of the weights may be given back to the system."""
    slipstream_writers: tuple[str, ...] = ("reload_weights", "load_model", "update_weights", "update_weights_from_ipc")
    """Worker methods after which the weights are not those of the acknowledged version."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # The earliest point in the worker process, and before the model is loaded: CPU packing must be off by then.
        config = from_environment()
        if config is None or config.weight_sync.mode != "native":
            require(seam_table(), {"weight_sync"}, strict=config is None or config.weight_sync.strict_seams)
            keep_weights_unpacked()
            keep_experts_unpacked()
        create = super().__new__
        worker = create(cls) if create is object.__new__ else create(cls, *args, **kwargs)
        worker._slipstream_watch()
        return worker

    def slipstream_sync(self, endpoints: list[str], timeout: float) -> Outcome:
        """Receive one update from the publishers at `endpoints`, one for each trainer rank that sends.

        Args:
            endpoints: what the publishers' ends gave out (`invite`); `{local_rank}` in them becomes this worker's rank
                on its node. Connections are kept for the next sync.
            timeout: seconds to wait for each message.

        Returns:
            (version now held, "") or (version still held or None, the error). Never raises: vLLM's executor stops
            reading at the first worker that raises, and takes the answers of the others for those of the next call.
        """
        if self._slipstream_reader is not None:
            self._slipstream_reader.invalidate()
        return self._slipstream_take_part(self._slipstream, endpoints, timeout)

    def slipstream_drafter_statistics(self) -> dict[str, float] | None:
        """Every counter of the drafter; see `SuffixProposer.statistics`."""
        return self._slipstream_proposer(lambda proposer: proposer.statistics)

    def slipstream_drafter_feed(self, rollouts: list[Rollout]) -> None:
        """Take finished rollouts of other engines into the history, in the background.

        Args:
            rollouts: (group, prompt, response, policy version) of each; token ids, or int32[n] as bytes.
        """
        self._slipstream_proposer(lambda proposer: proposer.feed(rollouts))

    def slipstream_drafter_version(self, version: int) -> None:
        """Name the policy that generates from now on; slipstream's own syncs do so by themselves."""
        self._slipstream_proposer(lambda proposer: proposer.weights_changed(version))

    def slipstream_drafter_save(self, path: str) -> None:
        """Save history and what was learned to a file on this host.

        Raises:
            OSError: it cannot be written.
            DrafterError: what was fed were no token ids.
        """
        self._slipstream_proposer(lambda proposer: proposer.save(Path(path)))

    def slipstream_drafter_load(self, path: str) -> int | None:
        """Load what `slipstream_drafter_save` wrote; the number of conversations that were new.

        Raises:
            HistoryFileError: it cannot be read; nothing was changed.
        """
        return self._slipstream_proposer(lambda proposer: proposer.load(Path(path)))

    def _slipstream_proposer(self, ask: Callable[[SuffixProposer], _T]) -> _T | None:
        proposer = proposer_of(self)
        return None if proposer is None else ask(proposer)

    def slipstream_checksums(self) -> dict[str, str]:
        """SHA-256 of every parameter and buffer of this worker."""
        return VllmEngine(self).checksums()

    def _slipstream_take_part(
        self,
        find: Callable[[], Subscriber],
        endpoints: list[str],
        timeout: float,
        afterwards: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """What `slipstream_sync` says, for the subscriber that `find` returns; `afterwards` puts the update to use."""
        subscriber = None
        try:
            subscriber = find()
            self._slipstream_connections = self._slipstream_connections or Connections()
            addresses = [endpoint.format(local_rank=self._slipstream_local_rank()) for endpoint in endpoints]
            with self._slipstream_connections.joined(addresses, timeout) as channels:
                version = subscriber.sync(channels, timeout)
            afterwards()
            self.slipstream_drafter_version(version)
            return version, ""
        except Exception as error:
            logger.exception("slipstream: this worker could not take the update")
            return subscriber.version if subscriber is not None else None, f"{type(error).__name__}: {error}"

    def slipstream_follow(self, url: str) -> tuple[int | None, str]:
        """Go to the newest version of the chain at `url`: for an engine that the trainer cannot reach, or a late one.

        Args:
            url: of a folder, as fsspec takes it.

        Returns:
            (version of the chain now held, None before the first; the error, or ""). Never raises, as above.
        """
        reader = None
        try:
            subscriber = self._slipstream()
            if self._slipstream_reader is None or self._slipstream_reader.url != url:
                self._slipstream_reader = ChainReader(url, self._slipstream_engine())
            reader = self._slipstream_reader
            held = reader.version
            version = reader.update()
            if version != held:
                subscriber.invalidate("the weights come from a chain now")
            if version != held and version is not None:
                self.slipstream_drafter_version(version)
            return version, ""
        except Exception as error:
            if self._slipstream_subscriber is not None:
                self._slipstream_subscriber.invalidate("an update from a chain failed")
            logger.exception("slipstream: this worker did not reach the newest version of %s", url)
            return reader.version if reader is not None else None, f"{type(error).__name__}: {error}"

    def _slipstream_engine(self) -> VllmEngine:
        return VllmEngine(self)

    def _slipstream_local_rank(self) -> int:
        return int(self.local_rank)  # type: ignore[attr-defined]  # an attribute of vLLM's worker

    def _slipstream_name(self) -> str:
        return f"vLLM worker rank {self.rank}"  # type: ignore[attr-defined]  # an attribute of vLLM's worker

    def _slipstream(self) -> Subscriber:
        if self._slipstream_asleep:
            raise SyncError(
                f"{self._slipstream_name()} sleeps, so its weights have no memory to write to; "
                "wake them before the sync: wake_up(tags=['weights'])"
            )
        if self._slipstream_subscriber is None:
            self._slipstream_subscriber = Subscriber(self._slipstream_engine(), self._slipstream_name())
        return self._slipstream_subscriber

    def _slipstream_watch(self) -> None:
        """Notice whoever else writes, discards or moves the weights of this worker."""

        def watch(method: str, note: Callable[..., None], first: bool) -> None:
            call = getattr(self, method)

            @functools.wraps(call)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if first:
                    note(*args, **kwargs)
                result = call(*args, **kwargs)
                if not first:
                    note(*args, **kwargs)
                return result

            setattr(self, method, watched)

        for method in self.slipstream_writers:
            if hasattr(self, method):
                watch(method, functools.partial(self._slipstream_lose, method), first=True)
        if hasattr(self, "sleep") and hasattr(self, "wake_up"):
            watch("sleep", self._slipstream_sleeps, first=True)
            watch("wake_up", self._slipstream_wakes, first=False)

    def _slipstream_lose(self, method: str, *args: Any, **kwargs: Any) -> None:
        if self._slipstream_subscriber is not None:
            self._slipstream_subscriber.invalidate(f"vLLM ran {method}")
        if self._slipstream_reader is not None:
            self._slipstream_reader.invalidate()

    def _slipstream_sleeps(self, level: int = 1) -> None:
        self._slipstream_asleep = level >= 1
        if level >= 2:  # level 1 keeps them in host memory
            self._slipstream_lose(f"sleep(level={level})")

    def _slipstream_wakes(self, tags: list[str] | None = None) -> None:
        if tags is None or "weights" in tags:
            self._slipstream_asleep = False


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """The errors in what `collective_rpc("slipstream_sync", ...)` returned, with the rank; empty when all is well."""
    return [f"rank {rank}: {error}" for rank, (_, error) in enumerate(outcomes) if error]
