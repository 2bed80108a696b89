"""Compile the kernels before the first test, so that a short wait in a test is a short wait for a message."""

from __future__ import annotations

import pytest
from toy_engine import Pair, ToyEngine, checkpoint


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    pair = Pair([ToyEngine()])
    weights = checkpoint()
    pair.sync(weights, patience=200)
    weights["o"][0, 0] += 1
    weights["q"][3, 1] += 1
    pair.sync(weights, patience=200)
