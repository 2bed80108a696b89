"""Real OpenRLHF runs without a GPU: what stands in for CUDA, and nothing else. docs/openrlhf.md lists and justifies it.

`install` is called in the driver (`__main__`) and, through Ray's `worker_process_setup_hook`, in every Ray worker. It
only registers callbacks for modules that the process may import later. Classes are changed in place and actor classes
decorated anew, because Ray pickles what is left of them by value.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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
    after_import("openrlhf.utils.agent", _agents)
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
    """The engine's precision, OpenRLHF's worker extension on a CPU, and samples that know their number."""
    import ray

    actor = _plain(module.RolloutRayActor)
    init, generate_responses = actor.__init__, actor.generate_responses

    @functools.wraps(init)
    async def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kwargs["dtype"] = os.environ[DTYPE]
        if "slipstream" not in kwargs["worker_extension_cls"]:
            kwargs["worker_extension_cls"] = NATIVE_WORKER
        await init(self, *args, **kwargs)

    @functools.wraps(generate_responses)
    async def numbered(*args: Any, **kwargs: Any) -> Any:
        _begin_group()
        return await generate_responses(*args, **kwargs)

    actor.__init__, actor.generate_responses = __init__, numbered
    module.RolloutRayActor = ray.remote(actor)


_numbers: ContextVar[Iterator[int]] = ContextVar("openrlhf_cpu_numbers")
"""Of the samples of the prompt that the running task works on."""


def _begin_group() -> None:
    """Called by name, since Ray pickles what calls it by value."""
    _numbers.set(itertools.count())


def _agents(module: Any) -> None:
    """A seed for every request: by prompt, number of the sample and turn, whichever engine serves it."""
    for executor in (module.SingleTurnAgentExecutor, module.MultiTurnAgentExecutor):
        executor.execute = _seeded(executor.execute)


def _seeded(execute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    async def run(self: Any, *, prompt: str, llm_engine: Any, **kwargs: Any) -> Any:
        return await execute(self, prompt=prompt, llm_engine=_SeedingEngine(llm_engine, prompt), **kwargs)

    return run


class _SeedingEngine:
    """An engine's actor as the executor of one sample sees it."""

    def __init__(self, engine: Any, prompt: str) -> None:
        self._engine = engine
        self._sample = prompt, next(_numbers.get())
        self._turns = itertools.count()

    async def generate(self, prompt_token_ids: Any, sampling_params: Any, multi_modal_data: Any = None) -> Any:
        sampling_params.seed = hash((self._sample, next(self._turns))) % 2**31
        return await self._engine.generate(prompt_token_ids, sampling_params, multi_modal_data=multi_modal_data)


def _plain(actor_class: Any) -> Any:
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def _append(name: str, lines: Any) -> None:
    with open(os.path.join(os.environ[FOLDER], name), "a") as file:
        file.write(json.dumps(lines) + "\n")
