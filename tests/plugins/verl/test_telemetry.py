"""The event log of a verl run, on verl's own trainer and tracker, in a process of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

from slipstream.core.telemetry.history import read_run

TRAINER = """
    import json, os, urllib.request
    from types import SimpleNamespace
    from verl.trainer.ppo.v1 import trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync

    class Trainer(trainer_sync.PPOTrainerSync):
        def _step_once(self, metrics, timing_raw, sample_batch_size):
            with trainer_base.marked_timer("gen", timing_raw):
                pass
            with trainer_sync.marked_timer("update_weights", timing_raw, color="red"):
                pass
            return SimpleNamespace(keys=[], tags=[], partition_id="train")

        def prepare_step(self):
            return {}

    try:
        names = SimpleNamespace(project_name="math", experiment_name="first")
        Trainer(SimpleNamespace(trainer=names))
    except AttributeError:
        pass  # verl goes on to set up a whole run
    trainer = object.__new__(Trainer)
    trainer.global_steps, trainer.parameter_sync_step = 7, 1
    trainer.config = SimpleNamespace(data=SimpleNamespace(train_batch_size=1))
    timing = {}
    with trainer_base.marked_timer("step", timing):
        trainer.step({}, timing)
    tracker = trainer_base.Tracking("math", "first", "console")
    tracker.log({"val/reward": 1.0}, step=7)
    metrics = {f"timing_s/{name}": value for name, value in timing.items()}
    metrics["slipstream/weight_sync/payload_mbytes"] = 1.5
    tracker.log(data={**metrics, "critic/score/mean": 0.5, "perf/throughput": float("nan")}, step=7)
    if port := json.loads(os.environ["SLIPSTREAM_NODE"]).get("prometheus_port"):
        print(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    try:
        with trainer_base.marked_timer("update_actor", {}):
            raise RuntimeError("out of memory")
    except RuntimeError:
        pass
"""


LISTENER = """
    from slipstream.core.hooks import hookimpl

    @hookimpl
    def slipstream_stage_started(stage):
        print("hook: started", stage.name, stage.step)

    @hookimpl
    def slipstream_stage_finished(stage):
        print("hook: finished", stage.name, stage.step)
"""


def train(node: dict[str, object], **variables: str) -> str:
    environment = {
        **os.environ,
        **variables,
        "SLIPSTREAM_NODE": json.dumps(node),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "slipstream.plugins.verl.cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRAINER)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_notes_its_start_its_stages_and_its_steps(tmp_path: Path):
    """All of slipstream's features are off: that is a baseline."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    served = train({"events": str(tmp_path / "log"), "prometheus_port": port}).splitlines()
    assert {"slipstream_step 7.0", "slipstream_weight_sync_payload_mbytes 1.5"} <= set(served)
    history = read_run(tmp_path / "log")
    assert history.started is not None
    assert history.started.name == "math/first"
    assert history.started.versions["verl"] == "0.9.1"
    assert history.started.settings["weight_sync"]["mode"] == "native"
    assert [(stage.name, stage.step) for stage in history.stages] == [("gen", 7), ("update_weights", 7)]
    assert [stage.name for stage in history.unfinished] == ["update_actor"], "the one that failed"
    (step,) = history.steps
    assert (step.step, step.reward, step.tokens_per_second) == (7, 0.5, None)
    assert set(step.stages) == {"gen", "update_weights"}
    assert step.sync_seconds == step.stages["update_weights"]


def test_stage_hooks_fire_without_an_event_log(tmp_path: Path):
    """For another distribution's plugin, installed the way pip leaves it."""
    info = tmp_path / "listener-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: listener\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slipstream]\nlistener = listener\n")
    (tmp_path / "listener.py").write_text(textwrap.dedent(LISTENER))
    told = train({"events": None}, PYTHONPATH=str(tmp_path)).splitlines()
    assert [line for line in told if line.startswith("hook:")] == [
        "hook: started gen 7",
        "hook: finished gen 7",
        "hook: started update_weights 7",
        "hook: finished update_weights 7",
        "hook: started update_actor 7",
    ]
