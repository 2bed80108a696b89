"""Splits a prompt into what the run shares, what its group shares, and what is the trajectory's own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from slipstream.core.rollout.prefix.blocks import block_keys
from slipstream.core.rollout.requests import GroupId, Segment, TrajectoryId


class SharedPrefixes:
    """Finds shared prefixes by block keys: a block that another group had before is the run's, and one that another
    trajectory of the group had is the group's. Remembers the latest `remembered` blocks."""

    def __init__(self, block_tokens: int = 16, remembered: int = 1 << 18) -> None:
        self.block_tokens = block_tokens
        self._remembered = remembered
        self._owners: OrderedDict[int, tuple[GroupId, TrajectoryId | None]] = OrderedDict()
        """The only group and trajectory a block was seen in; None in place of a trajectory for several."""

    _EVERYONE = object()

    def split(self, trajectory: TrajectoryId, group: GroupId, token_ids: Sequence[int]) -> tuple[Segment, ...]:
        """Return the prompt as segments; the last one is the trajectory's own.

        The first trajectory that brings a prefix counts it as its own: nobody shares it yet.
        """
        return self.split_keys(trajectory, group, block_keys(token_ids, self.block_tokens), len(token_ids))

    def split_keys(
        self, trajectory: TrajectoryId, group: GroupId, keys: Iterable[int], tokens: int
    ) -> tuple[Segment, ...]:
        """`split` for a prompt of which only the keys of its first blocks, and the length, are at hand."""
        run_end = group_end = 0
        run_key = group_key = 0
        for index, key in enumerate(keys, 1):
            owner = self._owners.get(key)
            if owner is None:
                self._owners[key] = (group, trajectory)
                continue
            self._owners.move_to_end(key)
            known_group, known_trajectory = owner
            if known_group != group or known_group is self._EVERYONE:
                self._owners[key] = (self._EVERYONE, None)
                run_end, run_key = index, key
            elif known_trajectory != trajectory:
                self._owners[key] = (group, None)
                group_end, group_key = index, key
        while len(self._owners) > self._remembered:
            self._owners.popitem(last=False)
        segments = []
        if run_end:
            segments.append(Segment(("run", run_key), run_end * self.block_tokens))
        if group_end > run_end:
            segments.append(Segment(("group", group_key), (group_end - run_end) * self.block_tokens))
        used = sum(segment.tokens for segment in segments)
        return (*segments, Segment(("own", trajectory), tokens - used))
