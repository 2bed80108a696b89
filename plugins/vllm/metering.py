"""What a vLLM engine says to a router: its capacity, what its steps cost, how far its requests are.

Read where the engine's outputs arrive in the frontend process, so that it works without vLLM's statistics, which verl
switches off by default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from slipstream.core.rollout.requests import LoadReport, ReplicaLimits


class EngineMeter:
    """Watches one `AsyncLLM`.

    A step is timed from the one before; the first after a pause is not counted. Steps of a chunked prefill that nothing
    comes out of count with the next one.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._states: dict[str, Any] = engine.output_processor.request_states
        self._load = LoadReport()
        self._last: float | None = None
        """Time of the last step; None when the engine has been idle since."""

        self._counts = self._active = False
        self._process = engine.output_processor.process_outputs
        engine.output_processor.process_outputs = self._observe

    @property
    def limits(self) -> ReplicaLimits:
        """KV tokens and running requests at most."""
        config = self._engine.vllm_config
        cache = config.cache_config
        tokens = getattr(cache, "kv_cache_size_tokens", None) or cache.num_gpu_blocks * cache.block_size
        return ReplicaLimits(int(tokens), int(config.scheduler_config.max_num_seqs))

    def take_load(self) -> LoadReport:
        """Return what happened since the last call."""
        load, self._load = self._load, LoadReport()
        return load

    def take_activity(self) -> bool:
        """Return whether anything came out since the last call."""
        active, self._active = self._active, False
        return active

    def progress(self) -> dict[str, int]:
        """Return the output tokens of each request so far, by the id that its client gave it."""
        return {
            state.external_req_id: state.detokenizer.num_output_tokens()
            for state in self._states.values()
            if state.detokenizer is not None
        }

    def pause(self) -> None:
        """Say that the engine stands still on purpose: the time until its next step does not count."""
        self._last = None

    def _observe(self, outputs: Sequence[Any], timestamp: float | None = None, *args: Any, **kwargs: Any) -> Any:
        self._active = True
        if outputs and timestamp is not None:
            self._step(outputs, timestamp)
        result = self._process(outputs, timestamp, *args, **kwargs)
        if not self._states:
            self._last = None
        return result

    def _step(self, outputs: Sequence[Any], timestamp: float) -> None:
        load = self._load
        steps, seconds = load.steps, load.seconds
        if timestamp != self._last:  # vLLM hands over a large step in several parts
            self._counts = self._last is not None
            if self._last is not None:
                steps, seconds = steps + 1, seconds + timestamp - self._last
            self._last = timestamp
        if not self._counts:
            return
        decoding = context = prefilled = 0
        quadratic = 0.0
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None or state.detokenizer is None:
                continue
            if state.is_prefilling:
                total = state.prompt_len
                cached = output.prefill_stats.num_cached_tokens if output.prefill_stats is not None else 0
                prefilled += total - cached
                quadratic += float(total * total - cached * cached)
            else:
                decoding += 1
                context += state.prompt_len + state.detokenizer.num_output_tokens()
        self._load = dataclasses.replace(
            load,
            steps=steps,
            seconds=seconds,
            decode_tokens=load.decode_tokens + decoding,
            context_tokens=load.context_tokens + context,
            prefill_tokens=load.prefill_tokens + prefilled,
            prefill_quadratic=load.prefill_quadratic + quadratic,
        )
