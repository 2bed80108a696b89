"""Recorded or generated rollouts as conversations of token ids."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

# Markup of the recorded sets' readers (Qwen2.5's ids; the recordings leave it out).
START, END, TEXT_END, NEWLINE = 151644, 151645, 151643, 198
ROLES = {"system": 8948, "user": 872, "assistant": 77091, "tool": 14172}


@dataclass(frozen=True)
class Turn:
    """One request: everything before it is its prompt."""

    start: int
    response: Ints


@dataclass(frozen=True)
class Conversation:
    """One attempt at a task."""

    tokens: Ints
    turns: list[Turn]

    def prompt(self, turn: int) -> Ints:
        """What the engine is given for a turn."""
        return self.tokens[: self.turns[turn].start]


@dataclass
class RolloutSet:
    """The attempts at each task of one source."""

    name: str
    tasks: dict[str, list[Conversation]] = field(default_factory=dict)


def recorded(folder: Path, attempts: int, tasks: int | None) -> Iterator[RolloutSet]:
    """Read DIR/rollouts/*.jsonl.zst: the first attempts at the first tasks of each set."""
    import pyarrow as pa

    for path in sorted((folder / "rollouts").glob("*.jsonl.zst")):
        found = RolloutSet(path.name.removesuffix(".jsonl.zst"))
        with pa.input_stream(str(path), compression="zstd") as stream:
            for line in io.TextIOWrapper(stream, "utf-8"):
                row = json.loads(line)
                task = str(row["task"])
                if task not in found.tasks and tasks is not None and len(found.tasks) >= tasks:
                    continue
                kept = found.tasks.setdefault(task, [])
                if len(kept) < attempts:
                    kept.append(_conversation(row["segments"]))
        yield found


def _conversation(segments: list[dict[str, object]]) -> Conversation:
    """Tokens with markup; sets that begin with `prompt` are plain completions without it."""
    plain = bool(segments) and segments[0]["role"] == "prompt"
    tokens: list[int] = []
    turns: list[Turn] = []
    for segment in segments:
        ids = [int(i) for i in segment["ids"]]  # type: ignore[attr-defined]
        if not plain:
            tokens += [START, ROLES[str(segment["role"])], NEWLINE]
        if segment["role"] == "assistant":
            ids.append(TEXT_END if plain else END)
            turns.append(Turn(len(tokens), np.array(ids, np.int32)))
        elif not plain:
            ids.append(END)
        tokens += ids
        if not plain:
            tokens.append(NEWLINE)
    return Conversation(np.array(tokens, np.int32), turns)


def generated(tasks: int, attempts: int, seed: int = 0) -> RolloutSet:
    """Siblings that are edits of a common answer, for machines without recordings."""
    random = np.random.default_rng(seed)
    found = RolloutSet("generated siblings, 8 % edits")
    phrases = [random.zipf(1.3, 12).clip(max=20_000) for _ in range(200)]
    for task in range(tasks):
        prompt = np.concatenate([phrases[i] for i in random.integers(0, 200, 10)])
        answer = np.concatenate([phrases[i] for i in random.integers(0, 200, 25)])
        kept = found.tasks.setdefault(str(task), [])
        for _ in range(attempts):
            edited = np.where(random.random(answer.size) < 0.08, random.integers(0, 20_000, answer.size), answer)
            response = np.append(edited[random.random(answer.size) > 0.02], END).astype(np.int32)
            tokens = np.concatenate([prompt, response]).astype(np.int32)
            kept.append(Conversation(tokens, [Turn(prompt.size, response)]))
    return found
