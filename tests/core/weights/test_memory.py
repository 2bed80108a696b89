"""Peak memory of real syncs at both ends, measured in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import peak_memory
import pytest

MIB = 1 << 20
CONSTANT = 64 * MIB
CHUNK = 2 * MIB
"""Each end holds up to five frames."""
SIZES, SHARES = (32 * MIB, 96 * MIB), (0.01, 0.1)


@pytest.fixture(scope="module")
def syncs():
    """One row a sync: two model sizes, two densities, two codec levels; a seed and two deltas each."""
    cases = [str(number) for size in SIZES for share in SHARES for number in (size, share)]
    command = [sys.executable, str(Path(peak_memory.__file__)), str(CHUNK), *cases]
    # Large blocks go back to the system when they are freed: what is measured is what was in use at once.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=280, env=environment)
    output = run.stdout
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) == len(SIZES) * len(SHARES) * 2 * 3
    return rows


def worst(rows, end, allowed):
    """Bytes beyond what is allowed, at worst."""
    return max(row[end] - allowed(row) for row in rows)


def test_a_delta_takes_a_worker_24_bytes_a_change_and_a_constant(syncs):
    """ModelExpress 776, SGLang 8076: applying a delta rebuilt or staged a second copy of the model."""
    deltas = [row for row in syncs if row["sync"] == "delta"]
    assert worst(deltas, "worker", lambda row: 24 * row["changes"] + CONSTANT) <= 0
    sparse = [row for row in deltas if row["changes"] < 0.05 * row["elements"]]
    assert worst(sparse, "worker", lambda row: row["elements"] // 2) <= 0, "a quarter of the model"


def test_a_delta_takes_the_sender_36_bytes_a_change_and_a_constant(syncs):
    """Positions, old and new values, the sections and the history."""
    deltas = [row for row in syncs if row["sync"] == "delta"]
    assert worst(deltas, "sender", lambda row: 36 * row["changes"] + CONSTANT) <= 0


@pytest.mark.parametrize("end", ["worker", "sender"])
def test_a_seed_takes_one_copy_of_the_model_and_a_constant(syncs, end):
    """At the worker what it had before, for the undo; at the sender the snapshot, which stays."""
    seeds = [row for row in syncs if row["sync"] == "seed"]
    assert worst(seeds, end, lambda row: 2 * row["elements"] + CONSTANT // 2) <= 0
