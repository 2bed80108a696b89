"""A simulated engine replica: continuous batching, chunked prefill, prefix cache, eviction and preemption."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.core.rollout.costs import StepCosts
from slipstream.core.rollout.requests import LoadReport, ReplicaId, ReplicaLimits, Segment, Turn
from slipstream.core.rollout.simulation.kv_cache import KvCache, Node

WATERMARK = 0.01
"""Share of the KV memory that admission leaves free, as vLLM does."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What the replicas of a cluster are."""

    limits: ReplicaLimits = field(default_factory=lambda: ReplicaLimits(400_000, 64))
    costs: StepCosts = field(default_factory=StepCosts)
    chunk_tokens: int = 8192
    """Token budget of an iteration: decoding requests first, prefill takes the rest."""

    block_tokens: int = 16


@dataclass(slots=True, eq=False)
class Running:
    """A request inside the engine."""

    turn: Turn
    attempt: int
    remaining: int
    """Output tokens still to come."""

    priority: int
    arrival: float
    order: int = 0
    prompt: tuple[Segment, ...] = ()
    """The turn's prompt, longer by what was produced before a preemption."""

    path: list[Node] = field(default_factory=list)
    uncached: int = 0
    """Prompt tokens still to prefill; 0 once decoding."""

    context: int = 0
    """Prompt tokens."""

    appended: int = 0
    """Tokens produced since admission, as of `since`."""

    since: int = 0
    """Decode step at which it started to decode."""

    produced_before: int = 0
    """Tokens produced before the last preemption."""

    decoding: bool = False
    admitted: int = 0
    cached: int | None = None
    """Prompt tokens found in the cache at its first admission."""


