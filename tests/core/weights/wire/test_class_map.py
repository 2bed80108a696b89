"""Class maps: fits that are optimal, predictions that hold, bytes that come back."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_updates import warm_update
from unit_values import Old

from slipstream.core.weights.wire.class_levels import ClassEncoder
from slipstream.core.weights.wire.class_map import ClassMap, Prediction
from slipstream.core.weights.wire.histogram import RUN, SAMPLE, Histogram, stride_of
from slipstream.triton_kernels.class_codec import BF16, FP8, FP16, FP32, CorruptBlockError, encode


@pytest.fixture(scope="module")
def update():
    return warm_update(2 << 20, 3e-6)


@pytest.fixture(scope="module")
def histogram(update):
    return Histogram.measure(*update, BF16)


def test_histogram_counts_what_is_there(update, histogram):
    old, positions, _values = update
    exponents = old >> 7 & 255
    assert np.array_equal(histogram.elements, np.bincount(exponents, minlength=256))
    assert np.array_equal(histogram.changes, np.bincount(exponents[positions], minlength=256))
    up_one = np.array([0x3F80, 0xBF80, 0x0000, 0x3F80], np.uint16)  # 1, -1, 0, 1
    moved = np.array([0x3F81, 0xBF82, 0x8000, 0x3F8A], np.uint16)  # by 1, -2, -1 and 10: magnitudes 0, 1, 0, 9
    found = Histogram.measure(up_one, np.arange(4), moved, BF16)
    assert found.lengths[127, :4].tolist() == [0 + 1 + 4, 0 + 0 + 3, 0 + 0 + 2, 0 + 0 + 1]
    assert found.residual[127, :4].tolist() == [0 + 0 + 3, 1 + 1 + 3, 2 + 2 + 3, 3 + 3 + 3]
    assert found.lengths[0, 0] == found.residual[0, 0] == 0


def test_samples_are_runs_across_parts(update):
    old, positions, values = update
    whole = Histogram.measure(old, positions, values, BF16, 7)
    in_sample = np.arange(old.size) // RUN % 7 == 0
    assert whole.elements.sum() == in_sample.sum()
    assert whole.changes.sum() == in_sample[positions].sum()
    parts = None
    for begin, end in ((0, 5), (5, 5), (5, 3 * RUN), (3 * RUN, 29 * RUN + 1), (29 * RUN + 1, old.size)):
        inside = (positions >= begin) & (positions < end)
        part = Histogram.measure(old[begin:end], positions[inside] - begin, values[inside], BF16, 7, begin)
        parts = part if parts is None else parts + part
    for name in ("elements", "changes", "lengths", "residual"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


def test_strides_sample_enough_changes():
    assert [stride_of(k) for k in (0, 1, SAMPLE, 2 * SAMPLE, 3 * SAMPLE, 10**8)] == [1, 1, 1, 1, 3, 33333]


def test_histograms_of_other_widths_do_not_add_up(histogram):
    other = Histogram.measure(np.zeros(1, np.uint8), np.empty(0, np.int64), np.empty(0, np.uint8), FP8)
    with pytest.raises(ValueError, match="one width"):
        histogram + other


@pytest.mark.parametrize("most", [2, 3])
def test_no_other_edges_are_better(histogram, most):
    used = np.flatnonzero(histogram.elements)
    best = min(
        ClassMap(edges, (*[order] * len(edges), 0)).predict(histogram).bits
        for edges in combinations(used[:-1].tolist(), most - 1)
        for order in range(5)
    )
    fitted = ClassMap.fit(histogram, most)
    assert fitted.number == most
    assert fitted.predict(histogram).bits <= best + 1e-9


def test_more_classes_are_never_worse(histogram):
    bits = [ClassMap.fit(histogram, most).predict(histogram).bits for most in range(1, 9)]
    assert all(b <= a for a, b in pairwise(bits))
    assert ClassMap.fit(histogram, 1).number == 1
    assert bits[7] < 0.8 * bits[0]


@pytest.mark.parametrize("most", [1, 2, 8])
@pytest.mark.parametrize("rate", [1e-6, 1e-5])
def test_coded_size_is_predicted(rate, most):
    old, positions, values = warm_update(2 << 20, rate, 5)
    sample = Histogram.measure(old, positions, values, BF16, stride_of(positions.size))
    fitted = ClassMap.fit(sample, most)
    coded = encode(old, positions, values, fitted, BF16).size
    prediction = fitted.predict(sample)
    assert coded == pytest.approx(prediction.size(old.size, positions.size), rel=0.05)
    assert not prediction.outgrown(coded, old.size, positions.size)


def test_a_map_is_outgrown_when_updates_look_different(update):
    old, positions, values = update
    first = Histogram.measure(old, positions, values, BF16)
    fitted = ClassMap.fit(first)
    prediction = fitted.predict(first)
    rng = np.random.default_rng(0)  # as many changes as before, but nothing to do with the exponent
    elsewhere = np.sort(rng.choice(old.size, positions.size, replace=False))
    coded = encode(old, elsewhere, old[elsewhere] ^ np.uint16(1), fitted, BF16).size
    assert prediction.outgrown(coded, old.size, positions.size)


def test_predictions_of_nothing():
    assert Prediction(0.0, 0.0).size(100, 0) == 0
    assert not Prediction(0.0, 0.0).outgrown(0, 100, 0)
    assert Prediction(0.0, 0.0).outgrown(50, 100, 8)


@pytest.mark.parametrize(("dtype", "exponent"), [(np.uint8, FP8), (np.uint16, FP16), (np.uint32, FP32)])
def test_every_type_can_be_fitted(dtype, exponent):
    rng = np.random.default_rng(0)
    old = rng.integers(0, 256, 5000 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    positions = np.arange(0, 5000, 3)
    fitted = ClassMap.fit(Histogram.measure(old, positions, old[positions] + dtype(1), exponent))
    fitted.check(old.itemsize)
    assert fitted.table().shape == (256,)
    assert fitted.table().max() == fitted.number - 1


def test_without_changes_or_elements_there_is_one_class():
    nothing = np.empty(0, np.int64), np.empty(0, np.uint16), BF16
    assert ClassMap.fit(Histogram.measure(np.empty(0, np.uint16), *nothing)) == ClassMap((), (0,))
    assert ClassMap.fit(Histogram.measure(np.arange(999, dtype=np.uint16), *nothing)).number == 1


@given(st.sets(st.integers(0, 254), max_size=7), st.lists(st.integers(0, 15), min_size=8, max_size=8))
def test_maps_come_back_from_their_bytes(edges, orders):
    sent = ClassMap(tuple(sorted(edges)), tuple(orders[: len(edges) + 1]))
    data = sent.to_bytes()
    assert len(data) == 2 * sent.number <= 16
    assert ClassMap.from_bytes(data, 2) == sent


@given(st.binary(max_size=20))
def test_other_bytes_are_refused(data):
    try:
        found = ClassMap.from_bytes(data, 2)
    except CorruptBlockError:
        return
    found.check(2)
    assert found.to_bytes() == data


def test_a_map_that_is_far_off_is_replaced_in_the_same_sync():
    def unit(rate: float, seed: int) -> tuple[Old, np.ndarray, np.ndarray]:
        old, positions, values = warm_update(300_000, rate, seed)
        return Old(old, "bfloat16"), positions, values

    encoder = ClassEncoder()
    encoder.encode(*unit(3e-7, 0))
    encoder.finish()
    # Another regime: steps of hundreds of units of the last place.
    first, *others = [encoder.encode(*unit(3e-3, seed)).size for seed in (1, 2, 3)]
    fresh = ClassEncoder().encode(*unit(3e-3, 2)).size
    assert first > 1.05 * fresh
    assert all(size < 1.01 * fresh for size in others)
