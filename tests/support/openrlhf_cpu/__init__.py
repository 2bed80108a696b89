"""Real OpenRLHF runs without a GPU: what stands in for CUDA, and nothing else. docs/openrlhf.md lists and justifies it.

`install` is called in the driver (`__main__`) and, through Ray's `worker_process_setup_hook`, in every Ray worker. It
only registers callbacks for modules that the process may import later. Classes are changed in place and actor classes
decorated anew, because Ray pickles what is left of them by value.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from types import ModuleType
from typing import Any

from slipstream.plugins.verl.post_import import after_import

DTYPE = "OPENRLHF_CPU_DTYPE"
"""Environment variable: float32 or bfloat16."""
FOLDER = "OPENRLHF_CPU_FOLDER"
"""Environment variable: where samples.jsonl and metrics.jsonl go."""
NATIVE_WORKER = "openrlhf_cpu.native_worker.CpuWorkerWrap"


def install() -> None:
    """Register every stand-in in this process."""
    after_import("torch", _cuda)
    after_import("deepspeed.comm.torch", _no_compiled_collectives)
    after_import("openrlhf.utils.distributed_util", _gloo_instead_of_nccl)
    after_import("openrlhf.utils.deepspeed.deepspeed", _deepspeed)
    after_import("openrlhf.utils.utils", _precision)
    after_import("openrlhf.trainer.ppo_utils.replay_buffer", _replay_buffer)
    after_import("openrlhf.trainer.ppo_utils.samples_generator", _samples)
    after_import("openrlhf.trainer.ppo_trainer", _controller)
    after_import("openrlhf.trainer.ray.vllm_engine", _engine)


def _cuda(torch: Any) -> None:
    """There is one device, the CPU, and nothing to wait for."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_stream = lambda device=None: None


def _no_compiled_collectives(module: Any) -> None:
    """DeepSpeed would compile its shared-memory collectives for minutes; it has gloo without them."""
    module.build_shm_op = lambda: None


def _gloo_instead_of_nccl(module: Any) -> None:
    from openrlhf_cpu.gloo import communicator

    module.stateless_init_process_group = communicator


def _deepspeed(module: Any) -> None:
    """The mesh is of CPUs; Adam is torch's, since DeepSpeed's would be compiled first."""
    import torch

    mesh, train_config = module.init_device_mesh, module.get_train_ds_config
    module.init_device_mesh = lambda kind, *args, **kwargs: mesh("cpu", *args, **kwargs)

    def config(*args: Any, **kwargs: Any) -> Any:
        made = train_config(*args, **kwargs)
        if "optimizer" in made:
            made["optimizer"]["params"]["torch_adam"] = True
        if os.environ[DTYPE] == "float32":
            made["bf16"]["enabled"] = False
        return made

    module.get_train_ds_config = config
    torch.set_num_threads(1)


def _precision(module: Any) -> None:
    """OpenRLHF knows half precision only; float32 lets two runs be compared sample by sample."""
    if os.environ[DTYPE] == "float32":
        import torch

        module.convert_to_torch_dtype = lambda name: torch.float32


class _TorchOnCpu(ModuleType):
    """torch, but for a device that is not there."""

    def __init__(self, torch: Any) -> None:
        super().__init__("torch")
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def device(self, name: str) -> Any:
        return self._torch.device("cpu" if name.startswith("cuda") else name)


def _replay_buffer(module: Any) -> None:
    """It asks for `cuda:<current device>`."""
    module.torch = _TorchOnCpu(module.torch)


def _samples(module: Any) -> None:
    """Prompts come back in the order of completion, a matter of timing: sort them, and write the samples down."""
    generate = module.SamplesGenerator.generate_samples

    @functools.wraps(generate)
    def generate_samples(self: Any, **kwargs: Any) -> Any:
        samples, *rest = generate(self, **kwargs)
        samples.sort(key=lambda sample: sample.prompts[0])  # stable: a group stays in its order
        lines = [
            {"prompt": s.prompts[0], "tokens": s.sequences[0].tolist(), "reward": float(s.rewards[0])} for s in samples
        ]
        if lines:  # the last call finds no prompts
            _append("samples.jsonl", lines)
        return samples, *rest

    module.SamplesGenerator.generate_samples = generate_samples


def _controller(module: Any) -> None:
    """What OpenRLHF logs after each step also goes to a file; and the controller, which OpenRLHF does not seed, is."""
    import ray

    prepare = module.prepare_datasets

    @functools.wraps(prepare)
    def prepare_datasets(*args: Any, **kwargs: Any) -> Any:
        import torch

        torch.manual_seed(1)
        return prepare(*args, **kwargs)

    module.prepare_datasets = prepare_datasets

    save = module.BasePPOTrainer.save_logs_and_checkpoints

    @functools.wraps(save)
    def save_logs_and_checkpoints(self: Any, global_step: int, logs_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
        numbers = {name: value for name, value in (logs_dict or {}).items() if isinstance(value, int | float)}
        _append("metrics.jsonl", {"step": global_step, "data": numbers})
        return save(self, global_step, logs_dict, *args, **kwargs)

    module.BasePPOTrainer.save_logs_and_checkpoints = save_logs_and_checkpoints
    module.PPOTrainer = ray.remote(_plain(module.PPOTrainer))


def _engine(module: Any) -> None:
    """The engine's precision, OpenRLHF's worker extension on a CPU, and a seed for every sample."""
    import ray

    actor = _plain(module.RolloutRayActor)
    init, generate = actor.__init__, actor.generate

    @functools.wraps(init)
    async def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kwargs["dtype"] = os.environ[DTYPE]
        if "slipstream" not in kwargs["worker_extension_cls"]:
            kwargs["worker_extension_cls"] = NATIVE_WORKER
        self.cpu_seen: Counter[tuple[int, ...]] = Counter()
        await init(self, *args, **kwargs)

    @functools.wraps(generate)
    async def seeded(self: Any, prompt_token_ids: Any, sampling_params: Any, multi_modal_data: Any = None) -> Any:
        key = tuple(prompt_token_ids)
        self.cpu_seen[key] += 1
        sampling_params.seed = hash((key, self.cpu_seen[key])) % 2**31
        return await generate(self, prompt_token_ids, sampling_params, multi_modal_data)

    actor.__init__, actor.generate = __init__, seeded
    module.RolloutRayActor = ray.remote(actor)


def _plain(actor_class: Any) -> Any:
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def _append(name: str, lines: Any) -> None:
    with open(os.path.join(os.environ[FOLDER], name), "a") as file:
        file.write(json.dumps(lines) + "\n")
