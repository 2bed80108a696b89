"""What every trainer adapter that shows its shards must pass. A test module subclasses `TrainerShards`, names its
`cases`, and provides `world`: a folder in which the ranks of every case ran `trainer_world.follow`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from trainer_world import SYNCS


class TrainerShards:
    """The suite."""

    cases: Sequence[str]
    most_changed = 1.0
    """Share of the weights that training changes at most, a step."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases)

    def test_every_bit_is_as_the_framework_would_have_gathered_it(self, world, case):
        """A seed and two deltas, all written in place."""
        found = facts(world, case)
        assert found["differ"] == [[]] * SYNCS
        assert found["loads"] == 0

    def test_only_changes_travel(self, world, case):
        seed, *deltas = events(world, case)
        assert [sync["seeded_workers"] for sync in (seed, *deltas)] == [1] + [0] * (SYNCS - 1)
        for sync, changed in zip(deltas, facts(world, case)["changed"][1:], strict=True):
            assert 0 < sync["changed_elements"] == sum(changed.values()) < self.most_changed * sync["total_elements"]
            assert sum(part for part, _ in sync["layers"].values()) == sync["changed_elements"], "all ranks' parts"
            assert sync["payload_bytes"] < self.most_changed * seed["payload_bytes"]

    def test_no_rank_holds_the_whole(self, world, case):
        found = facts(world, case)
        assert sum(found["held"]) == found["elements"], "together the ranks hold every element once"
        assert max(found["held"]) < 0.7 * found["elements"], "experts that are odd in number do not split evenly"

    def test_frozen_parameters_cost_nothing(self, world, case):
        found = facts(world, case)
        assert all(step[name] == 0 for step in found["changed"][1:] for name in found["frozen"])


def facts(world: Path, case: str) -> dict[str, Any]:
    """What the ranks of `case` found."""
    errors = [path.read_text() for path in sorted((world / case).glob("error*"))]
    assert not errors, "\n".join(errors)
    return json.loads((world / case / "facts.json").read_text())


def events(world: Path, case: str) -> list[dict[str, Any]]:
    """What rank 0 logged of every sync."""
    return [json.loads(line) for line in (world / case / "events").read_text().splitlines()]
