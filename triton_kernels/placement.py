"""Which twin runs: the Triton one for CUDA and HIP tensors, the numba one for host tensors and numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec

import torch
from torch import Tensor

_interpreting: ContextVar[bool] = ContextVar("interpreting", default=False)


@contextmanager
def interpreting() -> Iterator[None]:
    """For tests: what this thread does with host tensors is done by the Triton twins, under Triton's interpreter.

    Other threads, such as the engine workers of a test, keep the numba twins.
    """
    token = _interpreting.set(True)
    try:
        yield
    finally:
        _interpreting.reset(token)


def on_gpu(*tensors: Tensor) -> bool:
    """Whether the tensors lie on one GPU; False when all are on the host (unless `interpreting`).

    Raises:
        ValueError: when they are not all on the same device.
        TypeError: for a device with neither twin.
        RuntimeError: for GPU tensors when triton is not installed.
    """
    device = tensors[0].device
    if any(t.device != device for t in tensors):
        got = ", ".join(str(t.device) for t in tensors)
        raise ValueError(f"expected all tensors on one device, got {got}; move them to the first one's with .to()")
    if device.type == "cpu":
        return _interpreting.get()
    if device.type != "cuda":
        raise TypeError(f"expected tensors on cpu or cuda (CUDA or HIP), got {device}; move them with .cpu()")
    if find_spec("triton") is None:
        raise RuntimeError("expected triton for tensors on cuda, got none installed; install triton or use .cpu()")
    return True


def device_of(t: Tensor) -> AbstractContextManager[object]:
    """Context in which Triton launches on the device of `t`."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()
