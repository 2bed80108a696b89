import subprocess
import sys

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import as_bits, as_unsigned_numpy

WIDTHS = {
    torch.bool: torch.uint8,
    torch.uint8: torch.uint8,
    torch.int8: torch.uint8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.int16: torch.int16,
    torch.uint16: torch.int16,
    torch.float32: torch.int32,
    torch.int32: torch.int32,
    torch.float64: torch.int64,
    torch.int64: torch.int64,
}


@pytest.mark.parametrize(("dtype", "bits"), WIDTHS.items(), ids=str)
def test_views_share_memory_shape_and_strides(dtype: torch.dtype, bits: torch.dtype) -> None:
    tensor = torch.zeros(6, 4, dtype=dtype)[:, ::2].T
    view = as_bits(tensor)
    assert (view.dtype, view.shape, view.stride()) == (bits, tensor.shape, tensor.stride())
    assert view.data_ptr() == tensor.data_ptr()


def test_bits_of_known_values() -> None:
    assert as_bits(torch.tensor([1.0, -0.0])).tolist() == [0x3F800000, -(1 << 31)]
    assert as_unsigned_numpy(as_bits(torch.tensor(-0.0, dtype=torch.bfloat16))) == np.uint16(0x8000)


def test_parameters_give_detached_views() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    as_bits(parameter)[0] = 0
    assert parameter[0] == 0


def test_types_without_one_integer_an_element_are_refused() -> None:
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    for tensor in (torch.zeros(2, dtype=torch.complex64), quantised, torch.ones(2).to_sparse()):
        with pytest.raises(TypeError, match="expected a strided tensor"):
            as_bits(tensor)
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    if packed is not None:
        with pytest.raises(TypeError, match="uint8 view for packed"):
            as_bits(torch.zeros(2, dtype=torch.uint8).view(packed))


def test_numpy_view_wants_host_bits() -> None:
    with pytest.raises(TypeError, match="expected uint8, int16, int32 or int64 bits on cpu"):
        as_unsigned_numpy(torch.zeros(2))
    with pytest.raises(TypeError, match="on meta"):
        as_unsigned_numpy(torch.zeros(2, dtype=torch.int16, device="meta"))


def test_importing_the_package_pulls_in_neither_numba_nor_triton() -> None:
    check = "import sys, slipstream.triton_kernels; print({'numba', 'triton'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
