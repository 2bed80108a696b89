"""The suffix drafter inside SGLang, as a speculative algorithm of its plugin registry.

For an engine of your own: `sglang.Engine(..., **engine_arguments(longest_draft))`. The sampling parameter
`custom_params={GROUP: "..."}` names the group of a request, that is what all samples, turns and epochs of a prompt have
in common; without it the group is the prompt.

SGLang's n-gram worker does all but the drafting: this one puts a chain of tokens where that one puts its tree. Every
tensor-parallel worker has a scheduler of its own and must verify the same, so the first drafts for all.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.core.hooks import plugins
from slipstream.core.seams import require
from slipstream.plugins.sglang.seams import seam_table

if TYPE_CHECKING:  # it compiles: only where something drafts
    from slipstream.core.drafter import SuffixDrafter

logger = logging.getLogger(__name__)

ALGORITHM: Final = "SLIPSTREAM_SUFFIX"
"""SGLang's name of it, the value of `speculative_algorithm`."""

GROUP: Final = "slipstream_group"
"""Key of the sampling parameter `custom_params` under which the group of a request stands."""


def engine_arguments(longest_draft: int) -> dict[str, Any]:
    """SGLang's arguments that draft with slipstream; `longest_draft`: most tokens of a draft."""
    return {
        "speculative_algorithm": ALGORITHM,
        "speculative_num_draft_tokens": max(1, longest_draft) + 1,  # SGLang counts the token that is certain
        "speculative_ngram_max_bfs_breadth": 1,  # a chain
        "speculative_ngram_min_bfs_breadth": 1,
    }


def register_algorithm() -> None:
    """Make SGLang know the algorithm in this process. Safe to call repeatedly."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo, get_spec

    if get_spec(ALGORITHM) is not None:
        return

    class SuffixAlgorithm(CustomSpecAlgo):  # type: ignore[misc, unused-ignore]
        """In all that SGLang asks of an algorithm the same as its n-grams, but for the worker."""

    # The released base class lacks four methods of the builtin ones, without which the scheduler dies at its start.
    for name, member in vars(SpeculativeAlgorithm).items():
        if inspect.isfunction(member) and not name.startswith("_") and name != "create_worker":
            setattr(SuffixAlgorithm, name, _as_ngrams(SpeculativeAlgorithm.NGRAM, name))
    register = SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=SuffixAlgorithm)
    register(lambda server_args: worker_class())


def _as_ngrams(ngrams: Any, name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(ngrams, name)(*args, **kwargs)

    return method


_active: WeakSet[Drafting] = WeakSet()


def weights_changed(version: int) -> None:
    """Tell what drafts in this process that it generates with the policy `version` from now on."""
    for drafting in list(_active):
        drafting.weights_changed(version)


def tell(version: int | None, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Tell what drafts in this process, and return its counters.

    Args:
        version: see `weights_changed`; None: the same as before.
        rollouts: of other engines.

    Raises:
        LookupError: nothing drafts here.
    """
    if not _active:
        raise LookupError("this engine does not draft with slipstream")
    counters: dict[str, float] = {}
    for drafting in list(_active):
        if version is not None:
            drafting.weights_changed(version)
        drafting.feed(rollouts)
        counters.update(drafting.statistics)
    return counters


class Rollout(NamedTuple):
    """A finished rollout of another engine."""

    group: str
    prompt: Sequence[int]
    response: Sequence[int]
    version: int
    """Of the policy that wrote it."""


