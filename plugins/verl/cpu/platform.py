"""verl's device abstraction for a CPU that plays the accelerator."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch

from verl.plugin.platform import PlatformBase

__all__ = ["CpuPlatform"]


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Accept and ignore a call that has no meaning on a CPU."""


def _peak_memory(*args: Any, **kwargs: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total_memory(*args: Any, **kwargs: Any) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def _device_module() -> ModuleType:
    """Build what verl expects of ``torch.cuda``, on top of ``torch.cpu``."""
    module = ModuleType("slipstream_cpu_device", "The part of the torch.cuda interface that verl calls, for a CPU.")
    members: dict[str, Any] = {
        "current_device": torch.cpu.current_device,
        "current_stream": torch.cpu.current_stream,
        "device_count": torch.cpu.device_count,
        "empty_cache": _nothing,
        "get_device_name": lambda device=None: "cpu",
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "ipc_collect": _nothing,
        "is_available": torch.cpu.is_available,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "max_memory_allocated": _peak_memory,
        "max_memory_reserved": _peak_memory,
        "mem_get_info": _free_and_total_memory,
        "memory_allocated": _peak_memory,
        "memory_reserved": _peak_memory,
        "reset_peak_memory_stats": _nothing,
        "set_device": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "stream": lambda stream=None: nullcontext(),
        "synchronize": _nothing,
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


class CpuPlatform(PlatformBase):  # type: ignore[misc, unused-ignore]
    """A CPU as verl's accelerator.

    Ray is told that it has GPUs (``ray_kwargs.ray_init.num_gpus``): verl counts only resources named GPU or NPU.
    Tensors are not shared by IPC handles, so verl takes its shared-memory path for weights.
    """

    _module = _device_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Never found by detection: a machine with an accelerator must not end up here by accident.
        return False

    def current_device(self) -> Any:
        # verl passes this on as a torch device; an index would mean the first GPU.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
