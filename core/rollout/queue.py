"""The one global queue: trajectories that have not started, ordered by group."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.core.rollout.requests import GroupId, RequestId, Turn

Priority = tuple[float, ...]


@dataclass(slots=True, eq=False)
class _Waiting:
    group: GroupId
    tie: float
    turns: deque[Turn] = field(default_factory=deque)
    key: Priority | None = None
    """Of its entry in the heap that counts; None when it has none."""


class GroupQueue:
    """Takes the group with the smallest priority; within a group first come, first served.

    A group whose priority is None is held until it is touched. Priorities are asked for again when an entry reaches
    the top, so that a change costs O(log groups) where it
    matters; `reorder` takes all of them anew.
    """

    def __init__(self, priority: Callable[[GroupId], Priority | None], chance: random.Random) -> None:
        self._priority = priority
        self._random = chance
        self._groups: dict[GroupId, _Waiting] = {}
        self._heap: list[tuple[Priority, float, int, _Waiting]] = []
        self._pushes = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, turn: Turn, *, front: bool = False) -> None:
        """Add a first turn; at the front of its group when it comes back from a lost replica."""
        waiting = self._groups.get(turn.group)
        if waiting is None:
            waiting = self._groups[turn.group] = _Waiting(turn.group, self._random.random())
        if front:
            waiting.turns.appendleft(turn)
        else:
            waiting.turns.append(turn)
        self._size += 1
        if waiting.key is None:
            self._enter(waiting)

    def peek(self) -> Turn | None:
        """Return the turn that is next."""
        while self._heap:
            key, _, _, waiting = self._heap[0]
            if waiting.key != key or not waiting.turns:
                heapq.heappop(self._heap)
                continue
            fresh = self._priority(waiting.group)
            if fresh == key:
                return waiting.turns[0]
            heapq.heappop(self._heap)
            self._enter(waiting)
        return None

    def pop(self) -> Turn:
        """Take the turn that `peek` returns.

        :raises IndexError: when there is none.
        """
        if self.peek() is None:
            raise IndexError("the queue is empty")
        waiting = self._heap[0][3]
        turn = waiting.turns.popleft()
        self._size -= 1
        if not waiting.turns:
            heapq.heappop(self._heap)
            del self._groups[waiting.group]
        return turn

    def remove(self, request_id: RequestId) -> None:
        """Drop a turn; takes time linear in the queue."""
        for group, waiting in self._groups.items():
            for turn in waiting.turns:
                if turn.request_id == request_id:
                    waiting.turns.remove(turn)
                    self._size -= 1
                    if not waiting.turns:
                        del self._groups[group]
                    return

    def touch(self, group: GroupId) -> None:
        """Say that a group's priority may have become smaller."""
        waiting = self._groups.get(group)
        if waiting is not None:
            self._enter(waiting)

    def reorder(self) -> None:
        """Say that all priorities may have changed."""
        self._heap.clear()
        for waiting in self._groups.values():
            self._enter(waiting)

    def _enter(self, waiting: _Waiting) -> None:
        waiting.key = self._priority(waiting.group)
        if waiting.key is None:
            return
        if len(self._heap) > 4 * len(self._groups) + 64:  # entries that no longer count
            self._heap = [entry for entry in self._heap if entry[3].turns and entry[3].key == entry[0]]
            heapq.heapify(self._heap)
        self._pushes += 1
        heapq.heappush(self._heap, (waiting.key, waiting.tie, self._pushes, waiting))
