"""Two real verl runs (real vLLM, the demo's model) on one pretended GPU of one local Ray cluster, on this CPU.

    python benchmarks/graph/real_runs.py [--steps 8] [--tool-seconds 1.5] [--out FOLDER]

First one run after the other, then both at once, taking turns through the arbiter; same seeds, fp32. Prints the ratio
of the times and whether losses, rewards and responses are the same. Much of a rollout is waiting for an environment
(`tests/support/tool_wait.py`), since two cores are busy with one run otherwise. Takes five minutes where nothing else
runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.charts import perfetto
from slipstream.core.telemetry import LeasedStage
from slipstream.core.telemetry.records import record_of
from slipstream.core.telemetry.report.spans import lease_spans

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
COMPARED = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "actor/entropy", "response_length/mean")
PAUSE_SECONDS = 3.0
"""Between runs in a row: Ray ends the workers of the one before."""


@dataclass(frozen=True)
class Outcome:
    """What two runs took, and what they computed."""

    serial: float
    """Wall seconds from the first start to the last end, one run after the other."""
    shared: float
    """The same, both at once."""
    training: tuple[float, float]
    """Of these, from the end of the first start-up to the last end: (serial without its start-ups, shared)."""
    different: tuple[str, ...]
    """What differs between a run alone and in company: nothing."""
    waited: dict[str, float]
    """By run, seconds for leases."""
    leased: list[LeasedStage]
    """Of the shared runs."""

    @property
    def ratio(self) -> float:
        """Serial over shared; above 1 is a gain."""
        return self.serial / self.shared


def measure(folder: Path, *, steps: int = 8, tool_seconds: float = 1.5, overrides: Sequence[str] = ()) -> Outcome:
    """Run everything; raises `TrainingError` where a run fails."""
    from slipstream.core.telemetry import read_events
    from slipstream.plugins.verl.demo import task
    from slipstream.plugins.verl.demo.cluster import Cluster, local_cluster
    from slipstream.plugins.verl.demo.command import training_command
    from slipstream.plugins.verl.demo.model import cached_model
    from slipstream.plugins.verl.demo.runner import RunResult, run_training

    train_file = task.write_parquet(task.problems(256, seed=1), folder / "train.parquet")
    modules = {"VERL_USE_EXTERNAL_MODULES": "slipstream.plugins.verl.cpu,tool_wait", "PYTHONPATH": str(SUPPORT)}
    environment = {**modules, "TOOL_SECONDS": str(tool_seconds)}
    events = folder / "events.jsonl"

    def run(cluster: Cluster, name: str, seed: int, *more: str) -> tuple[float, RunResult]:
        command = training_command(
            model=cached_model(),
            train_file=train_file,
            folder=folder / name,
            steps=steps,
            seed=seed,
            shared_cluster=True,
            overrides=[
                "actor_rollout_ref.rollout.agent.default_agent_loop=tool_wait",
                f"trainer.experiment_name={name}",
                *overrides,
                *more,
            ],
        )
        command.env.update(environment, **cluster.env)
        del command.env["CUDA_VISIBLE_DEVICES"]
        result = run_training(command, timeout=600, address=cluster.address)
        return time.monotonic(), result

    placed = ("+slipstream=placement", "slipstream.placement.train_memory=0.5", f"slipstream.events={events}")
    memory = ("slipstream.placement.rollout_memory=0.4",)
    with local_cluster(folder / "cluster", env=environment) as cluster:
        began = time.monotonic()
        alone = [run(cluster, "alone-1", 1)[1]]
        serial = time.monotonic() - began
        time.sleep(PAUSE_SECONDS)
        began = time.monotonic()
        alone.append(run(cluster, "alone-2", 2)[1])
        serial += time.monotonic() - began
        time.sleep(PAUSE_SECONDS)
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(run, cluster, f"shared-{seed}", seed, *placed, *memory) for seed in (1, 2)]
            ends, together = zip(*(future.result() for future in futures), strict=True)
        shared = max(ends) - began
    different = tuple(
        f"{second.log.parent.name}: {what}"
        for first, second in zip(alone, together, strict=True)
        for what in differences(first, second)
    )
    waited = {
        result.log.parent.name: sum(
            step.values.get(f"slipstream/placement/{lane}_wait_seconds", 0.0)
            for step in result.steps
            for lane in ("rollout", "gang")
        )
        for result in together
    }
    training = (serial - sum(each.startup_seconds for each in alone), shared - min(e.startup_seconds for e in together))
    leased = [record for event in read_events(events) if isinstance(record := record_of(event), LeasedStage)]
    return Outcome(serial, shared, training, different, waited, leased)


def differences(first: Any, second: Any) -> list[str]:
    """Return what two runs of the same seed did not do the same, as far as verl logs it."""
    found = []
    for one, other in zip(first.steps, second.steps, strict=True):
        found += [
            f"step {one.step} {name}: {one.values[name]} and {other.values[name]}"
            for name in COMPARED
            if one.values[name] != other.values[name]
        ]
        if first.rollouts(one.step) != second.rollouts(one.step):
            found.append(f"step {one.step}: responses")
    return found


def main() -> int:
    """Measure, print, and return 1 when nothing was gained or something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tool-seconds", type=float, default=1.5)
    parser.add_argument("--out", type=Path, help="folder for logs and events; a temporary one by default")
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="slipstream-runs-"))
    outcome = measure(folder, steps=arguments.steps, tool_seconds=arguments.tool_seconds)
    trace = folder / "trace.json"
    trace.write_bytes(perfetto(lease_spans(outcome.leased)))
    print(f"{os.cpu_count()} cores, one thread a process; logs in {folder}; {trace} opens in ui.perfetto.dev")
    print(f"one after the other {outcome.serial:6.1f} s, at once {outcome.shared:6.1f} s: {outcome.ratio:.2f}x")
    before, after = outcome.training
    print(f"without start-up    {before:6.1f} s,         {after:6.1f} s: {before / after:.2f}x")
    print(f"waited for leases: {json.dumps({name: round(each, 1) for name, each in outcome.waited.items()})}")
    print("losses, rewards, responses: " + ("\n".join(outcome.different) or "the same, to the last bit"))
    return int(outcome.ratio < 1.0 or bool(outcome.different))


if __name__ == "__main__":
    sys.exit(main())
