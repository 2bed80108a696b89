"""Which twin runs: the Triton one for CUDA and HIP tensors, the numba one for host tensors and numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec

import torch
from torch import Tensor

_interpreted: ContextVar[Callable[[Tensor], bool]] = ContextVar("interpreted", default=lambda t: False)


@contextmanager
def interpreting(chosen: Callable[[Tensor], bool] = lambda t: True) -> Iterator[None]:
    """For tests: in this thread, the `chosen` host tensors count as a GPU's and go to the Triton twins (interpreted).

    Other threads, such as the engine workers of a test, keep the numba twins.
    """
    token = _interpreted.set(chosen)
    try:
        yield
    finally:
        _interpreted.reset(token)


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
        chosen = {_interpreted.get()(t) for t in tensors}
        if len(chosen) == 2:
            raise ValueError("expected all tensors on one device, got some that a test wants interpreted and some not")
        return chosen.pop()
    if device.type != "cuda":
        raise TypeError(f"expected tensors on cpu or cuda (CUDA or HIP), got {device}; move them with .cpu()")
    if find_spec("triton") is None:
        raise RuntimeError("expected triton for tensors on cuda, got none installed; install triton or use .cpu()")
    return True


def device_of(t: Tensor) -> AbstractContextManager[object]:
    """Context in which Triton launches on the device of `t`."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()
