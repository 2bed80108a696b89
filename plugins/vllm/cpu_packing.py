"""Keep linear weights unpacked when vLLM runs on a CPU.

vLLM's CPU backend replaces the weight of every linear layer, right after loading, by an opaque oneDNN handle
(``dispatch_cpu_unquantized_gemm(layer, remove_weight=True)``) and drops the parameter. An engine that will receive new
weights cannot live with that: a dense update dies because the parameter it wants to load into is gone, and a sparse
update would write into memory the matrix product no longer reads. The token embedding and the output head are packed
as well while their parameter stays, so writing to them would silently change nothing.

:func:`keep_weights_unpacked` makes the live parameter the one that is used. It costs the packed kernel's speed and
matters only on a CPU; GPU engines never call the function it replaces.
"""

from __future__ import annotations

import inspect
from types import ModuleType

import torch

__all__ = ["UTILS_MODULE", "keep_weights_unpacked"]

UTILS_MODULE = "vllm.model_executor.layers.utils"
"""The vLLM module that holds the function; its callers look it up there at call time."""

_FUNCTION = "dispatch_cpu_unquantized_gemm"
_PARAMETERS = ("layer", "remove_weight")


def _use_live_weight(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stand-in for vLLM's packing function: compute with the parameter itself, whatever `remove_weight` says.

    A weight that is not a matrix (expert stacks, causal convolutions) belongs to a layer with its own kernel. vLLM
    packs convolutions in place there; leaving them alone keeps the checkpoint layout that an update writes to.
    """
    if layer.weight.is_meta or layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment, unused-ignore]


def keep_weights_unpacked(utils: ModuleType | None = None) -> bool:
    """Make vLLM's CPU backend compute with live, unpacked weights in this process. Safe to call repeatedly.

    Args:
        utils: ``vllm.model_executor.layers.utils`` if the caller has it at hand (a post-import hook does); imported
            otherwise.

    Returns:
        Whether weights are kept unpacked from now on; False on a platform that never packs.

    Raises:
        RuntimeError: This vLLM has no such function, or a different one.
    """
    if utils is None:
        import vllm.model_executor.layers.utils as imported

        utils = imported
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    current = getattr(utils, _FUNCTION, None)
    if current is _use_live_weight:
        return True
    if current is None:
        raise RuntimeError(
            f"{UTILS_MODULE} has no {_FUNCTION}: this vLLM packs CPU weights in another way, so weight updates on a "
            "CPU cannot be made safe"
        )
    parameters = tuple(inspect.signature(current).parameters)
    if parameters != _PARAMETERS:
        raise RuntimeError(f"{UTILS_MODULE}.{_FUNCTION} takes {parameters}, expected {_PARAMETERS}: unknown vLLM")
    setattr(utils, _FUNCTION, _use_live_weight)
    return True
