"""The suffix drafter of one engine replica: requests in, drafts out."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream.core.config import DrafterConfig
from slipstream.core.drafter import snapshot
from slipstream.core.drafter.arrays import LONGEST_DRAFT, new_rows
from slipstream.core.drafter.counters import Counters
from slipstream.core.drafter.errors import DrafterError
from slipstream.core.drafter.expectation import Expectation
from slipstream.core.drafter.history import BLOCK_TOKENS, GroupId, History
from slipstream.core.drafter.load_switch import LoadSwitch
from slipstream.core.drafter.steps import draft, take_in
from slipstream.core.drafter.vote import new_learned

Ints = NDArray[np.int32]

UNKNOWN_COST_THRESHOLD: Final = 0.2
LOWEST_THRESHOLD: Final = 0.02
MEAN_RATE: Final = 0.01
FIRST_ROWS: Final = 64
LOOK_EVERY: Final = 4
"""Steps of an off batch, of which one drafts all the same"""
LOOKS: Final = 4
"""for this many of its requests, to see whether it would pay."""
LONGEST_LOOK: Final = 16
MOST_WATCHED: Final = 8
"""Drafts that are compared with what is written without them, at a time."""


class SuffixDrafter:
    """Proposes continuations copied from the request, its siblings, earlier epochs and other prompts.

    The draft of a request is the chain of most likely next tokens, as long as the probability that all of it is
    accepted is worth the cost of verifying it (SuffixDecoding, arXiv 2411.04975, with learned choice and stopping).
    Drafts are proposals only: the engine's verifier decides what is emitted.

    A step of the engine is `step` (or `observe`, then `propose`) with the running requests. Every method may be called
    from any thread; the work on a batch is done without the GIL.
    """

    def __init__(
        self, config: DrafterConfig | None = None, *, max_model_len: int | None = None, warm_up: bool = True
    ) -> None:
        """Start without history.

        :param config: the node `slipstream.drafter`.
        :param max_model_len: tokens of prompt and response that the engine takes; None for no limit.
        :param warm_up: compile now, once a process (seconds; half a second when the machine code is cached), instead
            of in the first steps.
        """
        self.config = config or DrafterConfig()
        self.counters = Counters()
        self.load = LoadSwitch(self.config.verify_cost)
        self.expectation = Expectation()
        self._max_model_len = max_model_len
        self._history = History(self.config.budget_megabytes << 20)
        self._learned = new_learned()
        self._rows = new_rows(FIRST_ROWS)
        self._free_rows = list(range(FIRST_ROWS))[::-1]
        self._live: dict[Hashable, _Request] = {}
        self._tokens, self._drafted = 1.5, 1.0  # per row and step, running means
        self._until_look = 0  # steps of off batches
        self._looked = 0  # place in an off batch up to which requests were looked at
        self._watched = 0  # requests that are
        self._unkept = 0  # running requests that the budget has no room for
        self._lock = threading.Lock()
        if warm_up:
            _compile()

    def start(self, request_id: Hashable, prompt: ArrayLike, group: GroupId | None = None) -> None:
        """Begin a request.

        :param prompt: int[n], what the engine was given; a conversation so far continues what is known of it.
        :param group: what all samples of one prompt have in common, over epochs and turns; None: the prompt itself.
        :raises DrafterError: when the request runs already, or a token is negative.
        """
        tokens = _tokens(prompt)
        with self._lock:
            if request_id in self._live:
                raise DrafterError(f"expected a new request, {request_id!r} is running; finish it first")
            group_id = snapshot.digest(tokens) if group is None else group
            sequence, prompt_sequence = self._history.open(group_id, tokens)
            if not self._free_rows:
                self._grow_rows()
            row = self._free_rows.pop()
            self._rows.request[row] = (sequence, prompt_sequence, -1)
            self._rows.prediction["count"][row, 0] = 0
            self._live[request_id] = _Request(row, sequence, tokens.size)
            self.counters.requests += 1
            self.counters.without_room += sequence < 0
            self._unkept += sequence < 0

    def observe(self, request_ids: Sequence[Hashable], emitted: Sequence[Sequence[int] | NDArray[Any]]) -> None:
        """Take in the tokens that a step gave each request, accepted drafts included.

        :param emitted: int[n] for each request; n may be 0.
        :raises DrafterError: for a request that is not running or is named twice, or a negative token.
        """
        sizes = [len(each) for each in emitted]
        flat = _tokens(_joined(emitted))
        with self._lock:
            requests = self._requests(request_ids)
            if len(sizes) != len(requests):
                raise DrafterError(f"expected tokens of {len(requests)} requests, got {len(sizes)} lists")
            self._count(requests, sizes)
            if self._watched:
                self._compare_watched(requests, emitted)
            most_blocks = sum(sizes) // BLOCK_TOKENS + 2 * len(sizes)
            if self._unkept or not self._history.reserve(most_blocks):
                flat, sizes = self._kept(requests, flat, sizes)
            batch = np.array([request.row for request in requests], np.int32)
            take_in(self._history.store, self._rows, self._learned, batch, flat, np.cumsum(sizes, dtype=np.int64))
            self._history.make_index_fit(at_rest=False)

    def propose(
        self,
        request_ids: Sequence[Hashable],
        room: Sequence[int] | None = None,
        urgency: Sequence[float] | None = None,
    ) -> list[Ints]:
        """Draft for each request; an empty draft where it does not pay.

        :param room: most tokens of each draft, for example what is left of its response; None for no limit. The
            model's length less the tokens so far less one, and the configured longest draft, bound it in any case.
        :param urgency: how much more a step of each request is worth than that of an average one, for example above 1
            for the longest of a group; divides the threshold.
        :returns: int32[n] for each request.
        :raises DrafterError: for a request that is not running.
        """
        with self._lock:
            requests = self._requests(request_ids)
            self.counters.steps += 1
            if not requests:
                return []
            batch = len(requests)
            threshold = self.threshold(batch)
            if self.load.wants_plain(batch) or not self._promising(requests, threshold, room, urgency):
                return self._nothing(requests)
            proposal = self._draft(requests, range(batch), threshold, room, urgency)
            counts = proposal.lengths.tolist()
            drafted = sum(counts)
            if drafted and not self.load.pays(batch, drafted, self.expectation.of(proposal.expected, proposal.lengths)):
                self._watch(requests, proposal)
                return self._nothing(requests)
            for request, count, expected in zip(requests, counts, proposal.expected.tolist(), strict=True):
                request.proposed = count
                request.expected = expected
            self.counters.proposals += batch
            self.counters.drafted += drafted
            self.counters.empty += counts.count(0)
            return [proposal.tokens[i, :count] for i, count in enumerate(counts)]

    def step(
        self,
        request_ids: Sequence[Hashable],
        emitted: Sequence[Sequence[int] | NDArray[Any]],
        room: Sequence[int] | None = None,
        urgency: Sequence[float] | None = None,
    ) -> list[Ints]:
        """`observe`, then `propose`."""
        self.observe(request_ids, emitted)
        return self.propose(request_ids, room, urgency)

    def finish(self, request_id: Hashable, *, keep: bool = True) -> None:
        """End a request; what it wrote serves its siblings and later epochs unless `keep` is false.

        :raises DrafterError: when it is not running.
        """
        with self._lock:
            (request,) = self._requests([request_id])
            del self._live[request_id]
            self._free_rows.append(request.row)
            self._forget_watched(request)
            if request.sequence >= 0:
                (self._history.close if keep else self._history.discard)(request.sequence)
            else:
                self._unkept -= 1

    def threshold(self, batch: int) -> float:
        """The least probability of acceptance, of a draft as a whole, that a further token is drafted for.

        The break-even of a token at cost c and mean T tokens and D drafted tokens per step: c T / (start + c D), start
        being what a step costs that verifies a draft at all.
        """
        if self.config.threshold > 0:
            return self.config.threshold
        break_even = self.load.break_even(batch, self._tokens, self._drafted)
        return UNKNOWN_COST_THRESHOLD if break_even is None else max(LOWEST_THRESHOLD, break_even)

    def timed(self, batch: int, drafted: int, seconds: float) -> None:
        """Tell how long a step took; see `LoadSwitch.timed`."""
        with self._lock:
            self.load.timed(batch, drafted, seconds)

    def weights_changed(self, version: int) -> None:
        """The engine has new weights. History stays: drafts from an older policy are only proposals."""
        with self._lock:
            self._history.version = version
            self._history.make_index_fit(at_rest=True)

    def add_history(self, group: GroupId, prompt: ArrayLike, response: ArrayLike, version: int | None = None) -> bool:
        """Insert a finished rollout that another engine wrote; False when it did not fit."""
        tokens, rest = _tokens(prompt), _tokens(response)
        with self._lock:
            current = self._history.version if version is None else version
            return self._history.add(group, tokens, rest, np.ones(rest.size, np.bool_), current)

    def forget(self, group: GroupId) -> bool:
        """Remove what finished requests of a group wrote; False when nothing is known of it."""
        with self._lock:
            return self._history.forget(group)

    def save(self, path: Path | str) -> None:
        """Write history and what was learned to a file; it appears whole or not at all."""
        with self._lock:
            snapshot.save(Path(path), self._history, self._learned)

    def load_history(self, path: Path | str, *, learned: bool = True) -> int:
        """Merge a saved history into this one and return how many conversations were new.

        :param learned: take over what was learned as well, for example after a restart; false for another engine's.
        :raises HistoryFileError: when the file cannot be read; nothing was changed.
        """
        saved = snapshot.read(Path(path))
        with self._lock:
            if learned:
                self._learned = saved.learned
            return snapshot.merge(saved, self._history)

    @property
    def statistics(self) -> dict[str, Any]:
        """Every counter, and the size of the history."""
        with self._lock:
            return {
                **self.counters.as_dict(),
                "turned_on": self.load.turned_on,
                "turned_off": self.load.turned_off,
                "probes": self.load.probes,
                "history_tokens": self._history.tokens,
                "history_bytes": self._history.bytes_used,
                "history_groups": len(self._history.groups),
                "evicted_sequences": self._history.evicted_sequences,
                "index_rebuilds": self._history.rebuilds,
                "running": len(self._live),
            }

    def _requests(self, request_ids: Sequence[Hashable]) -> list[_Request]:
        try:
            requests = [self._live[request_id] for request_id in request_ids]
        except KeyError as error:
            raise DrafterError(f"expected a running request, got {error.args[0]!r}; start it first") from None
        if len(set(request_ids)) < len(requests):
            raise DrafterError("expected each request once in a batch; one is named twice")
        return requests

    def _kept(self, requests: list[_Request], flat: Ints, sizes: list[int]) -> tuple[Ints, list[int]]:
        """Without the tokens of requests that the budget has no room for; those draft no more and are not kept."""
        pieces = np.split(flat, np.cumsum(sizes)[:-1])
        kept = []
        reserved = 0
        for request, piece in zip(requests, pieces, strict=True):
            blocks = piece.size // BLOCK_TOKENS + 2
            if request.sequence >= 0 and not self._history.reserve(reserved + blocks):
                self._history.discard(request.sequence)
                self._rows.prediction["count"][request.row, 0] = 0
                request.sequence = -1
                self._unkept += 1
                self.counters.without_room += 1
            reserved += blocks if request.sequence >= 0 else 0
            kept.append(piece if request.sequence >= 0 else _NOTHING)
        return np.concatenate(kept), [piece.size for piece in kept]

    def _count(self, requests: list[_Request], sizes: list[int]) -> None:
        steps = drafted = emitted = 0
        for request, size in zip(requests, sizes, strict=True):
            request.length += size
            if size and request.proposed >= 0:
                accepted = min(request.proposed, size - 1)
                self.counters.accepted += accepted
                if request.proposed:
                    self.expectation.observed(request.expected, accepted)
                drafted += request.proposed
                emitted += size
                steps += 1
                request.proposed = _NO_PROPOSAL
        self.counters.emitted += sum(sizes)
        if steps:
            rate = 1 - (1 - MEAN_RATE) ** steps
            self._tokens += rate * (emitted / steps - self._tokens)
            self._drafted += rate * (drafted / steps - self._drafted)

    def _nothing(self, requests: list[_Request]) -> list[Ints]:
        self.counters.steps_off += 1
        for request in requests:
            request.proposed = _NO_PROPOSAL
        return [_NOTHING] * len(requests)

    def _promising(
        self,
        requests: list[_Request],
        threshold: float,
        room: Sequence[int] | None,
        urgency: Sequence[float] | None,
    ) -> bool:
        """Whether to draft for the whole batch: while it is off, some of its requests are asked in turn."""
        batch = len(requests)
        if batch <= LOOKS or self.load.wants_drafts(batch):
            return True
        self._until_look -= 1
        if self._until_look > 0:
            return False
        self._until_look = LOOK_EVERY
        some = [(self._looked + i) % batch for i in range(LOOKS)]
        self._looked = (self._looked + LOOKS) % batch
        asked = [requests[i] for i in some]
        proposal = self._draft(asked, some, threshold, room, urgency, LONGEST_LOOK)
        share = batch / LOOKS
        promises = self.load.promises(
            batch, share * int(proposal.lengths.sum()), share * self.expectation.of(proposal.expected, proposal.lengths)
        )
        if not promises:
            self._watch(asked, proposal)
        return promises

    def _draft(
        self,
        requests: list[_Request],
        places: Sequence[int],
        threshold: float,
        room: Sequence[int] | None,
        urgency: Sequence[float] | None,
        longest: int = LONGEST_DRAFT,
    ) -> _Proposal:
        """Draft for requests that stand at these places of their batch."""
        count = len(requests)
        most = np.minimum(self._most(requests, None if room is None else [room[i] for i in places]), longest)
        thresholds = np.full(count, threshold, np.float32)
        if urgency is not None:
            thresholds /= np.array([urgency[i] for i in places], np.float32)
        batch = np.array([request.row for request in requests], np.int32)
        tokens = np.empty((count, LONGEST_DRAFT), np.int32)
        lengths, expected = np.empty(count, np.int32), np.empty(count, np.float32)
        draft(self._history.store, self._rows, self._learned, batch, most, thresholds, tokens, lengths, expected)
        return _Proposal(tokens, lengths, expected)

    def _watch(self, requests: list[_Request], proposal: _Proposal) -> None:
        """Find out what drafts that are not verified would have been worth, from what is written without them."""
        for i in np.flatnonzero(proposal.lengths):
            if self._watched == MOST_WATCHED:
                return
            if requests[i].watched is None:
                requests[i].watched = _Watched(
                    proposal.tokens[i, : proposal.lengths[i]].tolist(), float(proposal.expected[i])
                )
                self._watched += 1

    def _compare_watched(self, requests: list[_Request], emitted: Sequence[Sequence[int] | NDArray[Any]]) -> None:
        for request, tokens in zip(requests, emitted, strict=True):
            watched = request.watched
            if watched is None:
                continue
            for token in tokens:
                right = watched.draft[watched.right] == token
                watched.right += right
                if not right or watched.right == len(watched.draft):
                    self.expectation.observed(watched.expected, watched.right)
                    self._forget_watched(request)
                    break

    def _forget_watched(self, request: _Request) -> None:
        self._watched -= request.watched is not None
        request.watched = None

    def _most(self, requests: list[_Request], room: Sequence[int] | None) -> Ints:
        most = np.full(len(requests), self.config.longest_draft, np.int64)
        if room is not None:
            np.minimum(most, room, out=most)
        if self._max_model_len is not None:
            lengths = np.array([request.length for request in requests])
            left = self._max_model_len - lengths - 1
            self.counters.capped += int((left < most).sum())
            np.minimum(most, left, out=most)
        if self._unkept:
            most[[request.sequence < 0 for request in requests]] = 0
        return np.maximum(most, 0).astype(np.int32)

    def _grow_rows(self) -> None:
        old = self._rows
        count = len(old.request)
        self._rows = new_rows(2 * count)
        for target, source in zip(self._rows, old, strict=True):
            target[:count] = source
        self._free_rows = list(range(count, 2 * count))[::-1]


class _Request:
    """A running request."""

    __slots__ = ("expected", "length", "proposed", "row", "sequence", "watched")

    def __init__(self, row: int, sequence: int, length: int) -> None:
        self.row = row
        self.sequence = sequence  # -1: no room in the budget
        self.length = length  # tokens so far
        self.proposed = _NO_PROPOSAL  # tokens of the draft that is being verified
        self.expected = 0.0  # of them
        self.watched: _Watched | None = None


class _Watched:
    """A draft that is not verified, and how much of it was written all the same."""

    __slots__ = ("draft", "expected", "right")

    def __init__(self, draft: list[int], expected: float) -> None:
        self.draft = draft
        self.expected = expected  # tokens of it to be accepted
        self.right = 0


class _Proposal(NamedTuple):
    """Drafts for some requests."""

    tokens: Ints
    """int32[requests, LONGEST_DRAFT]"""
    lengths: Ints
    expected: NDArray[np.float32]
    """float32[requests]: tokens of each that will be accepted, by the drafter's own chances."""


