"""Names, shapes and dtypes of checkpoint tensors: the vocabulary both ends of a sync share."""

from __future__ import annotations

import msgspec
import torch
import xxhash

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    )
}
"""dtypes that can travel, by the name used on the wire."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the checkpoint as the trainer names it (Hugging Face names and shapes)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Wire name of the dtype, a key of `DTYPES`."""

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Describe `tensor`.

        Raises:
            TypeError: the dtype cannot travel.
        """
        return cls(name, tuple(tensor.shape), dtype_name(tensor.dtype, name))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch knows it."""
        return DTYPES[self.dtype]

    @property
    def numel(self) -> int:
        """Number of elements."""
        numel = 1
        for size in self.shape:
            numel *= size
        return numel


def dtype_name(dtype: torch.dtype, tensor: str) -> str:
    """Wire name of `dtype`.

    Raises:
        TypeError: the dtype of `tensor` is not one of `DTYPES`.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(
            f"tensor {tensor!r} has dtype {dtype}; weight sync carries {', '.join(DTYPES)}. "
            "Use slipstream/weight_sync=native for this model."
        )
    return name


def digest(value: object) -> str:
    """A 128-bit hex digest of any msgspec-encodable value, equal on every machine."""
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(value))
