"""What the two ends of one link may say next: the state machine of a sync, as a table that both ends run on.

Each (trainer rank, engine worker) pair is one conversation. Every message has a fixed direction, so one table serves
both ends; each end takes a step for what it sends and for what it receives. `docs/sync-protocol.md` draws it, and says
what each end holds in each state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

from slipstream.core.weights.errors import SyncError
from slipstream.core.weights.messages import (
    Abort,
    Applied,
    Audited,
    Begin,
    Commit,
    Done,
    Failed,
    Hello,
    Layout,
    Message,
    Table,
    Units,
)


class Frame:
    """A step: one frame of an update or an audit. Frames carry their own identity and checksum."""


Step: TypeAlias = type[Message] | type[Frame]


class State(enum.Enum):
    """Where a conversation is. Up to `APPLIED` both ends can go back; `DECIDED` is final."""

    NEW = "nothing was said"
    GREETED = "the worker said what it holds"
    ASKED = "the publisher does not know the worker's layout"
    ANSWERED = "the worker said its layout"
    TOLD = "the worker knows its units"
    UPDATING = "frames are on their way"
    APPLIED = "the worker has written the update and can undo it"
    DECIDED = "the publisher said that the update is final"
    HELD = "the worker holds the version for good"
    AUDITING = "the whole checkpoint is on its way"
    ENDED = "one end gave up"


STEPS: Mapping[State, Mapping[Step, State]] = {
    State.NEW: {Hello: State.GREETED},
    State.GREETED: {Table: State.ASKED, Begin: State.UPDATING},
    State.ASKED: {Layout: State.ANSWERED},
    State.ANSWERED: {Units: State.TOLD},
    State.TOLD: {Begin: State.UPDATING},
    State.UPDATING: {Frame: State.UPDATING, Applied: State.APPLIED},
    State.APPLIED: {Commit: State.DECIDED},
    State.DECIDED: {Done: State.HELD},
    State.HELD: {Units: State.AUDITING},
    State.AUDITING: {Frame: State.AUDITING, Audited: State.HELD},
    State.ENDED: {},
}
"""Beside these, `Abort` (publisher) and `Failed` (worker) lead from every state to `ENDED`."""


class Conversation:
    """One end's view of one conversation."""

    def __init__(self, exchange: int) -> None:
        """Start one. `exchange` is a random number that every message of it carries: what was left in a channel by an
        earlier sync, or is from another worker process, is not part of it."""
        self.exchange = exchange
        self.state = State.NEW

    def step(self, step: Step) -> None:
        """Say or hear something.

        Raises:
            SyncError: it is not the turn of that message.
        """
        if step in (Abort, Failed):
            self.state = State.ENDED
            return
        following = STEPS[self.state].get(step)
        if following is None:
            allowed = " or ".join(kind.__name__ for kind in STEPS[self.state]) or "nothing"
            raise SyncError(f"expected {allowed}, got {step.__name__} ({self.state.value})")
        self.state = following
