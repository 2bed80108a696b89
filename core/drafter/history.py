"""Who wrote what: sequences by prompt group, what is kept under the byte budget, and what goes first.

A group is all requests for one prompt: siblings while they run, earlier epochs after. Its prompt is stored once; each
conversation is one sequence of what comes after it, taken up again when a later request begins with all of it (the
next turn, or a request that was preempted). What goes first when the store is full: surplus conversations of a group
beyond its `KEEP_SEQUENCES` latest ones, oldest first; then groups, least recently used first. Nothing that runs goes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.core.drafter.arrays import (
    BLOCK,
    BLOCK_RECORD,
    BUCKET,
    FILLER,
    MARGIN,
    MOST_BLOCKS,
    SEQUENCE_RECORD,
    new_slots,
    new_store,
)
from slipstream.core.drafter.blocks import append, common_prefix, open_sequence, read, reindex, release
from slipstream.core.drafter.contexts import GLOBAL_ORDERS, GROUP_ORDERS

GroupId = str | int
Ints = NDArray[np.int32]

KEEP_SEQUENCES: Final = 32
BLOCK_TOKENS: Final = BLOCK - MARGIN
BLOCK_BYTES: Final = 4 * BLOCK + BLOCK_RECORD.itemsize + SEQUENCE_RECORD.itemsize + 4
BUCKET_BYTES: Final = 4 * BUCKET
SLOTS_A_TOKEN: Final = len(GROUP_ORDERS) + len(GLOBAL_ORDERS)
FIRST_BUCKET_BITS: Final = 14
FULLEST: Final = 0.85
"""Share of slots in use above which the table doubles."""
FULLEST_AT_REST: Final = 0.6
"""The same when nobody waits for it."""


@dataclass
class Group:
    """The sequences of one prompt."""

    scope_key: int
    prompt: int
    """The sequence of the prompt."""
    idle: list[int] = field(default_factory=list)
    """Sequences that no request writes, oldest first."""
    live: int = 0
    """Requests that are running."""


class History:
    """Owns the store of one drafter. Not thread safe; its drafter locks."""

    def __init__(self, budget_bytes: int) -> None:
        """Reserve the store.

        :param budget_bytes: for tokens and index together; 0 keeps no history at all.
        """
        blocks, bits = divide(budget_bytes)
        self.store = new_store(blocks, max(1, blocks), min(bits, FIRST_BUCKET_BITS))
        self.groups: OrderedDict[GroupId, Group] = OrderedDict()
        self.version = 0
        self.evicted_sequences = 0
        self.rebuilds = 0
        self._most_bits = bits
        self._free = list(range(blocks))[::-1]
        self._order: OrderedDict[int, GroupId] = OrderedDict()  # sequences, oldest first
        self._surplus: deque[tuple[GroupId, int]] = deque()
        self._keys = 0

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return int(self.store.sequence["length"].sum())

    @property
    def bytes_used(self) -> int:
        """Bytes of the blocks and of the index in use."""
        return (self.store.block.size - int(self.store.free[0])) * BLOCK_BYTES + len(self.store.slots) * BUCKET_BYTES

    def open(self, group_id: GroupId, prompt: Ints) -> tuple[int, int]:
        """Begin a request: the sequence that it writes, and that of its group's prompt; (-1, -1) when the budget has no
        room for it."""
        group = self._group(group_id, prompt)
        if group is None:
            return -1, -1
        group.live += 1  # not to be evicted on the way
        shared = common_prefix(self.store, group.prompt, prompt, 0)
        sequence = self._take_up(group, prompt)
        if sequence < 0:
            before = np.concatenate([np.full(MARGIN, FILLER, np.int32), prompt[:shared]])
            sequence = self._begin(group_id, group.scope_key, before[-MARGIN:], shared)
        if sequence >= 0:
            self.store.sequence["version"][sequence] = self.version
            known = int(self.store.sequence["shared"][sequence] + self.store.sequence["length"][sequence])
            if not self._append(sequence, prompt[known:], everywhere=False):
                self._remove(sequence)
                sequence = -1
        if sequence < 0:
            group.live -= 1
            self._drop_if_empty(group_id)
            return -1, -1
        return sequence, group.prompt

    def close(self, sequence: int) -> None:
        """A request ended; what it wrote stays."""
        group_id = self._order[sequence]
        group = self.groups[group_id]
        group.live -= 1
        self._order.move_to_end(sequence)
        group.idle.append(sequence)
        if len(group.idle) > KEEP_SEQUENCES:
            self._surplus.append((group_id, group.idle[-KEEP_SEQUENCES - 1]))

    def discard(self, sequence: int) -> None:
        """A request ended, and what it wrote is forgotten."""
        group_id = self._order[sequence]
        self.groups[group_id].live -= 1
        self._remove(sequence)
        self._drop_if_empty(group_id)

    def add(self, group_id: GroupId, prompt: Ints, rest: Ints, everywhere: NDArray[np.bool_], version: int) -> bool:
        """Insert a finished conversation: `rest` follows `prompt`; False when there was no room."""
        sequence, _ = self.open(group_id, prompt)
        if sequence < 0:
            return False
        self.store.sequence["version"][sequence] = version
        bounds = [0, *(np.flatnonzero(np.diff(everywhere)) + 1).tolist(), rest.size]
        for start, stop in itertools.pairwise(bounds):
            if start < stop and not self._append(sequence, rest[start:stop], everywhere=bool(everywhere[start])):
                self.discard(sequence)
                return False
        self.close(sequence)
        return True

    def forget(self, group_id: GroupId) -> bool:
        """Remove what is known of a group; False when it is not known. What its running requests wrote stays."""
        group = self.groups.get(group_id)
        if group is None:
            return False
        for sequence in list(group.idle):
            self._remove(sequence)
        self._drop_if_empty(group_id)
        return True

    def reserve(self, blocks: int) -> bool:
        """Make sure that `blocks` blocks are free, evicting what goes first; False when what runs leaves no room."""
        while self.store.free[0] < blocks:
            if not self._evict():
                return False
        return True

    @property
    def index_bits(self) -> int:
        """The index has 2**index_bits buckets."""
        return int(self.store.counts[0])

    def make_index_fit(self, *, at_rest: bool) -> None:
        """Rebuild the table when it is too full, twice as large unless what fills it is dead; `at_rest` is generous
        about it."""
        _, used, displaced = self.store.counts.tolist()
        slots = self.store.slots.size
        if used > (FULLEST_AT_REST if at_rest else FULLEST) * slots:
            bits = self.index_bits
            if bits == self._most_bits and used + displaced < 2 * slots:
                return  # it cannot grow, and little in it is dead yet
            grow = SLOTS_A_TOKEN * self.tokens > FULLEST / 2 * slots
            self.rebuild_index(min(bits + grow, self._most_bits))

    def rebuild_index(self, bits: int) -> None:
        """Index everything anew in a table of 2**bits buckets; about 0.2 us a token held."""
        slots, counts = new_slots(bits), np.array([bits, 0, 0])
        prompts = [group.prompt for group in self.groups.values()]
        reindex(self.store, np.array([*prompts, *self._order], np.int32), slots, counts)
        self.store.counts[:] = counts
        self.store = self.store._replace(slots=slots)
        self.rebuilds += 1

    def conversations(self) -> Iterator[tuple[GroupId, Ints, Ints, NDArray[np.bool_], int]]:
        """Every finished conversation as `add` takes it, oldest first."""
        for sequence, group_id in self._order.items():
            group = self.groups[group_id]
            if sequence in group.idle:
                shared = int(self.store.sequence["shared"][sequence])
                rest, everywhere = self._read(sequence)
                version = int(self.store.sequence["version"][sequence])
                yield group_id, self._read(group.prompt)[0][:shared], rest, everywhere, version

    def _read(self, sequence: int) -> tuple[Ints, NDArray[np.bool_]]:
        length = int(self.store.sequence["length"][sequence])
        tokens, everywhere = np.empty(length, np.int32), np.empty(length, np.bool_)
        read(self.store, sequence, tokens, everywhere)
        return tokens, everywhere

    def _group(self, group_id: GroupId, prompt: Ints) -> Group | None:
        group = self.groups.get(group_id)
        if group is not None:
            self.groups.move_to_end(group_id)
            return group
        self._keys += 1
        scope_key = self._keys * 0x9E3779B97F4A7C15 % (1 << 64)
        sequence = self._begin(None, scope_key, np.full(MARGIN, FILLER, np.int32), 0)
        if sequence < 0:
            return None
        if not self._append(sequence, prompt, everywhere=False):
            self._remove(sequence)
            return None
        group = self.groups[group_id] = Group(scope_key, sequence)
        return group

    def _take_up(self, group: Group, prompt: Ints) -> int:
        """The longest idle sequence that `prompt` begins with, or -1."""
        best, longest = -1, 0
        for sequence in group.idle:
            shared, length = (int(self.store.sequence[name][sequence]) for name in ("shared", "length"))
            if longest < length <= prompt.size - shared and (
                common_prefix(self.store, group.prompt, prompt, 0) >= shared
                and common_prefix(self.store, sequence, prompt, shared) == length
            ):
                best, longest = sequence, length
        if best >= 0:
            group.idle.remove(best)
        return best

    def _begin(self, group_id: GroupId | None, scope_key: int, margin: Ints, shared: int) -> int:
        if not self.reserve(1) or not self._free:
            return -1
        sequence = self._free.pop()
        record = self.store.sequence[sequence]
        record["scope_key"], record["shared"], record["version"] = scope_key, shared, self.version
        open_sequence(self.store, sequence, margin)
        if group_id is not None:
            self._order[sequence] = group_id
        return sequence

    def _append(self, sequence: int, tokens: Ints, *, everywhere: bool) -> bool:
        if not self.reserve(-(-tokens.size // BLOCK_TOKENS) + 1):
            return False
        append(self.store, sequence, tokens, everywhere)
        self.make_index_fit(at_rest=False)
        return True

    def _remove(self, sequence: int) -> None:
        release(self.store, sequence)
        self._free.append(sequence)
        group_id = self._order.pop(sequence, None)
        if group_id is not None and sequence in self.groups[group_id].idle:
            self.groups[group_id].idle.remove(sequence)

    def _drop_if_empty(self, group_id: GroupId) -> None:
        group = self.groups[group_id]
        if not group.live and not group.idle:
            self._remove(group.prompt)
            del self.groups[group_id]

    def _evict(self) -> bool:
        while self._surplus:
            group_id, sequence = self._surplus.popleft()
            group = self.groups.get(group_id)
            if group is not None and sequence in group.idle:
                self._remove(sequence)
                self.evicted_sequences += 1
                return True
        for group_id, group in self.groups.items():
            if not group.live:
                self.evicted_sequences += len(group.idle)
                for sequence in list(group.idle):
                    self._remove(sequence)
                self._drop_if_empty(group_id)
                return True
        return False


def divide(budget_bytes: int) -> tuple[int, int]:
    """Blocks of tokens, and bits of the largest table's bucket number, that a budget has room for.

    The table is the largest power of two that leaves a third of the budget for blocks.
    """
    bits = 1
    while (BUCKET_BYTES << (bits + 1)) <= budget_bytes * 2 / 3:
        bits += 1
    rest = budget_bytes - (BUCKET_BYTES << bits)
    return min(max(0, rest // BLOCK_BYTES), MOST_BLOCKS), bits
