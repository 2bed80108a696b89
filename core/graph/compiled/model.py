"""What the compiled core works on: constants, the world that does not change, and the state that does.

Sizes in shapes: P pipelines, S steps, W workers, L layouts, G groups of a step, C curves, M pieces of a curve, A places
for requests. Times are seconds.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.triton_kernels.jit import jit

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

DECODE_EDGES: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
"""Decode is cut where the load u = c*b / (t0 + c*b) of b active requests crosses one of these."""

LIGHT: Final = 3
"""Decode classes below this one leave most of a worker's compute unused (u < 0.2)."""

HALF: Final = 4
"""The class of u = 0.5 seen from below: what a rollout that starts is taken for."""

GANG: Final = len(DECODE_EDGES) + 1
"""Kind of the first gang stage; log-prob, train and sync follow one another."""

KINDS: Final = GANG + 3
"""Kinds of load: the decode classes, log-prob, train, sync."""

LOGPROB, TRAIN, SYNC = 0, 1, 2
PIECES: Final = GANG + 1
"""Most pieces of one curve."""

MOST_MERGES: Final = 2
"""Merges of one rollout."""

MOST_CROWDED: Final = 4
"""A merged worker has at most so many times the requests it would have been dealt."""


class Kind(enum.IntEnum):
    """Elementary actions, as the compiled core writes them: (kind, pipeline, argument)."""

    START_GANG = 0
    """Run the next gang stage beside what is running."""
    START_GANG_ALONE = 1
    """Pause every rollout, then run the next gang stage."""
    START = 2
    """Start or resume a rollout on every worker that can take it."""
    START_ON_EMPTY = 3
    """Start or resume a rollout on workers where nothing runs."""
    START_ON_SUBSET = 4
    """Deal a fresh rollout to as many workers as layout `argument` has, empty ones first."""
    REDISTRIBUTE = 5
    """Move the unfinished requests of a rollout onto `argument` workers: a merge, or an expansion."""
    RUN_ALONE = 6
    """Pause the rollouts of all other pipelines and run this one's on every worker."""


Actions: TypeAlias = Ints
"""int64[n, 3]: kind, pipeline, argument."""


def int64(value: int) -> int:
    """Return a constant for compiled functions: numba compiles a callee anew for every plain number it is called
    with."""
    return cast(int, np.int64(value))


ZERO: Final = int64(0)


class Flag(enum.IntEnum):
    """Places in `World.allowed`."""

    PAUSE = 0
    SUBSET = 1
    MERGE = 2
    OVERLAP = 3
    CORUN = 4


class Curves(NamedTuple):
    """Active requests over time, for rollouts on one worker each. A curve never changes once it is built; the last ones
    can be dropped by setting `used` back."""

    end: Floats
    """float64[C, M]: stand-alone seconds from the start of the curve to the end of each piece."""
    load: Ints
    """int64[C, M]: decode class of each piece."""
    pieces: Ints
    """int64[C]"""
    first: Ints
    """int64[C]: where its requests begin."""
    size: Ints
    """int64[C]: how many it has."""
    remaining: Floats
    """float64[A]: tokens to generate from the start of the curve, ascending within a curve."""
    done_at: Floats
    """float64[A]: stand-alone seconds at which the request ends."""
    expected: Floats
    """float64[A]: `remaining` as the planner believes it."""
    already: Floats
    """float64[A]: tokens generated before the curve."""
    request: Ints
    """int64[A]: index within the step."""
    used: Ints
    """int64[2]: curves and places in use."""


class World(NamedTuple):
    """What does not change during a run."""

    iteration: Floats
    """float64[P]: seconds of a decode iteration, without what each request adds."""
    per_request: Floats
    """float64[P]: seconds that one active request adds to an iteration."""
    prefill: Floats
    """float64[P]: seconds to prefill one token."""
    prompt: Floats
    """float64[P]: tokens of a prompt."""
    crowd: Floats
    """float64[P]: most requests on a worker after a merge."""
    steps: Ints
    """int64[P]"""
    staleness: Ints
    """int64[P]: how many steps a rollout may be ahead of the weights it samples from."""
    stages: Floats
    """float64[P, S, 3]: seconds of log-prob, train and sync on all workers."""
    floors: Floats
    """float64[P, 2]: share of a worker's memory that decode and the gang stages need at least."""
    rest: Floats
    """float64[P, S + 1]: seconds from the start of a step to the pipeline's end when it has everything alone."""
    cap: Floats
    """float64[P]: seconds by which the pipeline should be done; infinite without a latency cap."""
    layouts: Ints
    """int64[L]: how many workers each layout deals to; the first one all."""
    preferred: Ints
    """int64[P]: the layout that the greedy rule deals fresh rollouts to."""
    dealt: Ints
    """int64[P, S, L]: the curve of the layout's first worker, or -1."""
    group_end: Floats
    """float64[P, S, G]: tokens of the longest member of each prompt group, ascending; padded with infinity."""
    group_share: Floats
    """float64[P, S, G]: share of the step's tokens in groups up to this one."""
    rates: Floats
    """float64[KINDS, KINDS]: progress a second of the first kind beside the second; alone it is 1."""
    allowed: Ints
    """int64[5]: by `Flag`."""
    quantum: float
    """Events happen at multiples of this; 0 for continuous time. With it, every end of a piece is a decision."""