@functools.cache
def _compile() -> None:
    """Go once through everything that is compiled."""
    drafter = SuffixDrafter(DrafterConfig(budget_megabytes=2), warm_up=False)
    for request in range(2):
        drafter.start(request, [1, 2, 3], 0)
        drafter.step([request], [[4, 5, 6]])
        drafter.finish(request)
    drafter.start("next turn", [1, 2, 3, 4, 5, 6, 7], 0)
    drafter.finish("next turn", keep=False)
    drafter._history.rebuild_index(drafter._history.index_bits)
    list(drafter._history.conversations())


_NO_PROPOSAL: Final = -1
_NOTHING: Final = np.empty(0, np.int32)


def _joined(pieces: Sequence[Sequence[int] | NDArray[Any]]) -> ArrayLike:
    filled = [piece for piece in pieces if len(piece)]
    if not filled:
        return _NOTHING
    if all(isinstance(piece, np.ndarray) for piece in filled):
        return np.concatenate(filled)
    return list(itertools.chain.from_iterable(filled))


def _tokens(values: ArrayLike) -> Ints:
    tokens = np.asarray(values)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise DrafterError(f"expected token ids int[n], got {tokens.dtype} of shape {tokens.shape}; pass a flat list")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < 2**31):
        raise DrafterError(
            f"expected token ids from 0 to 2**31 - 1, got {tokens.min()} to {tokens.max()}; leave padding out"
        )
    return np.ascontiguousarray(tokens, np.int32)
