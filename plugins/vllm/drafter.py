"""The suffix drafter inside vLLM, as its `custom_class` proposer.

For an engine of your own: `LLM(..., speculative_config=speculative_config(longest_draft))`, and beside it
`worker_extension_cls="slipstream.plugins.vllm.worker_extension.WorkerExtension"` for the calls `slipstream_drafter_*`.
`SamplingParams(extra_args={GROUP: "..."})` names the group of a request, that is what all samples, turns and epochs of
a prompt have in common; without it the group is the prompt.

vLLM builds one proposer in each worker and takes drafts from the first of them only; the scheduler sends these to every
worker to verify. So the others have no drafter, and need not agree with it.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import SlipstreamConfig, from_environment
from slipstream.core.hooks import plugins
from slipstream.core.seams import require
from slipstream.plugins.vllm.cpu_sampling import repair_spread
from slipstream.plugins.vllm.seams import seam_table

if TYPE_CHECKING:  # it compiles: only where something drafts
    from slipstream.core.drafter import SuffixDrafter

logger = logging.getLogger(__name__)

GROUP: Final = "slipstream_group"
"""Key of `SamplingParams.extra_args` under which the group of a request stands."""


class Rollout(NamedTuple):
    """A finished rollout of another engine; travels through vLLM's RPC as a plain tuple."""

    group: str
    prompt: Sequence[int] | bytes
    """Token ids, or int32[n] as bytes."""
    response: Sequence[int] | bytes
    version: int
    """Policy version that wrote it."""


class DrafterUnsupportedError(ValueError):
    """An engine setting under which vLLM cannot verify drafts of a `custom_class` proposer."""


def speculative_config(longest_draft: int) -> dict[str, Any]:
    """vLLM's `speculative_config` that drafts with slipstream; `longest_draft`: most tokens of a draft."""
    return {
        "method": "custom_class",
        "model": f"{SuffixProposer.__module__}.{SuffixProposer.__qualname__}",
        "num_speculative_tokens": max(1, longest_draft),  # vLLM takes no 0; the drafter does
    }


def prompt_group(prompt: NDArray[np.int32]) -> str:
    """The group of a request that names none."""
    from slipstream.core.drafter.snapshot import digest

    return digest(prompt)


