"""What drafting costs the host: CPU time and memory, ours and ArcticInference's in turn in one process."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from drafters import Arctic, Ints, Player, Slipstream
from replay import Request, Tally, begin, record
from rollouts import Conversation, RolloutSet

sys.path.append(str(Path(__file__).resolve().parents[1] / "sync"))

from bars import Bar

BATCH = 64
MOST_STEPS = 300
MakeCache = Callable[..., Any]


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one call in this thread, and its result."""
    start = time.thread_time()
    result = task()
    return time.thread_time() - start, result


class Lane:
    """One drafter's run over a batch of 64 requests; one that ends is followed by the next."""

    def __init__(self, player: Player, rollouts: RolloutSet) -> None:
        self.player = player
        self.tally = Tally()
        self.waiting: list[tuple[str, int, Conversation]] = []
        for task, attempts in rollouts.tasks.items():
            half = len(attempts) // 2
            for k, conversation in enumerate(attempts[:half]):
                record(player, task, k, conversation)
            self.waiting += [(task, half + k, conversation) for k, conversation in enumerate(attempts[half:])]
        self.waiting.reverse()
        self.live: list[Request] = []
        self.emitted: list[Ints] = []
        self._refill()

    def _refill(self) -> None:
        while self.waiting and len(self.live) < BATCH:
            task, attempt, conversation = self.waiting.pop()
            self.live.append(begin(self.player, task, attempt, 0, conversation))
            self.emitted.append(conversation.turns[0].response[:1])

    def step(self) -> float:
        """Feed and propose, both timed; then verify."""
        names = [r.name for r in self.live]

        def work() -> list[Any]:
            self.player.feed(names, self.emitted)
            return self.player.propose(names)

        seconds, drafts = timed(work)
        going = [not request.done for request in self.live]
        for request, goes_on in zip(self.live, going, strict=True):
            if not goes_on:
                self.player.finish(request.name, keep=True)
        pairs = [(r, d) for r, d, goes_on in zip(self.live, drafts, going, strict=True) if goes_on]
        self.live = [request for request, _ in pairs]
        self.emitted = [request.verify(drafted, self.tally) for request, drafted in pairs]
        self._refill()
        return seconds


def steps(rollouts: RolloutSet, make_cache: MakeCache) -> Iterator[dict[str, object]]:
    """A step of 64 requests, with half of the attempts at their tasks as history."""
    times: dict[str, list[float]] = {"slipstream": [], "arctic": []}
    work: dict[str, list[tuple[int, int]]] = {"slipstream": [], "arctic": []}
    lanes = {"slipstream": Lane(Slipstream(threshold=0.2), rollouts), "arctic": Lane(Arctic(make_cache), rollouts)}
    for lane in lanes.values():
        lane.step()  # the first step has no draft to learn from
    gc.collect()
    while all(len(lane.live) == BATCH for lane in lanes.values()) and len(times["arctic"]) < MOST_STEPS:
        for name, lane in lanes.items():
            before = lane.tally.drafted, lane.tally.emitted
            times[name].append(lane.step())
            work[name].append((lane.tally.drafted - before[0], lane.tally.emitted - before[1]))
    for name in times:
        drafted, emitted = (sum(column) for column in zip(*work[name], strict=True))
        count = len(times[name])
        yield {
            "kind": "step",
            "set": rollouts.name,
            "drafter": name,
            "steps": count,
            "ms/step": 1e3 * float(np.median(times[name])),
            "drafted/step": drafted / count,
            "emitted/step": emitted / count,
            "us/drafted token": 1e6 * sum(times[name]) / max(1, drafted),
        }


def updates(texts: dict[str, list[list[Ints]]], make_cache: MakeCache) -> Iterator[dict[str, object]]:
    """Indexing responses that came in pieces of 4 tokens from 64 requests at a time."""
    for name, groups in texts.items():
        ours, theirs = Slipstream(), Arctic(make_cache)
        seconds = {"slipstream": 0.0, "arctic": 0.0}
        tokens = 0
        flat = [(f"{g}", k, text) for g, siblings in enumerate(groups) for k, text in enumerate(siblings)]
        for first in range(0, len(flat), BATCH):
            batch = flat[first : first + BATCH]
            for label, player in (("slipstream", ours), ("arctic", theirs)):
                for group, k, _ in batch:
                    player.start((group, k), np.arange(1, 9, dtype=np.int32), group)
                for at in range(0, max(text.size for _, _, text in batch), 4):
                    names = [(group, k) for group, k, text in batch if text.size > at]
                    pieces = [text[at : at + 4] for _, _, text in batch if text.size > at]
                    seconds[label] += timed(lambda p=player, n=names, e=pieces: p.feed(n, e))[0]  # type: ignore[misc]
                for group, k, _ in batch:
                    player.finish((group, k), keep=True)
            tokens += sum(text.size for _, _, text in batch)
        statistics = ours.drafter.statistics
        tree = theirs._cache._global_tree
        for label in seconds:
            memory = statistics["history_bytes"] if label == "slipstream" else tree.estimate_memory()
            yield {
                "kind": "update",
                "text": name,
                "drafter": label,
                "tokens": tokens,
                "us/token": 1e6 * seconds[label] / tokens,
                "bytes/token": memory / tokens,
            }


