"""Which engine workers a publisher knows, and how each holds the checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.core.weights.layout import TensorLayout


@dataclass(frozen=True)
class WorkerLayout:
    """The layout of one worker and the digest that workers with the same layout share."""

    digest: str
    tensors: tuple[TensorLayout, ...]


class Roster:
    """Layouts by worker name, bounded although every start of an engine brings a new name.

    Workers that are away (one replica of a pool, say) are remembered, the latest first, as many as there are workers in
    a sync. One that is forgotten tells its layout again and is seeded. Equal layouts are kept once.
    """

    def __init__(self) -> None:
        self._layouts: dict[str, WorkerLayout] = {}  # the last seen at the end

    def __len__(self) -> int:
        return len(self._layouts)

    def get(self, worker: str) -> WorkerLayout | None:
        """What the worker said of itself, if it did and was not forgotten."""
        return self._layouts.get(worker)

    def add(self, worker: str, digest: str, tensors: tuple[TensorLayout, ...]) -> WorkerLayout:
        """Take down what a worker says of itself."""
        known = next((layout for layout in self._layouts.values() if layout.digest == digest), None)
        self._layouts[worker] = found = known or WorkerLayout(digest, tensors)
        return found

    def met(self, workers: Collection[str]) -> None:
        """These take part in the present sync: forget those that have been away for longest."""
        for worker in workers:
            self._layouts[worker] = self._layouts.pop(worker)
        for worker in list(self._layouts)[: -2 * len(workers) or None]:
            del self._layouts[worker]

    def digests(self) -> set[str]:
        """The layouts of all that are remembered."""
        return {layout.digest for layout in self._layouts.values()}

    def clear(self) -> None:
        """Forget everyone: the checkpoint is another one."""
        self._layouts.clear()
