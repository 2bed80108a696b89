"""slipstream and its peers behind one interface for the replay."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import DrafterConfig
from slipstream.core.drafter import SuffixDrafter

Ints = NDArray[np.int32]
LONGEST = 64


class Player(Protocol):
    """A drafter in a replay."""

    def start(self, request: Hashable, prompt: Ints, group: str) -> None:
        """A request begins."""

    def feed(self, requests: Sequence[Hashable], emitted: Sequence[Ints]) -> None:
        """The tokens of a step."""

    def propose(self, requests: Sequence[Hashable]) -> list[Any]:
        """A draft for each request."""

    def finish(self, request: Hashable, keep: bool, more: bool = False) -> None:
        """A request ends; not `keep`: what it wrote serves nobody but, if there are `more`, its next turns."""

    def new_policy(self) -> None:
        """The weights changed."""

    def forget(self, groups: Sequence[str]) -> None:
        """Nothing of what these groups wrote may be used from here on; what was learned may."""


class Slipstream:
    """Ours, with one configuration for everything."""

    def __init__(self, verify_cost: float = 0.0, threshold: float = 0.0) -> None:
        self.drafter = SuffixDrafter(DrafterConfig(budget_megabytes=128, verify_cost=verify_cost, threshold=threshold))
        self.start = self.drafter.start
        self.feed = self.drafter.observe
        self.propose = self.drafter.propose
        self._version = 0

    def finish(self, request: Hashable, keep: bool, more: bool = False) -> None:
        self.drafter.finish(request, keep=keep or more)

    def new_policy(self) -> None:
        self._version += 1
        self.drafter.weights_changed(self._version)

    def forget(self, groups: Sequence[str]) -> None:
        for group in groups:
            self.drafter.forget(group)


class Arctic:
    """ArcticInference's SuffixDecodingCache, driven as vLLM's proposer drives it, with the defaults of its plug-in."""

    def __init__(self, make: Callable[..., Any], depth: int = 64) -> None:
        self._make = make
        self._depth = depth
        self.forget(())

    def start(self, request: Hashable, prompt: Ints, group: str) -> None:
        self._cache.start_request(request, prompt)
        self._tails[request] = prompt[-self._depth :].tolist()

    def feed(self, requests: Sequence[Hashable], emitted: Sequence[Ints]) -> None:
        for request, tokens in zip(requests, emitted, strict=True):
            self._cache.add_active_response(request, tokens)
            tail = self._tails[request]
            tail += tokens.tolist()
            del tail[: -self._depth]

    def propose(self, requests: Sequence[Hashable]) -> list[Any]:
        return [
            self._cache.speculate(
                request,
                np.array(self._tails[request], np.int32),
                max_spec_tokens=self._depth,
                max_spec_factor=1.0,
                max_spec_offset=0.0,
                min_token_prob=0.1,
            ).token_ids
            for request in requests
        ]

    def finish(self, request: Hashable, keep: bool, more: bool = False) -> None:
        self._cache.stop_request(request)
        if not keep:
            self._cache.evict_cached_response(request)
        del self._tails[request]

    def new_policy(self) -> None:
        pass

    def forget(self, groups: Sequence[str]) -> None:
        self._cache = self._make(max_tree_depth=self._depth, max_cached_requests=100_000)
        self._tails: dict[Hashable, list[int]] = {}


class RecencyNgram:
    """The latest occurrence of the longest context of 8 to 2 tokens, in the request first; at most 16 tokens, and at
    most twice the context, which scored best of the lengths tried."""

    def __init__(self) -> None:
        self.forget(())

    def start(self, request: Hashable, prompt: Ints, group: str) -> None:
        self._live[request] = ([], {}, {})
        self._append(request, prompt.tolist(), None)

    def feed(self, requests: Sequence[Hashable], emitted: Sequence[Ints]) -> None:
        for request, tokens in zip(requests, emitted, strict=True):
            self._append(request, tokens.tolist(), self._history)

    def _append(self, request: Hashable, tokens: list[int], history: dict[int, Any] | None) -> None:
        text, own, undo = self._live[request]
        for token in tokens:
            at = len(text)
            text.append(token)
            for n in range(2, min(8, at) + 1):
                key = hash(tuple(text[at - n : at]))
                own[key] = at
                if history is not None:
                    undo.setdefault(key, history.get(key))
                    history[key] = (text, at)

    def propose(self, requests: Sequence[Hashable]) -> list[Any]:
        return [self._propose(*self._live[request][:2]) for request in requests]

    def _propose(self, text: list[int], own: dict[int, int]) -> list[int]:
        for n in range(min(8, len(text)), 1, -1):
            key = hash(tuple(text[-n:]))
            source, at = (text, own[key]) if key in own else self._history.get(key, (None, 0))
            if source is not None:
                return list(source[at : at + min(16, 2 * n)])
        return []

    def finish(self, request: Hashable, keep: bool, more: bool = False) -> None:
        _, _, undo = self._live.pop(request)
        if not keep:
            for key, before in undo.items():
                if before is None:
                    del self._history[key]
                else:
                    self._history[key] = before

    def new_policy(self) -> None:
        pass

    def forget(self, groups: Sequence[str]) -> None:
        self._history: dict[int, Any] = {}
        self._live: dict[Hashable, tuple[list[int], dict[int, int], dict[int, Any]]] = {}