class State(NamedTuple):
    """Where every pipeline is."""

    clock: Floats
    """float64[1]"""
    rolled: Ints
    """int64[P]: finished rollouts."""
    rolling: Ints
    """int64[P]: 1 while rollout `rolled` is in progress."""
    trained: Ints
    """int64[P]: steps whose sync is done."""
    phase: Ints
    """int64[P]: the gang stage that is next or running."""
    gang_on: Ints
    """int64[P]"""
    gang_left: Floats
    """float64[P]: seconds left of that stage, running alone."""
    credit: Floats
    """float64[P]: log-prob seconds done ahead for the rollout in progress."""
    carried: Floats
    """float64[P]: the same for the last finished rollout, until its gang begins."""
    merges: Ints
    """int64[P]"""
    chains: Ints
    """int64[P]: workers the rollout was dealt to."""
    mark: Ints
    """int64[P]: bits, which stages of a rollout's tail have been a decision."""
    finished: Floats
    """float64[P]: when the pipeline ended; -1 before."""
    curve: Ints
    """int64[P, W]: what is left of the rollout on each worker; -1 for nothing."""
    elapsed: Floats
    """float64[P, W]: stand-alone seconds done of the curve."""
    piece: Ints
    """int64[P, W]"""
    debt: Floats
    """float64[P, W]: seconds of prefill before the curve goes on."""
    on: Ints
    """int64[P, W]: 1 where it is running."""


def new_state(pipelines: int, workers: int) -> State:
    """Return the state before anything has started."""

    def ints(*shape: int, value: int = 0) -> Ints:
        return np.full(shape, value, np.int64)

    def floats(*shape: int, value: float = 0.0) -> Floats:
        return np.full(shape, value, np.float64)

    p, w = pipelines, workers
    return State(
        clock=floats(1),
        rolled=ints(p),
        rolling=ints(p),
        trained=ints(p),
        phase=ints(p),
        gang_on=ints(p),
        gang_left=floats(p),
        credit=floats(p),
        carried=floats(p),
        merges=ints(p),
        chains=ints(p),
        mark=ints(p),
        finished=floats(p, value=-1.0),
        curve=ints(p, w, value=-1),
        elapsed=floats(p, w),
        piece=ints(p, w),
        debt=floats(p, w),
        on=ints(p, w),
    )


def new_curves(curves: int, places: int) -> Curves:
    """Return an empty arena."""
    return Curves(
        end=np.zeros((curves, PIECES)),
        load=np.zeros((curves, PIECES), np.int64),
        pieces=np.zeros(curves, np.int64),
        first=np.zeros(curves, np.int64),
        size=np.zeros(curves, np.int64),
        remaining=np.zeros(places),
        done_at=np.zeros(places),
        expected=np.zeros(places),
        already=np.zeros(places),
        request=np.zeros(places, np.int64),
        used=np.zeros(2, np.int64),
    )


@jit
def copy_state(target: State, source: State) -> None:
    """Overwrite `target`, array by array."""
    target.clock[:] = source.clock
    target.rolled[:] = source.rolled
    target.rolling[:] = source.rolling
    target.trained[:] = source.trained
    target.phase[:] = source.phase
    target.gang_on[:] = source.gang_on
    target.gang_left[:] = source.gang_left
    target.credit[:] = source.credit
    target.carried[:] = source.carried
    target.merges[:] = source.merges
    target.chains[:] = source.chains
    target.mark[:] = source.mark
    target.finished[:] = source.finished
    target.curve[:] = source.curve
    target.elapsed[:] = source.elapsed
    target.piece[:] = source.piece
    target.debt[:] = source.debt
    target.on[:] = source.on


def clone_state(state: State) -> State:
    """Return a copy."""
    copy = new_state(*state.curve.shape)
    copy_state(copy, state)
    return copy


def as_actions(rows: Any) -> Actions:
    """Return rows of (kind, pipeline, argument) as the compiled core takes them."""
    return np.asarray(rows, np.int64).reshape(-1, 3)
