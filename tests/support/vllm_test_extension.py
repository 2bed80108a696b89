"""slipstream's worker extension plus the means to break it; imported inside vLLM's workers."""

from __future__ import annotations

from typing import Any

from slipstream.core.weights import transaction
from slipstream.plugins.vllm.worker_extension import WorkerExtension

_scatter = transaction.scatter_changes


class TestExtension(WorkerExtension):
    """Used by name as vLLM's `worker_extension_cls`."""

    __test__ = False

    def break_writes(self, broken: bool) -> None:
        """Fail the third scatter of every update on the last rank: some tensors are written by then."""
        count = 0

        def failing(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count == 3:
                raise RuntimeError("broken on purpose")
            return _scatter(*args)

        last = self.rank == self.parallel_config.world_size - 1  # type: ignore[attr-defined]
        transaction.scatter_changes = failing if broken and last else _scatter

    def lose_weights(self) -> None:
        """What vLLM's level 2 sleep does to the sync; the CPU backend itself cannot sleep."""
        self._slipstream().invalidate("the test says so")
