"""The prefix cache of a simulated engine: a tree of segments with locks, leaf-first LRU and partial tail eviction."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from slipstream.core.rollout.requests import Segment


@dataclass(slots=True, eq=False)
class Node:
    """A resident segment; its tokens count from the segment's start."""

    key: Hashable
    parent: Node | None
    tokens: int = 0
    locks: int = 0
    last_used: float = 0.0
    children: dict[Hashable, Node] = field(default_factory=dict)


class KvCache:
    """Token-counted KV memory of one replica. Hits are whole blocks; memory is counted in tokens.

    What a running request uses is locked. Everything else stays until room is needed; then the leaf that was used
    longest ago loses its tail.
    """

    def __init__(self, capacity: int, block: int = 16) -> None:
        self.capacity = capacity
        self.block = block
        self.locked = 0
        self.idle = 0
        """Tokens that nobody uses and that can be evicted."""
        self._root = Node(None, None, locks=1)
        self._idle_leaves: list[tuple[float, int, Node]] = []
        self._pushes = 0

    @property
    def available(self) -> int:
        """Tokens that can be had, by eviction if need be."""
        return self.capacity - self.locked

    def cached_tokens(self, prompt: Sequence[Segment]) -> int:
        """Return how many prompt tokens need no prefill: whole blocks, never the last token."""
        node, found = self._root, 0
        total = sum(tokens for _, tokens in prompt)
        for key, tokens in prompt:
            child = node.children.get(key)
            if child is None:
                if tokens:
                    break
                continue
            found += min(tokens, child.tokens)
            if child.tokens < tokens:
                break
            node = child
        return min(found, total - 1) // self.block * self.block

    def missing_tokens(self, prompt: Sequence[Segment]) -> int:
        """Return the memory that locking a prompt would newly take: tokens that are not resident, or resident idle."""
        node: Node | None = self._root
        needed = 0
        for key, tokens in prompt:
            node = node.children.get(key) if node is not None else None
            if node is None:
                needed += tokens
            else:
                needed += max(tokens, node.tokens) - (node.tokens if node.locks else 0)
        return needed

    def lock(self, prompt: Sequence[Segment], now: float) -> list[Node]:
        """Make a prompt resident and locked and return its nodes; the caller has made sure that it fits."""
        path, node = [], self._root
        for key, tokens in prompt:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(key, node)
            if not child.locks:
                self.idle -= child.tokens
                self.locked += child.tokens
            if tokens > child.tokens:
                self.locked += tokens - child.tokens
                child.tokens = tokens
            child.locks += 1
            child.last_used = now
            path.append(child)
            node = child
        self.shrink_to_fit()
        return path

    def grow(self, tokens: int) -> None:
        """Count tokens that running requests append; `unlock` says later whose they were."""
        self.locked += tokens
        self.shrink_to_fit()

    def unlock(self, path: Sequence[Node], appended: int, now: float) -> None:
        """Release a path after its last node got `appended` tokens, which `grow` has counted."""
        path[-1].tokens += appended
        for node in reversed(path):
            node.locks -= 1
            node.last_used = now
            if not node.locks:
                self.locked -= node.tokens
                self.idle += node.tokens
                if not node.children:
                    self._push(node)

    def forget_tail(self, path: Sequence[Node], tokens: int) -> None:
        """Give back the end of a locked path that was reserved and never computed, as far as nobody shares it."""
        leaf = path[-1]
        if leaf.locks == 1 and not leaf.children:
            tokens = min(tokens, leaf.tokens)
            leaf.tokens -= tokens
            self.locked -= tokens

    def clear_idle(self) -> None:
        """Drop everything that nobody uses, as a reset of the prefix cache does."""
        self._evict(self.idle)

    def shrink_to_fit(self) -> None:
        """Evict until what is resident fits."""
        excess = self.locked + self.idle - self.capacity
        if excess > 0:
            self._evict(excess)

    def recount(self) -> tuple[int, int]:
        """Return locked and idle tokens as counted over the tree, for checks."""
        locked = idle = 0
        nodes = list(self._root.children.values())
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            if node.locks:
                locked += node.tokens
            else:
                idle += node.tokens
        return locked, idle

    def _push(self, node: Node) -> None:
        self._pushes += 1
        heapq.heappush(self._idle_leaves, (node.last_used, self._pushes, node))

    def _evict(self, tokens: int) -> None:
        while tokens > 0 and self._idle_leaves:
            stamp, _, leaf = heapq.heappop(self._idle_leaves)
            if leaf.locks or leaf.children or leaf.last_used != stamp or leaf.parent is None:
                continue
            taken = min(leaf.tokens, -(-tokens // self.block) * self.block)
            leaf.tokens -= taken
            self.idle -= taken
            tokens -= taken
            if leaf.tokens:
                self._push(leaf)
                continue
            parent, leaf.parent = leaf.parent, None
            del parent.children[leaf.key]
            if not parent.locks and not parent.children:
                self._push(parent)