class Drafting:
    """What drafts for the batches of one scheduler, and what it knows of their requests."""

    def __init__(self, width: int, max_model_len: int, parallel: Any) -> None:
        """Start without history.

        Args:
            width: tokens of each request that a step verifies, the certain one included.
            max_model_len: tokens of prompt and response.
            parallel: SGLang's view of its process groups.

        Raises:
            SeamError: SGLang does not look as expected.
        """
        config = from_environment() or SlipstreamConfig()
        require(seam_table(), {"drafter"}, strict=config.weight_sync.strict_seams)
        self._width, self._parallel = width, parallel
        self._requests: dict[str, _Request] = {}
        self._step: tuple[float, int, int] | None = None  # start, rows and drafted tokens of the last step
        self._batch = 1
        self._totals = {"drafting_seconds": 0.0, "row_steps": 0, "verified": 0, "fed": 0}
        self._feeding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slipstream-history")
        self.drafter: SuffixDrafter | None = None
        """None where another worker drafts."""
        if parallel.tp_rank == 0:
            self.drafter = plugins().drafter("suffix").factory(config.drafter, max_model_len=max_model_len)
        _active.add(self)

    def tokens(self, requests: Sequence[Any], unseen: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """What a step verifies.

        Args:
            requests: SGLang's, one for each row.
            unseen: tokens of each that SGLang has not added to its text yet.

        Returns:
            int64[rows, width]: the last token of each row, then its draft, then zeros; int64[rows, 1] when no row
            has a draft.
        """
        rows = self._drafted(requests, unseen) if self.drafter is not None else np.empty(0, np.int64)
        if self._parallel.tp_size > 1:
            rows = self._shared(rows, len(requests))
        return rows

    def weights_changed(self, version: int) -> None:
        """See `SuffixDrafter.weights_changed`."""
        self._step = None
        if self.drafter is not None:
            self.drafter.weights_changed(version)

    def interrupted(self) -> None:
        """Something else than a step of decodes happens, so the time until the next one is no measure."""
        self._step = None

    def feed(self, rollouts: Sequence[Rollout]) -> None:
        """Take what other engines wrote into the history, in the background."""
        if self.drafter is not None and rollouts:
            self._feeding.submit(self._feed, self.drafter, rollouts)

    @property
    def statistics(self) -> dict[str, float]:
        """Counters since the start: those of the drafter, and `verified` (drafted tokens that a step verified),
        `row_steps` (rows of all steps), `fed` (rollouts taken from others), `drafting_seconds`, and `drafting`, whether
        a batch like the last one drafts. Empty where another worker drafts.
        """
        if self.drafter is None:
            return {}
        self._end_finished()
        drafting = float(self.drafter.load.wants_drafts(self._batch))
        return {**self.drafter.statistics, **self._totals, "drafting": drafting}

    def _drafted(self, requests: Sequence[Any], unseen: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        assert self.drafter is not None, "asked only where it drafts"
        start = time.perf_counter()
        self._end_finished()
        last, emitted, room = [], [], []
        for request, more in zip(requests, unseen, strict=True):
            known = self._requests.get(request.rid)
            if known is None:
                known = self._requests[request.rid] = _Request(request)
                prompt = np.asarray(request.origin_input_ids_unpadded, np.int64)
                group = (getattr(request.sampling_params, "custom_params", None) or {}).get(GROUP)
                self.drafter.start(request.rid, prompt, None if group is None else str(group))
            emitted.append(known.written(more))
            text = more or request.output_ids or request.origin_input_ids_unpadded
            last.append(int(text[-1]))
            left = 0 if known.ended else request.sampling_params.max_new_tokens - known.read
            room.append(max(0, min(self._width, left) - 1))
        if self._step is not None:
            began, rows, drafted = self._step
            if rows == len(requests):
                self.drafter.timed(rows, drafted, start - began)
        drafts = self.drafter.step([request.rid for request in requests], emitted, room)
        width = self._width if any(len(draft) for draft in drafts) else 1
        found = np.zeros((len(requests), width), np.int64)
        found[:, 0] = last
        for row, draft in enumerate(drafts):
            found[row, 1 : 1 + len(draft)] = draft
        self._step = start, len(requests), len(requests) * (width - 1)
        self._batch = len(requests)
        self._totals["row_steps"] += len(requests)
        self._totals["verified"] += sum(map(len, drafts))
        self._totals["drafting_seconds"] += time.perf_counter() - start
        return found

    def _feed(self, drafter: SuffixDrafter, rollouts: Iterable[Rollout]) -> None:
        try:
            for group, prompt, response, version in rollouts:
                self._totals["fed"] += drafter.add_history(group, prompt, response, version)
        except Exception:
            logger.exception("slipstream: rollouts of other engines did not reach the history")

    def _shared(self, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """What the first worker drafted; a collective."""
        told = torch.zeros(1 + count * self._width, dtype=torch.int64)
        if self.drafter is not None:
            told[0] = rows.shape[1]
            told[1 : 1 + rows.size] = torch.from_numpy(rows.reshape(-1))
        group = self._parallel.tp_group
        torch.distributed.broadcast(told, src=group.ranks[0], group=group.cpu_group)
        width = int(told[0])
        shared: NDArray[np.int64] = told[1 : 1 + count * width].numpy().reshape(count, width)
        return shared

    def _end_finished(self) -> None:
        """A request that is retracted leaves the batch as well, and comes back: only its own word counts."""
        assert self.drafter is not None, "asked only where it drafts"
        for rid in [rid for rid, known in self._requests.items() if known.request.finished()]:
            known = self._requests.pop(rid)
            self.drafter.observe([rid], [known.written()])
            self.drafter.finish(rid)


class _Request:
    """A request that runs, and how much of what it wrote the drafter has read."""

    __slots__ = ("ended", "read", "request", "stops")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.read = 0
        self.stops = stop_tokens(request)
        self.ended = False
        """Whether the token was written that ends it: SGLang says so a step later, and cuts off what follows."""

    def written(self, more: Sequence[int] = ()) -> list[int]:
        """What it has written since the last call; `more` are tokens that SGLang has not added to its text yet."""
        if self.ended:
            return []
        new = [*self.request.output_ids[self.read : self.request.finished_len], *more]
        for place, token in enumerate(new):
            if token in self.stops:
                self.ended = True
                del new[place + 1 :]
                break
        self.read += len(new)
        return new


def stop_tokens(request: Any) -> frozenset[int]:
    """The tokens of which each ends `request`, SGLang's; see `Req._check_token_based_finish`."""
    if request.sampling_params.ignore_eos:
        return frozenset()
    found = {*(request.sampling_params.stop_token_ids or ()), *(request.eos_token_ids or ())}
    if request.tokenizer is not None:
        found |= {
            request.tokenizer.eos_token_id,
            *(getattr(request.tokenizer, "additional_stop_token_ids", None) or ()),
        }
    return frozenset(found - {None})


class _NoCorpus:
    """In the place of the n-grams that SGLang's worker would keep."""

    def __init__(self, **settings: Any) -> None:
        pass

    def erase_match_state(self, request_ids: list[str]) -> None:
        """Nothing is kept here."""


@functools.cache
def worker_class() -> type:
    """The worker, derived from SGLang's when it is first needed."""
    from sglang.srt.runtime_context import get_exec, get_parallel
    from sglang.srt.speculative import ngram_worker

    base: Any = ngram_worker.NGRAMWorker

    class SuffixWorker(base):  # type: ignore[misc]
        """SGLang's n-gram worker with other drafts."""

        draft_token_num: int
        _prev_decode_rids: set[str]

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            corpus = ngram_worker.NgramCorpus
            ngram_worker.NgramCorpus = _NoCorpus  # the real one compiles, and takes 1.8 GB
            try:
                super().__init__(*args, **kwargs)
            finally:
                ngram_worker.NgramCorpus = corpus
            self._full = int(self.draft_token_num)
            # A step without drafts verifies one token a row where nothing was captured for the full width.
            self._narrow = not self.enable_overlap and bool(get_exec().graph.disable_cuda_graph)
            self._buffers: dict[int, dict[str, Any]] = {}
            model = self.model_runner.model_config
            self.drafting = Drafting(self._full, int(model.context_len), get_parallel())

        def clear_cache_pool(self) -> None:
            """SGLang flushes its cache with every weight update; history is no cache of the old weights."""
            self._prev_decode_rids = set()

        def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            """See SGLang's `NGRAMWorker.forward_batch_generation`."""
            if batch.forward_mode.is_decode():
                self._drafts = self.drafting.tokens(batch.reqs, self._unseen(batch))
                width = self._drafts.shape[1]
                if width < self._full and not self._narrow:
                    self._drafts = np.pad(self._drafts, ((0, 0), (0, self._full - width)))
                self._set_width(self._drafts.shape[1])
            else:
                self.drafting.interrupted()
                self._set_width(self._full)
            return super().forward_batch_generation(batch, *args, **kwargs)

        def _prepare_draft_tokens(self, batch: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
            rows, width = self._drafts.shape
            chain = np.tril(np.ones((width, width), np.bool_))
            return self._drafts.reshape(-1), np.broadcast_to(chain, (rows, width, width)).reshape(-1)

        def _update_ngram_corpus(self, batch: Any) -> None:
            pass

        def _unseen(self, batch: Any) -> list[list[int]]:
            """With overlap SGLang hands out tokens a step later than they are known here."""
            if not self.enable_overlap or batch.grammar_needs_sync():
                return [[] for _ in batch.reqs]
            tokens, counts = batch.spec_info.accept_tokens.tolist(), batch.spec_info.accept_lens.tolist()
            return [tokens[row * self._full : row * self._full + count] for row, count in enumerate(counts)]

        def _set_width(self, width: int) -> None:
            if width == self.draft_token_num:
                return
            self._buffers[self.draft_token_num] = {name: getattr(self, name) for name in _BUFFERS}
            self.draft_token_num = self.speculative_num_draft_tokens = width
            if width in self._buffers:
                self.__dict__.update(self._buffers[width])
            else:
                self._init_preallocated_tensors()

    return SuffixWorker


_BUFFERS = (
    *("draft_tokens", "retrieve_indexes", "retrieve_next_token", "retrieve_next_sibling", "positions", "tree_mask"),
    *("draft_tokens_batch", "tree_mask_batch", "retrieve_indexes_batch", "retrieve_next_token_batch"),
    *("retrieve_next_sibling_batch", "positions_batch"),
)
"""What SGLang's worker allocates for one width."""
