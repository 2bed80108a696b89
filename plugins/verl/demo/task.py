"""The demo's task: write the digits of a number in ascending order.

The model that starts the run has seen three ways to answer and picks one of them at random: ascending, descending and
unchanged. Only the first earns a reward, so what reinforcement has to move is a preference the model already has, as
in a real run, rather than a skill it lacks. A small learning rate is enough for that, and small steps are what leave
most bf16 weights unchanged from one step to the next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "DATA_SOURCE",
    "DIGITS",
    "STYLES",
    "Problem",
    "answer",
    "pretraining_pairs",
    "problems",
    "rows",
    "score",
    "write_parquet",
]

DATA_SOURCE = "slipstream/ascending-digits"
DIGITS = 4
"""Length of a number; the response is as long, plus the end token."""

STYLES: dict[str, float] = {"ascending": 0.40, "descending": 0.35, "unchanged": 0.25}
"""How often the pre-training answers in each way."""


@dataclass(frozen=True)
class Problem:
    """One number and the answer that earns the reward."""

    number: str
    solution: str


def answer(number: str, style: str) -> str:
    """Return `number` as `style` would write it."""
    if style == "ascending":
        return "".join(sorted(number))
    if style == "descending":
        return "".join(sorted(number, reverse=True))
    if style == "unchanged":
        return number
    raise ValueError(f"unknown style {style!r}; known: {', '.join(STYLES)}")


def _number(generator: random.Random, digits: int) -> str:
    """Draw a number for which the three styles give three answers."""
    while True:
        number = "".join(generator.choices("0123456789", k=digits))
        if len({answer(number, style) for style in STYLES}) == len(STYLES):
            return number


def problems(count: int, seed: int, digits: int = DIGITS) -> list[Problem]:
    """Return `count` different problems, the same ones for the same seed."""
    generator = random.Random(f"problems/{seed}")
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        numbers[_number(generator, digits)] = None
    return [Problem(number, answer(number, "ascending")) for number in numbers]


def pretraining_pairs(seed: int, digits: int = DIGITS) -> Iterator[tuple[str, str]]:
    """Yield (number, answer) for ever, the answer in a style drawn by :data:`STYLES`."""
    generator = random.Random(f"pretraining/{seed}")
    names, weights = list(STYLES), list(STYLES.values())
    while True:
        number = _number(generator, digits)
        yield number, answer(number, generator.choices(names, weights)[0])


def score(response: str, solution: str) -> float:
    """Return 1.0 for the right answer and 0.0 for any other."""
    return float(response.strip() == solution)


def rows(items: Sequence[Problem]) -> list[dict[str, Any]]:
    """Return the rows of verl's data set format."""
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": item.number}],
            "ability": "sorting",
            "reward_model": {"style": "rule", "ground_truth": item.solution},
            "extra_info": {"index": index},
        }
        for index, item in enumerate(items)
    ]


def write_parquet(items: Sequence[Problem], path: Path) -> Path:
    """Write problems as a parquet file that verl reads, and return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows(items)), path)
    return path
