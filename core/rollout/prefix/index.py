"""Which replica holds which prefix: modelled from what was sent there, or exact where the engine publishes events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream.core.rollout.prefix.blocks import ROOT, block_keys
from slipstream.core.rollout.prefix.events import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from slipstream.core.rollout.requests import ReplicaId

WeightPolicy = Literal["reset", "keep", "version-tag"]


@dataclass(slots=True)
class _Replica:
    bit: int
    capacity: int
    """Blocks."""

    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Used longest ago first; a block always before the one that precedes it in its prompts."""

    exact: bool = False
    """Fed by events: what was sent there is no longer guessed at."""

    names: dict[Hashable, int] = field(default_factory=dict)
    """The engine's own hashes."""


class PrefixIndex:
    """Blocks by replica. Memory is bounded by the replicas' capacities together.

    Finding the matches of all replicas takes one dictionary lookup a prompt block: a block's holders are the bits of
    one integer.

    :param weights: what a weight update does: ``reset`` forgets everything (engines that drop their cache), ``keep``
        nothing (engines that serve on from old KV), ``version-tag`` makes later prompts new ones, as engines do that
        salt their hashes with the version; blocks of older versions then age out.
    """

    def __init__(self, block_tokens: int = 16, weights: WeightPolicy = "reset") -> None:
        self.block_tokens = block_tokens
        self.weights = weights
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._by_bit: dict[int, ReplicaId] = {}
        self._holders: dict[int, int] = {}
        self._root = ROOT

    def __len__(self) -> int:
        """Distinct blocks."""
        return len(self._holders)

    def keys(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the keys of a prompt's whole blocks under the current weights."""
        return block_keys(token_ids, self.block_tokens, self._root)

    def add_replica(self, replica: ReplicaId, kv_tokens: int) -> None:
        """Know a replica.

        :raises ValueError: when it is known.
        """
        if replica in self._replicas:
            raise ValueError(f"replica {replica!r} is in the index already; remove it first")
        bit = next(bit for bit in range(len(self._by_bit) + 1) if bit not in self._by_bit)
        self._by_bit[bit] = replica
        self._replicas[replica] = _Replica(bit, max(kv_tokens // self.block_tokens, 1))

    def remove_replica(self, replica: ReplicaId) -> None:
        """Forget a replica and its blocks."""
        self.clear(replica)
        del self._by_bit[self._replicas.pop(replica).bit]

    def insert(self, replica: ReplicaId, keys: Sequence[int]) -> None:
        """Say that a prompt was computed at a replica; ignored where events tell."""
        record = self._replicas[replica]
        if not record.exact:
            self._store(record, keys)

    def matches(self, keys: Sequence[int]) -> dict[ReplicaId, int]:
        """Return, for every replica that has any of it, how many leading tokens of a prompt it holds."""
        found: dict[ReplicaId, int] = {}
        alive = -1
        for index, key in enumerate(keys):
            still = alive & self._holders.get(key, 0)
            if index and still != alive:
                self._note(found, alive & ~still, index)
            alive = still
            if not alive:
                return found
        if keys:
            self._note(found, alive, len(keys))
        return found

    def cached_tokens(self, replica: ReplicaId, keys: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt one replica holds."""
        bit = 1 << self._replicas[replica].bit
        count = 0
        for key in keys:
            if not self._holders.get(key, 0) & bit:
                break
            count += 1
        return count * self.block_tokens

    def apply(self, replica: ReplicaId, event: KvEvent) -> None:
        """Take an event of a replica's engine; from then on only events count for it.

        :raises ValueError: when the engine's block size is another one.
        """
        record = self._replicas[replica]
        if not record.exact:
            self.clear(replica)
            record.exact = True
        if isinstance(event, BlocksCleared):
            self.clear(replica)
        elif isinstance(event, BlocksRemoved):
            for name in event.hashes:
                key = record.names.pop(name, None)
                if key is not None and key in record.blocks:
                    self._drop(record, key)
        elif isinstance(event, BlocksStored) and event.plain:
            if event.block_tokens != self.block_tokens:
                raise ValueError(
                    f"replica {replica!r} stores blocks of {event.block_tokens} tokens, the index has "
                    f"{self.block_tokens}; build the index with the engine's block size"
                )
            parent = self._root if event.parent is None else record.names.get(event.parent)
            if parent is None:  # its parent was stored before we listened
                return
            keys = block_keys(event.token_ids, self.block_tokens, parent)
            record.names.update(zip(event.hashes, keys, strict=False))
            self._store(record, keys)

    def lost_events(self, replica: ReplicaId) -> None:
        """Say that events of a replica were missed: nothing is known of it until its engine says more."""
        self.clear(replica)

    def weights_changed(self, version: int) -> None:
        """Take a weight update into account."""
        if self.weights == "reset":
            for replica in self._replicas:
                self.clear(replica)
        elif self.weights == "version-tag":
            self._root = block_keys([version & 0xFFFFFFFF, version >> 32], 2)[0]

    def clear(self, replica: ReplicaId) -> None:
        """Forget a replica's blocks."""
        record = self._replicas[replica]
        for key in list(record.blocks):
            self._drop(record, key)
        record.names.clear()

    def _store(self, record: _Replica, keys: Iterable[int]) -> None:
        bit = 1 << record.bit
        for key in reversed(tuple(keys)):  # the prompt's start is used last: it must outlive its continuations
            if key in record.blocks:
                record.blocks.move_to_end(key)
            else:
                record.blocks[key] = None
                self._holders[key] = self._holders.get(key, 0) | bit
        while len(record.blocks) > record.capacity:
            self._drop(record, next(iter(record.blocks)))

    def _drop(self, record: _Replica, key: int) -> None:
        del record.blocks[key]
        left = self._holders[key] & ~(1 << record.bit)
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def _note(self, found: dict[ReplicaId, int], bits: int, blocks: int) -> None:
        if bits < 0 or not blocks:
            return
        while bits:
            bit = bits & -bits
            found[self._by_bit[bit.bit_length() - 1]] = blocks * self.block_tokens
            bits ^= bit
