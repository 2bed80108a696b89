"""`python -m openrlhf_cpu ARGUMENTS`: OpenRLHF's command line on a CPU, through slipstream's launcher if it has options
of slipstream."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from typing import Any

import openrlhf_cpu


def main() -> None:
    openrlhf_cpu.install()
    import ray

    init = ray.init

    @functools.wraps(init)
    def local(*args: Any, **kwargs: Any) -> Any:
        """A cluster of its own, whose GPUs are numbers; a job of Ray is in a cluster already."""
        runtime = {**kwargs.pop("runtime_env", {}), "worker_process_setup_hook": "openrlhf_cpu.install"}
        if os.environ.get("RAY_ADDRESS"):
            return init(*args, runtime_env=runtime, **kwargs)
        return init(
            *args,
            address="local",
            num_cpus=16,
            num_gpus=int(os.environ["OPENRLHF_CPU_GPUS"]),
            include_dashboard=False,
            object_store_memory=300_000_000,
            runtime_env=runtime,
            _temp_dir=os.environ.get("OPENRLHF_CPU_RAY"),
            **kwargs,
        )

    ray.init = local
    if any(argument.startswith("--slipstream") for argument in sys.argv[1:]):
        from slipstream.plugins.openrlhf.train_ppo_ray import main as launch

        launch()
    else:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
