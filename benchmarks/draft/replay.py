"""Replays recorded rollouts through a drafter: greedy verification, the recorded output is the target.

Each assistant turn is one request whose prompt is the whole conversation before it; its first token comes from prefill.
A step emits the accepted part of the draft and one token more. Modes differ in what a request can copy from besides
itself:

    prompt    nothing
    seq       earlier attempts at the task, finished
    conc      siblings, one after another within a round: each sees the tokens that others got in the same round
    sync      siblings as a real batch: all draft, then all verify
    pilot     the first attempt alone, then the others as a real batch
    epoch     everything finished earlier, attempt by attempt over all tasks
    previous  half of the attempts at the task, by the policy before; nothing of the present one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from drafters import Ints, Player
from rollouts import Conversation, RolloutSet

MODES: Final = ("prompt", "seq", "conc", "sync", "pilot", "epoch", "previous")


@dataclass
class Tally:
    """What a replay found."""

    steps: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> float:
        """Tokens per verification step."""
        return self.emitted / max(1, self.steps)

    @property
    def drafts(self) -> float:
        """Drafted tokens per verification step."""
        return self.drafted / max(1, self.steps)

    def speed(self, cost: float) -> float:
        """Tokens per time of a step without drafts, when each drafted token costs `cost` of it."""
        return self.tokens / (1 + cost * self.drafts)


@dataclass
class Request:
    """A request that is being replayed."""

    name: tuple[object, ...]
    response: Ints
    at: int = 1

    def verify(self, draft: Sequence[int], tally: Tally) -> Ints:
        """Emit what agrees and one token more, and count the step."""
        rest = self.response[self.at :]
        drafted = np.asarray(draft, np.int32)
        compared = min(drafted.size, rest.size)
        wrong = np.flatnonzero(drafted[:compared] != rest[:compared])
        agreed = int(wrong[0]) if wrong.size else compared
        emitted = rest[: agreed + 1]
        self.at += emitted.size
        tally.steps += 1
        tally.emitted += emitted.size
        tally.drafted += drafted.size
        tally.accepted += min(agreed, emitted.size - 1)
        return emitted

    @property
    def done(self) -> bool:
        """Whether everything was emitted."""
        return self.at >= self.response.size


def replay(rollouts: RolloutSet, mode: str, player: Player) -> Tally:
    """Run one mode over all tasks."""
    tally = Tally()
    if mode == "epoch":
        for attempt in range(max(map(len, rollouts.tasks.values()), default=0)):
            for task, attempts in rollouts.tasks.items():
                if attempt < len(attempts):
                    _alone(player, tally, task, attempt, attempts[attempt])
        return tally
    for task, attempts in rollouts.tasks.items():
        groups = [task]
        if mode == "prompt":
            for k, conversation in enumerate(attempts):
                groups = [f"{task}/{k}"]
                _alone(player, tally, groups[0], k, conversation)
                player.forget(groups)
        elif mode == "seq":
            for k, conversation in enumerate(attempts):
                _alone(player, tally, task, k, conversation)
        elif mode == "previous":
            half = len(attempts) // 2
            for k, conversation in enumerate(attempts[:half]):
                record(player, task, k, conversation)
            player.new_policy()
            for k, conversation in enumerate(attempts[half:] if half else []):
                _alone(player, tally, task, half + k, conversation, keep=False)
        else:
            first = 1 if mode == "pilot" else 0
            for conversation in attempts[:first]:
                _alone(player, tally, task, 0, conversation)
            _together(player, tally, task, attempts[first:], first, one_by_one=mode == "conc")
        player.forget(groups)
    return tally


def begin(player: Player, task: str, attempt: int, turn: int, conversation: Conversation) -> Request:
    """Start a turn as a request."""
    request = Request((task, attempt, turn), conversation.turns[turn].response)
    player.start(request.name, conversation.prompt(turn), task)
    return request


def record(player: Player, task: str, attempt: int, conversation: Conversation) -> None:
    """Make a conversation history without drafting for it."""
    for turn in range(len(conversation.turns)):
        request = begin(player, task, attempt, turn, conversation)
        player.feed([request.name], [request.response])
        player.finish(request.name, keep=True)


def _alone(
    player: Player, tally: Tally, task: str, attempt: int, conversation: Conversation, *, keep: bool = True
) -> None:
    for turn in range(len(conversation.turns)):
        request = begin(player, task, attempt, turn, conversation)
        emitted = request.response[:1]
        while True:
            player.feed([request.name], [emitted])
            if request.done:
                break
            emitted = request.verify(player.propose([request.name])[0], tally)
        player.finish(request.name, keep=keep, more=turn + 1 < len(conversation.turns))


def _together(
    player: Player, tally: Tally, task: str, attempts: list[Conversation], first: int, *, one_by_one: bool
) -> None:
    """Siblings in lockstep, turn by turn."""
    for turn in range(max((len(each.turns) for each in attempts), default=0)):
        live = [begin(player, task, first + k, turn, a) for k, a in enumerate(attempts) if turn < len(a.turns)]
        player.feed([r.name for r in live], [r.response[:1] for r in live])
        while True:
            for request in live:
                if request.done:
                    player.finish(request.name, keep=True)
            live = [request for request in live if not request.done]
            if not live:
                break
            for batch in [[request] for request in live] if one_by_one else [live]:
                drafts = player.propose([r.name for r in batch])
                emitted = [r.verify(d, tally) for r, d in zip(batch, drafts, strict=True)]
                player.feed([r.name for r in batch], emitted)