class SuffixProposer:
    """What vLLM's model runner (V1) asks for drafts after every step.

    A request is known by its id, which the runner has: `execute_model` is wrapped to see the runner and what was
    scheduled, and when the step began. A request that ends in any way (finished, aborted) leaves the runner, and its
    text becomes history. One that is preempted stays there, and goes on where it was.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Start without history, with the drafter node of the run this process belongs to, or its defaults.

        Raises:
            SeamError: vLLM does not look as expected.
            DrafterUnsupportedError: vLLM's own support for such proposers ends at a setting of this engine.
        """
        config = from_environment() or SlipstreamConfig()
        require(seam_table(), {"drafter"}, strict=config.weight_sync.strict_seams)
        check_supported(vllm_config)
        _watch_runner()
        from vllm.distributed import get_tp_group

        self._longest = int(vllm_config.speculative_config.num_speculative_tokens)
        self._requests: dict[str, _Request] = {}
        self._step: _Step | None = None
        self._ended = 0.0  # when the last drafts were ready
        self._drafting = 0.0  # seconds that they took
        self._batch = 1
        self._totals = {"drafting_seconds": 0.0, "row_steps": 0, "verified": 0, "restarted": 0, "fed": 0}
        self._feeding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slipstream-history")
        self._fed: list[Future[None]] = []
        self.drafter: SuffixDrafter | None = None
        """None where vLLM does not ask for drafts."""
        if get_tp_group().is_first_rank:
            name = "suffix" if config.drafter.mode == "off" else config.drafter.mode  # off: an engine of one's own
            factory = plugins().drafter(name).factory
            self.drafter = factory(config.drafter, max_model_len=vllm_config.model_config.max_model_len)

    def load_model(self, target_model: Any) -> None:
        """vLLM calls it with the target model, when the runner is complete; a drafter of ours has none."""
        from vllm.platforms import current_platform

        if current_platform.is_cpu() and repair_spread():
            logger.info("slipstream: repaired what this vLLM does with temperatures of drafted tokens on CPUs")

    def begin(self, runner: Any, scheduled: Any) -> None:
        """A step starts."""
        # vLLM stops drafts for the whole batch when one request comes near this length; here every row has its own.
        runner.effective_drafter_max_model_len = sys.maxsize
        self._step = _Step(runner, scheduled, time.perf_counter())

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for each row of the batch, as vLLM asks for it.

        Args:
            sampled_token_ids: what this step gave each row, accepted drafts included; empty where its prompt is not
                complete.
            num_tokens_no_spec: int32[rows], tokens of each row, those included.
            token_ids_cpu: int32[rows, max_model_len], the tokens.
            slot_mappings: not used.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        step, drafter = self._step, self.drafter
        if drafter is None or step is None:
            return drafts
        start = time.perf_counter()
        self._time(step, sampled_token_ids, start)
        self._end_gone(step.runner)
        batch = step.runner.input_batch
        lengths = num_tokens_no_spec[: len(drafts)].tolist()
        rows, ids, emitted, room = [], [], [], []
        for row, (request_id, tokens, length) in enumerate(zip(batch.req_ids, sampled_token_ids, lengths, strict=True)):
            if not tokens or row in batch.req_prompt_embeds:
                continue
            request = self._requests.get(request_id)
            if request is None or request.length != length - len(tokens):
                request = self._begin_request(
                    step.runner.requests[request_id],
                    request_id,
                    token_ids_cpu[row, : length - len(tokens)],
                    int(batch.num_prompt_tokens[row]),
                )
            request.length = length
            kept = tokens if request.stops.isdisjoint(tokens) else _until_stop(tokens, request.stops)
            rows.append(row)
            ids.append(request_id)
            emitted.append(kept)
            room.append(max(0, min(self._longest, request.most - length - 1)) if kept is tokens else 0)
        for row, draft in zip(rows, drafter.step(ids, emitted, room), strict=True):
            if draft.size:
                drafts[row] = draft.tolist()
        self._batch = len(rows) or self._batch
        self._totals["row_steps"] += len(rows)
        self._ended = time.perf_counter()
        self._drafting = self._ended - start
        self._totals["drafting_seconds"] += self._drafting
        return drafts

    def feed(self, rollouts: Iterable[Rollout]) -> None:
        """Take what other engines wrote into the history, in the background."""
        if self.drafter is not None:
            self._fed = [done for done in self._fed if not done.done()]
            self._fed.append(self._feeding.submit(self._feed, self.drafter, list(rollouts)))

    def settle(self) -> None:
        """Wait until everything that was fed is in the history, and end the requests that are gone.

        Raises:
            DrafterError: what was fed were no token ids.
        """
        fed, self._fed = self._fed, []
        for each in fed:
            each.result()
        if self._step is not None:
            self._end_gone(self._step.runner)

    def weights_changed(self, version: int) -> None:
        """See `SuffixDrafter.weights_changed`."""
        self._ended = 0.0
        if self.drafter is not None:
            self.drafter.weights_changed(version)

    def save(self, path: Path) -> None:
        """Save history and what was learned."""
        self.settle()
        if self.drafter is not None:
            self.drafter.save(path)

    def load(self, path: Path) -> int | None:
        """Load what `save` wrote; see `SuffixDrafter.load_history`."""
        return None if self.drafter is None else self.drafter.load_history(path)

    @property
    def statistics(self) -> dict[str, float] | None:
        """Counters since the start: those of the drafter, and `verified` (drafted tokens that were scheduled),
        `row_steps` (rows of all steps), `restarted` (requests whose tokens were not those expected), `fed` (rollouts
        taken from others), `drafting_seconds`, and `drafting`, whether a batch like the last one drafts. None where
        there is no drafter.
        """
        if self.drafter is None:
            return None
        if self._step is not None:
            self._end_gone(self._step.runner)
        drafting = float(self.drafter.load.wants_drafts(self._batch))
        return {**self.drafter.statistics, **self._totals, "drafting": drafting}

    def _begin_request(self, state: Any, request_id: str, tokens: NDArray[np.int32], prompt: int) -> _Request:
        assert self.drafter is not None, "asked only where it drafts"
        params = state.sampling_params
        group = (params.extra_args or {}).get(GROUP)
        if self._requests.pop(request_id, None) is not None:
            self.drafter.finish(request_id)
            self._totals["restarted"] += 1
        self.drafter.start(request_id, tokens, prompt_group(tokens[:prompt]) if group is None else str(group))
        stops = frozenset((*(params.stop_token_ids or ()), params.eos_token_id)) - {None}
        request = self._requests[request_id] = _Request(prompt + (params.max_tokens or sys.maxsize), stops)
        return request

    def _end_gone(self, runner: Any) -> None:
        for request_id in self._requests.keys() - runner.requests.keys():
            del self._requests[request_id]
            assert self.drafter is not None, "requests are known only where it drafts"
            self.drafter.finish(request_id)

    def _time(self, step: _Step, sampled: list[list[int]], sampled_at: float) -> None:
        """Tell the load switch about a step of decodes; those with parts of prompts are no measure."""
        assert self.drafter is not None, "asked only where it drafts"
        drafts = step.scheduled.scheduled_spec_decode_tokens.values()
        drafted = sum(map(len, drafts))
        padded = any(-1 in draft for draft in drafts)  # vLLM pads the first step of some requests
        if not padded:
            self._totals["verified"] += drafted
        if padded or not all(sampled) or step.scheduled.total_num_scheduled_tokens != len(sampled) + drafted:
            return
        running = sampled_at - step.began
        # Between steps the engine schedules and hands out tokens; when it takes longer than a step, it had a pause.
        between = min(step.began - self._ended, running) if self._ended else 0.0
        self.drafter.timed(len(sampled), drafted, running + between + self._drafting)

    def _feed(self, drafter: SuffixDrafter, rollouts: list[Rollout]) -> None:
        try:
            for group, prompt, response, version in rollouts:
                self._totals["fed"] += drafter.add_history(group, _ids(prompt), _ids(response), version)
        except Exception:
            logger.exception("slipstream: rollouts of other engines did not reach the history")
            raise


