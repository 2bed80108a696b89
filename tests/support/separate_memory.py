"""A GPU's memory that is not there: host and device tensors told apart although both lie in host memory.

Inside `SeparateMemory` (one thread), each tensor belongs to the host or to the device, by how it was made: by `cpu()`,
`to("cpu")`, `from_numpy` and factories without a device on the host; by `to(device)`, and whatever was there before, on
the device. Operations and kernels that mix the two fail as they would on a machine with a GPU, and so does reading a
device tensor through numpy; bytes that cross are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_MADE_ON_HOST = {"empty", "zeros", "ones", "tensor", "arange", "full"}
_READ = {"tolist": 8, "item": 8, "__int__": 8, "__bool__": 1, "__index__": 8, "__float__": 8}
_METADATA = {"__get__", "numel", "element_size", "size", "stride", "dim", "is_contiguous", "data_ptr", "__len__"}


def on_host(tensor: Tensor) -> bool:
    """Whether the tensor belongs to the host."""
    return getattr(tensor, "_on_host", False)


class SeparateMemory(TorchFunctionMode):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.down = 0
        """Bytes from the device to the host."""
        self.up = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        given = list(_tensors((args, kwargs)))
        result = func(*args, **kwargs)
        if name in _METADATA and not isinstance(result, Tensor):
            return result
        if name == "numpy":
            assert on_host(args[0]), "a device tensor was read through numpy"
        elif name in _READ:
            self.down += 0 if on_host(args[0]) else _READ[name] * args[0].numel()
        elif name in ("cpu", "to") and self._moves(name, args, kwargs):
            return self._moved(args[0], result, name == "cpu" or "cpu" in (*args, *kwargs.values()))
        elif name == "copy_":
            self._count(args[1], on_host(args[0]))
        elif not given:
            return _tagged(result, name in _MADE_ON_HOST and kwargs.get("device") is None)
        else:
            places = {on_host(tensor) for tensor in given if tensor.dim()} or {on_host(given[0])}
            assert len(places) == 1, f"{name} mixes host and device tensors"
            return _tagged(result, places == {True})
        return result

    def _moves(self, name: str, args: Any, kwargs: Any) -> bool:
        leaves = (*args[1:], *kwargs.values())
        return name == "cpu" or any(isinstance(leaf, str | torch.device) for leaf in leaves)

    def _moved(self, source: Tensor, result: Tensor, to_host: bool) -> Tensor:
        self._count(source, to_host)
        moved = result.clone() if on_host(source) != to_host else result
        return _tagged(moved, to_host)

    def _count(self, source: Tensor, to_host: bool) -> None:
        size = source.numel() * source.element_size()
        self.down += size if to_host and not on_host(source) else 0
        self.up += size if not to_host and on_host(source) else 0


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _tagged(result: Any, host: bool) -> Any:
    def tag(tensor: Tensor) -> Tensor:
        tensor._on_host = host  # type: ignore[attr-defined]
        return tensor

    return tree_map_only(Tensor, tag, result)


_from_numpy = torch.from_numpy


def from_numpy(array: Any) -> Tensor:
    """`torch.from_numpy`, which torch does not show to modes, with a result that belongs to the host."""
    tensor: Tensor = _tagged(_from_numpy(array), True)
    return tensor


def check_launch(args: Any) -> None:
    """Fail when a kernel is given a tensor of the host."""
    wrong = [tuple(tensor.shape) for tensor in _tensors(args) if on_host(tensor)]
    assert not wrong, f"a kernel was given host tensors of shapes {wrong}"