@dataclass(slots=True)
class Counters:
    """Work that a replica did."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    decoded_tokens: int = 0
    preemptions: int = 0
    busy_seconds: float = 0.0
    steps: int = 0


class Replica:
    """One replica. `advance_to` its `next_event`, in time order over the cluster; callbacks tell what happened.

    Iterations are exact; a run of iterations that only decode is jumped in closed form and cut short when an arrival
    could join. Prefill is first come, first served; decoding goes on in the same iteration. Admission takes the head
    of the queue only. When memory runs out the request admitted last is preempted and recomputed.
    """

    def __init__(
        self,
        name: ReplicaId,
        model: EngineModel,
        on_finished: Callable[[Replica, Running, float], None],
        on_prefilled: Callable[[Replica, Running, float], None],
    ) -> None:
        self.name = name
        self.model = model
        self.cache = KvCache(model.limits.kv_tokens, model.block_tokens)
        self.counters = Counters()
        self.next_event = math.inf
        self.requests: dict[tuple[object, int], Running] = {}
        """Everything inside, by request id and attempt."""
        self._on_finished, self._on_prefilled = on_finished, on_prefilled
        self._waiting: list[tuple[int, int, Running]] = []
        self._preempted: deque[Running] = deque()
        self._prefilling: list[Running] = []
        self._decoders: list[tuple[int, int, Running]] = []
        self._running: dict[int, Running] = {}
        """By admission number, oldest first."""
        self._step = 0
        self._context = 0
        self._arrivals = self._admissions = 0
        self._asleep = False
        self._run_start = 0.0
        self._run_steps = 0
        """Pure decode iterations under way; 0 for an iteration with prefill."""
        self._chunks: list[tuple[Running, int]] = []
        self._chunk_quadratic = 0.0
        self._aborted: set[int] = set()
        self._load = [0, 0.0, 0, 0, 0, 0.0, 0]

    # -- what the cluster calls ---------------------------------------------------------------------------------------

    def enqueue(self, request: Running, now: float) -> None:
        """Take a request."""
        self._arrivals += 1
        request.order = self._arrivals
        request.prompt = request.turn.prompt if not request.prompt else request.prompt
        jump = self._run_steps and len(self._running) < self.model.limits.max_running
        cut = jump and not self._preempted and (not self._waiting or request.priority < self._waiting[0][0])
        heapq.heappush(self._waiting, (request.priority, request.order, request))
        self.requests[request.turn.request_id, request.attempt] = request
        if self.next_event == math.inf:
            self.next_event, self._asleep = now, True  # begins once everything that arrives now is here
        elif cut:
            self._cut(now)

    def abort(self, request: Running, now: float) -> None:
        """Stop a request: at once when it waits, after the running iteration otherwise; answers through `on_finished`
        with `remaining` above 0."""
        for queue in (self._waiting, [(0, 0, each) for each in self._preempted]):
            if any(entry[2] is request for entry in queue):
                self._waiting = [entry for entry in self._waiting if entry[2] is not request]
                heapq.heapify(self._waiting)
                self._preempted = deque(each for each in self._preempted if each is not request)
                del self.requests[request.turn.request_id, request.attempt]
                self._on_finished(self, request, now)
                return
        self._aborted.add(request.admitted)
        if self._run_steps:
            self._cut(now)

    def advance_to(self, now: float) -> None:
        """End the iteration or run that ends now, and begin the next."""
        if self._asleep:
            self._asleep = False
            self._begin(now)
            return
        steps = self._run_steps or 1
        decoding = len(self._decoders)
        self._load[0] += steps
        self._load[1] += now - self._run_start
        self._load[2] += steps * decoding
        self._load[3] += steps * self._context + decoding * steps * (steps - 1) // 2
        self.counters.busy_seconds += now - self._run_start
        self.counters.steps += steps
        self.counters.decoded_tokens += steps * decoding
        self._step += steps
        self._context += steps * decoding
        self.cache.grow(steps * decoding)
        done = []
        while self._decoders and self._decoders[0][0] <= self._step:
            done.append(heapq.heappop(self._decoders)[2])
        for request in done:
            self._leave(request, now)
        self._load[4] += sum(taken for _, taken in self._chunks)
        self._load[5] += self._chunk_quadratic
        self._chunk_quadratic = 0.0
        for request, taken in self._chunks:
            self._prefilled(request, taken, now, done)
        self._chunks = []
        for number in self._aborted & self._running.keys():
            request = self._running[number]
            self._stop(request, now)
            done.append(request)
        self._aborted.clear()
        for request in done:
            del self.requests[request.turn.request_id, request.attempt]
            self._on_finished(self, request, now)
        self._begin(now)

    def produced(self, request: Running, now: float) -> int:
        """Return the output tokens of an attempt at a time inside the current run."""
        if not request.decoding:
            return request.produced_before
        return request.produced_before + request.appended + self._step + self._steps_at(now) - request.since

    @property
    def waiting(self) -> int:
        """Requests that are queued."""
        return len(self._waiting) + len(self._preempted)

    @property
    def running(self) -> int:
        """Requests that are admitted."""
        return len(self._running)

    def take_report(self) -> LoadReport:
        """Return what happened since the last report."""
        steps, seconds, decoded, context, prefill, quadratic, preemptions = self._load
        self._load = [0, 0.0, 0, 0, 0, 0.0, 0]
        limits = self.model.limits
        return LoadReport(
            int(steps),
            seconds,
            int(decoded),
            int(context),
            int(prefill),
            quadratic,
            limits.kv_tokens,
            limits.max_running,
            int(preemptions),
        )

    def recount(self) -> None:
        """Recompute the bookkeeping from the requests and the tree.

        :raises AssertionError: where it differs.
        """
        decoding = [request for request in self._running.values() if request.decoding]
        produced = {each.admitted: each.appended + self._step - each.since for each in decoding}
        assert len(decoding) == len(self._decoders)
        assert self._context == sum(each.context + produced[each.admitted] for each in decoding)
        locked, idle = self.cache.recount()
        assert self.cache.locked == locked + sum(produced.values()), (self.cache.locked, locked, produced)
        assert self.cache.idle == idle, (self.cache.idle, idle)
        assert len(self._running) <= self.model.limits.max_running
        assert self.cache.locked + idle <= self.cache.capacity or len(self._running) == 1

    # -- one iteration ------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        costs, model = self.model.costs, self.model
        while len(self._decoders) > self.cache.available and len(self._running) > 1:
            self._preempt(now)
        budget = model.chunk_tokens - len(self._decoders)
        extra = 0.0
        for request in self._prefilling:
            if budget <= 0:
                break
            taken, seconds = self._chunk(request, budget)
            budget -= taken
            extra += seconds
        while budget > 0 and len(self._running) < model.limits.max_running and (self._preempted or self._waiting):
            request = self._preempted[0] if self._preempted else self._waiting[0][2]
            if not self._fits(request):
                break
            if self._preempted:
                self._preempted.popleft()
            else:
                heapq.heappop(self._waiting)
            self._admit(request, now)
            taken, seconds = self._chunk(request, budget)
            budget -= taken
            extra += seconds
        decoding = len(self._decoders)
        self._run_start = now
        self._run_steps = 0
        if self._chunks:
            self.next_event = now + costs.step + costs.request * decoding + costs.context * self._context + extra
        elif decoding:
            steps = self._decoders[0][0] - self._step
            steps = max(1, min(steps, self.cache.available // decoding))
            self._run_steps = steps
            self.next_event = now + self._run_seconds(steps)
        else:
            self.next_event = math.inf

    def _run_seconds(self, steps: int) -> float:
        costs, decoding = self.model.costs, len(self._decoders)
        each = costs.step + costs.request * decoding + costs.context * self._context
        return steps * each + costs.context * decoding * steps * (steps - 1) / 2

    def _steps_at(self, now: float) -> int:
        """Whole decode iterations of the current run that are over."""
        if not self._run_steps:
            return 0
        costs, decoding = self.model.costs, len(self._decoders)
        slope = costs.context * decoding / 2
        each = costs.step + costs.request * decoding + costs.context * self._context - slope
        passed = max(now - self._run_start, 0.0)
        steps = 2 * passed / (each + math.sqrt(each * each + 4 * slope * passed))
        return min(int(steps + 1e-9), self._run_steps)

    def _cut(self, now: float) -> None:
        """End the current run at the next iteration boundary."""
        steps = min(self._steps_at(now) + 1, self._run_steps)
        self._run_steps = steps
        self.next_event = self._run_start + self._run_seconds(steps)

    def _fits(self, request: Running) -> bool:
        if not self._running:
            return True
        reserve = WATERMARK * self.model.limits.kv_tokens
        return self.cache.missing_tokens(request.prompt) + reserve <= self.cache.available - len(self._decoders)

    def _admit(self, request: Running, now: float) -> None:
        cached = self.cache.cached_tokens(request.prompt)
        request.context = sum(tokens for _, tokens in request.prompt)
        request.uncached = request.context - cached
        if request.cached is None:
            request.cached = cached
        request.path = self.cache.lock(request.prompt, now)
        self._admissions += 1
        request.admitted = self._admissions
        self._running[request.admitted] = request
        self._prefilling.append(request)
        self.counters.prompt_tokens += request.context
        self.counters.cached_tokens += cached

    def _chunk(self, request: Running, budget: int) -> tuple[int, float]:
        taken = min(request.uncached, budget)
        end = request.context - request.uncached + taken
        costs = self.model.costs
        quadratic = float(end * end - (end - taken) * (end - taken))
        self._chunks.append((request, taken))
        self._chunk_quadratic += quadratic
        self.counters.prefill_tokens += taken
        return taken, costs.prefill * taken + costs.prefill_quadratic * quadratic

    def _prefilled(self, request: Running, taken: int, now: float, done: list[Running]) -> None:
        request.uncached -= taken
        if request.uncached:
            return
        self._prefilling.remove(request)
        self.cache.grow(1)
        self.counters.decoded_tokens += 1
        request.appended = 1
        request.remaining -= 1
        request.decoding = True
        request.since = self._step
        self._context += request.context + 1
        self._on_prefilled(self, request, now)
        if request.remaining:
            heapq.heappush(self._decoders, (self._step + request.remaining, request.admitted, request))
        else:
            self._leave(request, now)
            done.append(request)

    def _leave(self, request: Running, now: float) -> None:
        """Release a request that is no longer among the decoders."""
        steps = self._step - request.since
        request.appended += steps
        request.remaining -= steps
        request.decoding = False
        self._context -= request.context + request.appended
        self.cache.unlock(request.path, request.appended, now)
        del self._running[request.admitted]
        request.produced_before += request.appended
        *shared, (key, tokens) = request.prompt
        request.prompt = (*shared, Segment(key, tokens + request.appended))
        request.appended = 0

    def _stop(self, request: Running, now: float) -> None:
        if request.decoding:
            self._decoders = [entry for entry in self._decoders if entry[2] is not request]
            heapq.heapify(self._decoders)
            self._leave(request, now)
        else:
            self._prefilling.remove(request)
            self.cache.forget_tail(request.path, request.uncached)
            self.cache.unlock(request.path, 0, now)
            del self._running[request.admitted]

    def _preempt(self, now: float) -> None:
        victim = self._running[next(reversed(self._running))]
        self._stop(victim, now)
        self._preempted.appendleft(victim)
        self.counters.preemptions += 1
        self._load[6] += 1