class _Step(NamedTuple):
    """A step of the engine."""

    runner: Any
    scheduled: Any
    began: float


class _Request:
    """What is known of a running request besides its text."""

    __slots__ = ("length", "most", "stops")

    def __init__(self, most: int, stops: frozenset[int]) -> None:
        self.length = 0  # tokens so far
        self.most = most  # tokens it may have, prompt included
        self.stops = stops


def check_supported(vllm_config: Any) -> None:
    """Raise DrafterUnsupportedError where vLLM 0.29 itself goes wrong with drafts of a proposer of ours."""
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise DrafterUnsupportedError(
            f"slipstream drafts need pipeline_parallel_size=1, got {parallel.pipeline_parallel_size}: vLLM without "
            "async scheduling, which drafts from a proposer class switch off, gives wrong tokens or fails across "
            "stages; use tensor parallelism, or do without the drafter"
        )
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise DrafterUnsupportedError(
            "slipstream drafts need one scheduler for all workers, got distributed_executor_backend=external_launcher, "
            "where every rank schedules by itself and would have to draft alike; use mp, ray or uni"
        )


def proposer_of(worker: Any) -> SuffixProposer | None:
    """The proposer of a vLLM worker; None when the engine does not draft with slipstream."""
    proposer = getattr(getattr(worker, "model_runner", None), "drafter", None)
    return proposer if isinstance(proposer, SuffixProposer) else None


def _watch_runner() -> None:
    """Have the model runner announce its steps: vLLM does not tell a proposer which requests the rows are."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute_model = GPUModelRunner.execute_model
    if getattr(execute_model, "slipstream", False):
        return

    @functools.wraps(execute_model)
    def announced(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        proposer = getattr(self, "drafter", None)
        if isinstance(proposer, SuffixProposer):
            proposer.begin(self, scheduler_output)
        return execute_model(self, scheduler_output, *args, **kwargs)

    announced.slipstream = True  # type: ignore[attr-defined]
    GPUModelRunner.execute_model = announced  # type: ignore[method-assign]


def _until_stop(tokens: list[int], stops: frozenset[int]) -> list[int]:
    """Without what follows the token that ends the request: vLLM drops it too. Always a new list."""
    return tokens[: next(i for i, token in enumerate(tokens) if token in stops) + 1]


def _ids(tokens: Sequence[int] | bytes) -> Any:
    return np.frombuffer(tokens, np.int32) if isinstance(tokens, bytes) else tokens
