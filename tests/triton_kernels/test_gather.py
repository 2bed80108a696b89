"""Elements at given places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import as_bits, gather


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 5000])
def test_gather_is_indexing(dtype, count):
    bits = as_bits(torch.arange(5000).to(dtype))
    places = np.random.default_rng(0).integers(0, 5000, count)
    found = gather(bits, places)
    assert found.dtype.kind == "u"
    assert np.array_equal(found.view(bits.numpy().dtype), bits.numpy()[places])


@pytest.mark.parametrize("place", [-1, 10])
def test_places_outside_are_refused(place):
    with pytest.raises(IndexError, match="expected places"):
        gather(torch.zeros(10, dtype=torch.int16), np.array([0, place]))
