"""How much is left of a trajectory: from finished siblings, this step's lengths and the last step's."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from slipstream.core.rollout.requests import GroupId, TrajectoryId


@dataclass(frozen=True, slots=True)
class FinishedLengths:
    """The lengths of a trajectory that has ended."""

    output_tokens: int
    later_input_tokens: int
    """Tokens that tools and users added after the first turn."""

    turns: int


@dataclass(slots=True)
class ErrorStatistics:
    """How far predictions made before a trajectory's first token were off."""

    count: int = 0
    absolute: float = 0.0
    """Sum of |predicted - actual| tokens."""

    actual: float = 0.0
    log_squared: float = 0.0

    def add(self, predicted: float, actual: float) -> None:
        """Take one trajectory."""
        self.count += 1
        self.absolute += abs(predicted - actual)
        self.actual += actual
        self.log_squared += math.log(max(predicted, 1.0) / max(actual, 1.0)) ** 2

    @property
    def relative(self) -> float:
        """Mean absolute error over the mean length; NaN before anything ended."""
        return self.absolute / self.actual if self.actual else math.nan

    @property
    def log_deviation(self) -> float:
        """Root mean square of ln(predicted / actual)."""
        return math.sqrt(self.log_squared / self.count) if self.count else math.nan


class Lengths:
    """A sample of output lengths, with the mean of what is left beyond a length."""

    def __init__(self, values: Iterable[int]) -> None:
        self.values = sorted(values)
        self._sums = [0, *accumulate(self.values)]
        self.mean = self._sums[-1] / len(self.values) if self.values else math.nan

    def mean_excess(self, length: float) -> float:
        """Return the mean of L - `length` over lengths L beyond it; a tenth of `length` when there are none."""
        at = bisect.bisect_right(self.values, length)
        beyond = len(self.values) - at
        return (self._sums[-1] - self._sums[at]) / beyond - length if beyond else 0.1 * length


@dataclass(slots=True)
class _Group:
    finished: int = 0
    output: float = 0.0
    long: dict[TrajectoryId, int] = field(default_factory=dict)
    """Output tokens of live siblings that are already longer than the mean."""


