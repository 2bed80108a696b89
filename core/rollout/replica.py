"""What the router knows of one replica: its live trajectories and what they hold and will hold of its KV memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from slipstream.core.rollout.requests import GroupId, LoadReport, ReplicaId, ReplicaLimits, Segment, TrajectoryId, Turn


@dataclass(slots=True, eq=False)
class Live:
    """A trajectory that has been bound to a replica and has not ended."""

    trajectory: TrajectoryId
    group: GroupId
    shared: tuple[Segment, ...]
    bound: int
    """Number of its first binding; earlier ones come first when memory is short."""

    own: int = 0
    """Tokens of its own that its replica holds, as of its last turn."""

    produced: int = 0
    """Output tokens of the turns that are over."""

    turns: int = 0
    later_inputs: int = 0
    newest_input: int = 0
    """Tokens that the turn under way added to its own."""

    footprint: float = 0.0
    """Own tokens, plus the reserved part of what is expected to come."""

    remaining: float = 0.0
    """Output tokens expected to come."""

    turn: Turn | None = None
    """The request in flight or waiting; None in a tool."""

    decoded: int = 0
    """Output tokens of the current attempt."""

    stitched: int = 0
    """Output tokens of the current turn from attempts that were aborted."""

    dispatched: bool = False
    resident: bool = False
    """Whether the replica should still have its context in the cache."""

    cold: bool = False
    """Whether it was moved, or weights changed, since its last answer: what a cache finds then says nothing about its
    capacity."""

    target: ReplicaId | None = None
    """Where it goes once its abort is answered."""

    moves: int = 0
    moves_this_turn: int = 0
    moved_at: float = float("-inf")
    last_seen: float = 0.0

    @property
    def shared_tokens(self) -> int:
        """Tokens in front of its own."""
        return sum(segment.tokens for segment in self.shared)

    @property
    def context(self) -> int:
        """Tokens of context now."""
        return self.shared_tokens + self.own + self.decoded


@dataclass(slots=True)
class _SharedUse:
    tokens: int
    users: int = 0


@dataclass(slots=True)
class KvCapacity:
    """KV tokens of a replica: nominal, as the engine counts them, and as its behaviour shows.

    A preemption, or a returning turn that finds less at home than it left, means that less fits than was thought;
    then the estimate shrinks by `shrink`, not below half of what the engine says, and recovers slowly.
    """

    reported: int
    effective: float = 0.0
    shrink: float = 0.97
    recovery: float = 1.002

    def __post_init__(self) -> None:
        self.effective = float(self.reported)

    def report(self, tokens: int) -> None:
        """Take the engine's own count."""
        if tokens > 0 and tokens != self.reported:
            self.effective *= tokens / self.reported
            self.reported = tokens

    def overflowed(self) -> None:
        """Something had to be given up."""
        self.effective = max(self.effective * self.shrink, self.reported / 2)

    def returned(self, left: int, found: int) -> None:
        """A turn came home to `found` of the `left` tokens that it had left in the cache."""
        if found < 0.9 * left:
            self.overflowed()
        else:
            self.effective = min(self.effective * self.recovery, float(self.reported))


@dataclass(slots=True, eq=False)
class ReplicaState:
    """One replica. Sums are kept up to date so that admission is a comparison."""

    name: ReplicaId
    kv: KvCapacity
    max_running: int
    live: dict[TrajectoryId, Live] = field(default_factory=dict)
    footprints: float = 0.0
    own: int = 0
    shared: int = 0
    """Tokens of shared segments in use, each counted once."""

    remaining: float = 0.0
    in_flight: int = 0
    heard: float = 0.0
    finish: float = 0.0
    """Finish estimate of the last look."""

    stalled: bool = False
    """Nothing new goes there."""

    groups: dict[GroupId, int] = field(default_factory=dict)
    _uses: dict[Hashable, _SharedUse] = field(default_factory=dict)

    @classmethod
    def of(cls, name: ReplicaId, limits: ReplicaLimits) -> ReplicaState:
        """Return the state of an empty replica."""
        return cls(name, KvCapacity(limits.kv_tokens), limits.max_running)

    def report(self, load: LoadReport) -> None:
        """Take the capacities an engine reports."""
        if load.kv_tokens is not None:
            self.kv.report(load.kv_tokens)
        if load.max_running is not None and load.max_running > 0:
            self.max_running = load.max_running
        if load.preemptions:
            self.kv.overflowed()

    def new_shared(self, segments: Iterable[Segment]) -> int:
        """Return the tokens that these segments would add to those in use."""
        return sum(tokens for key, tokens in segments if key not in self._uses)

    def has_room(self, footprint: float, segments: Iterable[Segment], share: float, live_cap: float) -> bool:
        """Whether a trajectory may be bound here; an empty replica takes anything."""
        if self.stalled:
            return False
        if not self.live:
            return True
        room = share * self.kv.effective - self.footprints - self.shared - footprint
        if room < 0 or len(self.live) >= live_cap * self.max_running:
            return False
        return room >= self.new_shared(segments)

    def bind(self, live: Live) -> None:
        """Count a trajectory in."""
        self.live[live.trajectory] = live
        self.groups[live.group] = self.groups.get(live.group, 0) + 1
        for key, tokens in live.shared:
            use = self._uses.get(key)
            if use is None:
                use = self._uses[key] = _SharedUse(tokens)
                self.shared += tokens
            use.users += 1
        self._add(live, 1)

    def release(self, live: Live) -> None:
        """Count a trajectory out."""
        del self.live[live.trajectory]
        self.groups[live.group] -= 1
        if not self.groups[live.group]:
            del self.groups[live.group]
        for key, _ in live.shared:
            use = self._uses[key]
            use.users -= 1
            if not use.users:
                self.shared -= use.tokens
                del self._uses[key]
        self._add(live, -1)

    def update(self, live: Live, own: int, footprint: float, remaining: float) -> None:
        """Refresh what a trajectory holds and will hold."""
        self._add(live, -1)
        live.own, live.footprint, live.remaining = own, footprint, remaining
        self._add(live, 1)

    def crowds_out(self, live: Live, share: float) -> bool:
        """Whether a returning trajectory does not fit beside those bound earlier; the oldest always does."""
        limit = share * self.kv.effective
        if self.own + self.shared <= limit:
            return False
        elders = sum(each.own for each in self.live.values() if each.bound < live.bound)
        return bool(elders) and elders + live.own + self.shared > limit

    def _add(self, live: Live, sign: int) -> None:
        self.own += sign * live.own
        self.footprints += sign * live.footprint
        self.remaining += sign * live.remaining
