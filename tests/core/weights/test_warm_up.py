"""Kernels are compiled before the first delta needs them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from slipstream.core.weights import InProcessHub, PublisherSettings, TensorEngine, publisher, subscriber

_SCRIPT = """
import gc
import sys
import threading

import torch
from numba.core.dispatcher import Dispatcher

from slipstream.core.weights import InProcessHub, Publisher, PublisherSettings, Subscriber, TensorEngine


def compiled():
    return sum(len(each.overloads) for each in gc.get_objects() if isinstance(each, Dispatcher))


def sync(weight):
    hub = InProcessHub()
    worker = threading.Thread(target=subscriber.sync, args=([hub.connect("worker")], 60.0))
    worker.start()
    report = publisher.sync([("weight", weight.to(trainer))], hub, workers=1)
    worker.join()
    return report


trainer, level = getattr(torch, sys.argv[1]), int(sys.argv[2])
engine = TensorEngine({"weight": torch.zeros(700, 700, dtype=torch.bfloat16)})
subscriber = Subscriber(engine, "worker")
publisher = Publisher(PublisherSettings(level=level, verify_every=1))
weight = torch.randn(700, 700)
sync(weight)
for thread in threading.enumerate():
    if thread.name == "slipstream-warm-up":
        thread.join()
before = compiled()
weight[:, ::50] += 0.25
assert sync(weight).level == level
assert torch.equal(engine.tensors["weight"], weight.bfloat16())
print(before, compiled())
"""


@pytest.mark.parametrize(("trainer", "level"), [("float32", 2), ("bfloat16", 1), ("bfloat16", 0)])
def test_the_first_delta_finds_everything_compiled(trainer, level):
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, trainer, str(level)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    before, after = map(int, run.stdout.split())
    assert before == after > 5


def test_leaving_while_the_compiler_works_is_clean(tmp_path):
    script = _SCRIPT.split("for thread in")[0]
    run = subprocess.run(
        [sys.executable, "-c", script, "float16", "0"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        (PublisherSettings(), [{0, 1, 2}, {0, 1, 2}]),
        (PublisherSettings(level=1), [{1}, {1}]),
        (PublisherSettings(dense=True), []),
    ],
    ids=["auto", "fixed", "dense"],
)
def test_both_ends_compile_what_the_trainer_can_send(monkeypatch, settings, levels):
    asked = []
    for module in (publisher, subscriber):
        monkeypatch.setattr(module, "warm_up", lambda dtypes, levels: asked.append(set(levels)) if levels else None)
    worker = subscriber.Subscriber(TensorEngine({"weight": torch.zeros(8, 8)}), "worker")
    trainer = publisher.Publisher(settings)
    for _ in range(2):
        hub = InProcessHub()
        thread = threading.Thread(target=worker.sync, args=([hub.connect("worker")], 60.0))
        thread.start()
        trainer.sync([("weight", torch.ones(8, 8))], hub, workers=1)
        thread.join()
    assert asked == levels
