"""Where trajectories wait that had been bound before: crowded out of their home, or because it was lost."""

from __future__ import annotations

import heapq

from slipstream.core.rollout.replica import Live, ReplicaState
from slipstream.core.rollout.requests import RequestId


class ParkingLot:
    """Ordered by first binding: the oldest leaves first."""

    def __init__(self) -> None:
        self._parked: list[tuple[int, int, Live, ReplicaState | None]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._parked)

    def push(self, live: Live, home: ReplicaState | None) -> None:
        """Park a trajectory with a turn; `home` may still have its context."""
        self._pushes += 1
        heapq.heappush(self._parked, (live.bound, self._pushes, live, home))

    def oldest(self) -> tuple[Live, ReplicaState | None]:
        """Return who leaves next, and the home.

        :raises IndexError: when nobody is parked.
        """
        return self._parked[0][2:]

    def pop(self) -> None:
        """Let the oldest leave."""
        heapq.heappop(self._parked)

    def remove(self, request_id: RequestId) -> Live | None:
        """Take the trajectory of a request that was given up."""
        for index, (_, _, live, _) in enumerate(self._parked):
            if live.turn is not None and live.turn.request_id == request_id:
                self._parked[index] = self._parked[-1]
                self._parked.pop()
                heapq.heapify(self._parked)
                return live
        return None