@dataclass(slots=True)
class LengthModel:
    """Predicts output tokens, turns and context growth.

    The mean of all trajectories is the last step's until `settled` of this step have ended; a group's is shrunk
    towards it. Siblings that finished are the short ones; those that run on beyond the mean count with what they are
    expected to reach, or a group with a long tail would look short. An earlier epoch's mean for a prompt counts as
    `prior_weight` finished siblings.
    """

    settled: int = 8
    prior_weight: int = 4
    default_output: float = 1024.0
    """Assumed until anything has ended in this run."""

    errors: ErrorStatistics = field(default_factory=ErrorStatistics)
    mean: float = 0.0
    """Mean output tokens of a trajectory, as of now."""

    input_ratio: float = 0.0
    """Later inputs per output token."""

    mean_turns: float = 1.0
    _last: Lengths = field(default_factory=lambda: Lengths(()))
    _ended: list[FinishedLengths] = field(default_factory=list)
    _sums: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Outputs, later inputs and turns of those that ended."""

    _groups: dict[GroupId, _Group] = field(default_factory=dict)
    _known: dict[GroupId, float] = field(default_factory=dict)
    _first_guess: dict[TrajectoryId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._refresh()

    def start_step(self, history: Iterable[FinishedLengths] = (), known: Mapping[GroupId, float] | None = None) -> None:
        """Begin a step.

        :param history: lengths of the step before; empty keeps those that ended since the last call.
        :param known: mean output tokens of prompts from an earlier epoch.
        """
        remembered = list(history) or self._ended
        if remembered:
            self._last = Lengths(each.output_tokens for each in remembered)
            outputs = sum(each.output_tokens for each in remembered)
            inputs = sum(each.later_input_tokens for each in remembered)
            self._set_ratios(outputs, inputs, sum(each.turns for each in remembered), len(remembered))
        self._ended = []
        self._sums = [0, 0, 0]
        self._groups.clear()
        self._first_guess.clear()
        self._known = dict(known or {})
        self._refresh()

    def knows(self, group: GroupId) -> bool:
        """Whether an earlier epoch's lengths of the prompt were given."""
        return group in self._known

    def guess(self, trajectory: TrajectoryId, group: GroupId) -> float:
        """Return the predicted output of a trajectory that has not started, and remember it for `errors`."""
        return self._first_guess.setdefault(trajectory, self.group_output(group))

    def progress(self, trajectory: TrajectoryId, group: GroupId, produced: int) -> bool:
        """Learn how long a live trajectory is; True when that changes what its siblings are predicted to be."""
        if produced <= self.mean:
            return False
        record = self._groups.setdefault(group, _Group())
        known = record.long.get(trajectory, 0)
        if produced < 1.5 * known:
            return False
        record.long[trajectory] = produced
        return True

    def ended(self, trajectory: TrajectoryId, group: GroupId, lengths: FinishedLengths) -> None:
        """Learn from a trajectory."""
        record = self._groups.setdefault(group, _Group())
        record.long.pop(trajectory, None)
        record.finished += 1
        record.output += lengths.output_tokens
        self._ended.append(lengths)
        for index, value in enumerate((lengths.output_tokens, lengths.later_input_tokens, lengths.turns)):
            self._sums[index] += value
        guess = self._first_guess.pop(trajectory, None)
        if guess is not None:
            self.errors.add(guess, lengths.output_tokens)
        if len(self._ended) >= self.settled:
            outputs, inputs, turns = self._sums
            self._set_ratios(outputs, inputs, turns, len(self._ended))
        self._refresh()

    def group_output(self, group: GroupId) -> float:
        """Return the predicted output tokens of a sample: (sum of finished siblings + mean) / (finished + 1)."""
        finished, output = self._siblings(group)
        return (output + self.mean) / (finished + 1)

    def remaining(self, produced: float, group: GroupId) -> float:
        """Return the predicted output tokens that a live trajectory still has to produce, at least 8.

        s M(produced / s): M is the mean excess of the last step's lengths, s the group's length relative to the mean.
        """
        finished, output = self._siblings(group)
        scale = (output + 2 * self.mean) / (finished + 2) / self.mean
        scale = min(max(scale, 0.25), 4.0)
        return max(8.0, scale * self._excess(produced / scale))

    def _excess(self, length: float) -> float:
        """What a trajectory of average scale that has `length` tokens still has to come."""
        return self._last.mean_excess(length) if self._last.values else max(self.mean - length, 0.1 * length)

    def growth(self, produced: float, group: GroupId) -> float:
        """Return by how many tokens a live trajectory's context is expected to grow."""
        return self.remaining(produced, group) * (1.0 + self.input_ratio)

    def remaining_turns(self, produced: float, group: GroupId) -> float:
        """Return the predicted further turns of a live trajectory."""
        return self.remaining(produced, group) / self.mean * self.mean_turns

    @property
    def single_turn(self) -> bool:
        """Whether trajectories have had one turn so far."""
        return self.mean_turns <= 1.0

    def _siblings(self, group: GroupId) -> tuple[float, float]:
        record = self._groups.get(group)
        finished, output = (record.finished, record.output) if record is not None else (0, 0.0)
        if record is not None and record.long:
            finished += len(record.long)
            output += sum(each + self._excess(each) for each in record.long.values())
        if group in self._known:
            finished += self.prior_weight
            output += self.prior_weight * self._known[group]
        return finished, output

    def _refresh(self) -> None:
        if len(self._ended) >= self.settled:
            self.mean = self._sums[0] / len(self._ended)
        elif self._last.values:
            self.mean = self._last.mean
        elif self._ended:
            self.mean = self._sums[0] / len(self._ended)
        else:
            self.mean = self.default_output
        self.mean = max(self.mean, 1.0)

    def _set_ratios(self, outputs: int, inputs: int, turns: int, count: int) -> None:
        self.input_ratio = inputs / max(outputs, 1)
        self.mean_turns = turns / count