def depths(make_cache: MakeCache, lengths: tuple[int, ...]) -> Iterator[dict[str, object]]:
    """Drafting a text that was seen before, after matching so many tokens of it."""
    random = np.random.default_rng(1)
    text = random.integers(0, 50_000, max(lengths) + 400).astype(np.int32)
    for length in lengths:
        for name, player in (("slipstream", Slipstream(threshold=0.02)), ("arctic", Arctic(make_cache))):
            player.start("first", text[:1], "g")
            player.feed(["first"], [text[1:]])
            player.finish("first", keep=True)
            player.start("again", text[:1], "g")
            player.feed(["again"], [text[1:length]])
            best = float("inf")
            at = length
            for _ in range(12):
                seconds, (drafts,) = timed(lambda p=player: p.propose(["again"]))  # type: ignore[misc]
                best = min(best, seconds / max(1, len(drafts)))
                taken = min(len(drafts), 16) + 1
                player.feed(["again"], [text[at : at + taken]])
                at += taken
            yield {"kind": "depth", "drafter": name, "matched": length, "us/drafted token": 1e6 * best}


def off(rollouts: RolloutSet) -> Iterator[dict[str, object]]:
    """A step of 64 requests while the switch is off."""
    player = Slipstream()
    lane = Lane(player, rollouts)
    load = player.drafter.load
    for tokens in (0, 1, 2, 3) * 10:  # a drafted token takes what a step takes
        load.timed(BATCH, tokens * BATCH, 0.01 * (1 + tokens))
    while not load.turned_off:
        load.pays(BATCH, BATCH, 0.0)
    lane.step()
    times = []
    while len(lane.live) == BATCH and len(times) < 200:
        times.append(lane.step())
    yield {"kind": "off", "drafter": "slipstream", "steps": len(times), "ms/step": 1e3 * float(np.mean(times))}


def siblings(groups: int, tokens: int, edits: float, seed: int = 0) -> list[list[Ints]]:
    """Groups of 8 texts that differ by `edits` of their tokens."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(groups):
        base = random.zipf(1.3, tokens).clip(max=50_000)
        found.append(
            [
                np.where(random.random(tokens) < edits, random.integers(0, 50_000, tokens), base).astype(np.int32)
                for _ in range(8)
            ]
        )
    return found


def bars(rows: list[dict[str, Any]]) -> Iterator[Bar]:
    """The promises about cost."""

    def of(kind: str, drafter: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["kind"] == kind and row["drafter"] == drafter]

    for ours, theirs in zip(of("step", "slipstream"), of("step", "arctic"), strict=True):
        where = f"step of 64 requests, {ours['set']}"
        peer = (
            f"arctic {theirs['ms/step']:.2f} ms, {theirs['drafted/step']:.0f} drafted; ours {ours['drafted/step']:.0f}"
        )
        yield Bar.at_most(where, ours["ms/step"], "ms", 1.0, peer)
        yield Bar.at_most(f"{where}, share of arctic's", ours["ms/step"] / theirs["ms/step"], "", 1 / 3, peer)
    for ours, theirs in zip(of("update", "slipstream"), of("update", "arctic"), strict=True):
        peer = f"arctic {theirs['us/token']:.2f}"
        yield Bar.at_most(f"index update, {ours['text']}", ours["us/token"], "us/token", 0.5, peer)
        peer = f"arctic {theirs['bytes/token']:.0f}"
        yield Bar.at_most(f"memory, {ours['text']}", ours["bytes/token"], "B/token", 100, peer)
    ours_by_depth, theirs_by_depth = of("depth", "slipstream"), of("depth", "arctic")
    for ours, theirs in zip(ours_by_depth, theirs_by_depth, strict=True):
        peer = f"arctic {theirs['us/drafted token']:.2f}"
        yield Bar.at_most(
            f"draft after {ours['matched']} matched tokens", ours["us/drafted token"], "us/token", 3, peer
        )
    costs = [row["us/drafted token"] for row in ours_by_depth]
    yield Bar.at_most("deepest match over the shallowest", costs[-1] / costs[0], "times", 1.5)
    for row in of("off", "slipstream"):
        yield Bar.at_most("step of 64 requests, switched off", row["ms/step"], "ms", 0.2)
