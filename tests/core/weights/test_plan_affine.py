"""Boxes found from index pairs alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_worlds import pairs

from slipstream.core.weights.plan import Cut, affine_boxes, fused_qkv, sharded


def found_from(boxes):
    listed = sorted(pair for box in boxes for pair in pairs(box))
    return listed, affine_boxes(*(np.array(side, dtype=np.int64) for side in zip(*listed, strict=True)))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_cut_tensor_is_one_box(dim):
    listed, boxes = found_from(sharded((6, 4, 8), [Cut(dim, 2, 1)]))
    assert len(boxes) == 1
    assert sorted(pairs(boxes[0])) == listed


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_fused_qkv_is_one_box(name):
    listed, boxes = found_from(fused_qkv(5, 8, 4, 3, Cut(0, 2, 1))[name])
    assert len(boxes) == 1
    assert sorted(pairs(boxes[0])) == listed


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40))
def test_any_ascending_pairs_come_back(steps):
    """Whatever the steps: the boxes hold exactly the pairs, each once."""
    sources, destinations = (np.cumsum(side) for side in zip(*steps, strict=True))
    boxes = affine_boxes(sources, destinations)
    assert sorted(pair for box in boxes for pair in pairs(box)) == list(zip(sources, destinations, strict=True))


def test_nothing_is_no_box():
    assert affine_boxes(np.empty(0, np.int64), np.empty(0, np.int64)) == []


def test_backwards_is_refused():
    with pytest.raises(ValueError, match="stride"):
        affine_boxes(np.arange(5), np.arange(5)[::-1].copy())
