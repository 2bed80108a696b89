"""slipstream's worker extension plus the means to break it; imported inside vLLM's workers."""

from __future__ import annotations

from collections.abc import Callable

from breaking import break_third_scatter

from slipstream.core.weights import transaction
from slipstream.plugins.vllm.worker_extension import WorkerExtension


class TestExtension(WorkerExtension):
    """Used by name as vLLM's `worker_extension_cls`."""

    __test__ = False
    repair_writes: Callable[[], None] = staticmethod(lambda: None)

    def break_writes(self, broken: bool) -> None:
        """Make the next update fail half-way on the last rank."""
        last = self.rank == self.parallel_config.world_size - 1  # type: ignore[attr-defined]
        self.repair_writes()
        if broken and last:
            self.repair_writes = break_third_scatter(transaction)

    def lose_weights(self) -> None:
        """What vLLM's level 2 sleep does to the sync; the CPU backend itself cannot sleep."""
        self._slipstream().invalidate("the test says so")

    def running_tokens(self) -> dict[str, list[int]]:
        """What every request that the runner still knows has been given, as this worker sees it."""
        requests = self.model_runner.requests  # type: ignore[attr-defined]
        return {name: list(state.output_token_ids) for name, state in requests.items()}
