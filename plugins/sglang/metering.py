"""What an SGLang engine says to a router: its capacity, and how far its requests are.

What its steps cost it does not say in the terms of `LoadReport`, so the router keeps its prior there.
"""

from __future__ import annotations

from typing import Any

from slipstream.core.rollout.requests import ReplicaLimits


class EngineMeter:
    """Watches one engine from the process that holds its tokenizer manager."""

    def __init__(self, manager: Any, state: dict[str, Any]) -> None:
        """Start.

        Args:
            manager: SGLang's tokenizer manager.
            state: the engine's own, from `ask`.
        """
        self._manager = manager
        self._before: dict[str, int] = {}
        self.limits = ReplicaLimits(
            int(state["memory_usage"]["token_capacity"]), int(state["effective_max_running_requests_per_dp"])
        )
        """KV tokens and running requests at most."""

    @classmethod
    async def of(cls, manager: Any) -> EngineMeter:
        """Watch the engine of `manager`, which has started."""
        return cls(manager, await ask(manager))

    def progress(self) -> dict[str, int]:
        """Return the output tokens of each request so far, by its id; SGLang passes them on in blocks of 50."""
        return {rid: len(state.output_ids) for rid, state in self._manager.rid_to_state.items()}

    def take_activity(self) -> bool:
        """Return whether anything came, went or was written since the last call."""
        before, self._before = self._before, self.progress()
        return before != self._before


async def ask(manager: Any) -> dict[str, Any]:
    """Ask the scheduler of the engine for its state; one that hangs does not answer."""
    state: dict[str, Any] = (await manager.get_internal_state())[0]
    return state
