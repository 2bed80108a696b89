"""Elements at given places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream.triton_kernels import as_bits, gather, put


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


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 5000])
def test_put_is_assignment(width, count):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, 5000 * width, np.uint8).view(f"u{width}")
    places, values = rng.permutation(5000)[:count], np.arange(2 * count).astype(array.dtype)[::2]
    expected = array.copy()
    expected[places] = values
    put(array, places, values)
    assert np.array_equal(array, expected)


@pytest.mark.parametrize("place", [-1, 10])
def test_nothing_is_put_when_a_place_is_outside(place):
    array = np.zeros(10, np.uint16)
    with pytest.raises(IndexError, match="expected places"):
        put(array, np.array([0, place]), np.ones(2, np.uint16))
    assert not array.any()
