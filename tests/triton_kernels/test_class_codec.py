"""The class codec: twins that agree, round trips, sizes, and refusal of anything an encoder does not write."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from bounds import exponent_context_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_updates import STEPS, bf16, warm_update

from slipstream.core.weights.wire.class_map import ClassMap
from slipstream.core.weights.wire.histogram import Histogram, stride_of
from slipstream.triton_kernels.class_codec import (
    BF16,
    BLOCK,
    FP8,
    FP16,
    FP32,
    Classes,
    CorruptBlockError,
    cpu,
    decode,
    encode,
    reference,
    scan,
)

from .samples import SPECIAL

SMALL = 256  # elements a block in tests of many blocks
ONE = Classes((), (0,))
# Fitted to another model on purpose: only its lowest class has large magnitudes.
STRANGE = Classes((111, 113, 114, 115, 117, 119, 121), (3, 0, 0, 0, 0, 0, 0, 0))

KINDS = {
    "bf16": (np.uint16, BF16, torch.bfloat16),
    "fp16": (np.uint16, FP16, torch.float16),
    "fp32": (np.uint32, FP32, torch.float32),
    "e4m3": (np.uint8, FP8, torch.float8_e4m3fn),
    "e5m2": (np.uint8, FP8, torch.float8_e5m2),
}


def changed(old, new):
    positions = np.flatnonzero(old != new)
    return positions, new[positions]


def rebuilt(old, positions, values):
    assert positions.dtype == np.int64
    assert values.dtype == old.dtype
    assert (np.diff(positions) > 0).all()
    new = old.copy()
    new[positions] = values
    return new


def round_trip(old, new, classes, exponent):
    data = encode(old, *changed(old, new), classes, exponent)
    assert np.array_equal(rebuilt(old, *decode(data, old.size, old, classes, exponent)), new)
    return data


def some(old, share, change, seed=1):
    new, where = old.copy(), np.random.default_rng(seed).random(old.size) < share
    new[where] = change(old[where])
    return new


def random_bits(size, dtype, seed=0):
    width = np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, size * width, np.uint8).view(dtype)


@st.composite
def maps(draw, width):
    edges = sorted(draw(st.sets(st.integers(0, 254), max_size=7)))
    orders = draw(st.lists(st.integers(0, 8 * width - 1), min_size=len(edges) + 1, max_size=len(edges) + 1))
    return Classes(tuple(edges), tuple(orders))


@st.composite
def updates(draw):
    """Old and new arrays with special values, from near-equal to unrelated, and some map."""
    dtype, exponent, kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    n = draw(st.integers(1, 5000))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    if draw(st.booleans()):
        floats = torch.from_numpy(rng.standard_normal(n) * 0.02).to(kind)
        old = floats.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[floats.element_size()]).numpy().view(dtype)
    else:
        old = random_bits(n, dtype, int(rng.integers(1 << 30)))
    special = np.array(SPECIAL[kind], dtype)
    old = np.where(rng.random(n) < 0.1, rng.choice(special, n), old)
    most = draw(st.sampled_from([1, 3, 40, 256**old.itemsize - 1]))
    step = rng.integers(-most, most, n, endpoint=True).astype(dtype)
    new = np.where(rng.random(n) < draw(st.sampled_from([0.001, 0.01, 0.1, 0.5, 0.95, 1.0])), old + step, old)
    new = np.where(rng.random(n) < 0.01, rng.choice(special, n), new)
    return old, new, draw(maps(old.itemsize)), exponent


@settings(deadline=None, max_examples=80)
@given(updates())
def test_twins_write_the_same_bytes_and_read_them_back(update):
    old, new, classes, exponent = update
    change = changed(old, new)
    data = cpu.encode(old, *change, classes, exponent, SMALL)
    assert data.tobytes() == reference.encode(old, *change, classes, exponent, SMALL).tobytes()
    found = cpu.decode(data, old.size, old.dtype, old, classes, exponent, SMALL)
    specified = reference.decode(data, old, classes, exponent, SMALL)
    assert all(np.array_equal(a, b) for a, b in zip(found, specified, strict=True))
    assert np.array_equal(rebuilt(old, *found), new)
    assert np.isin(change[0], found[0]).all()
    assert data.size <= old.size * old.itemsize * (1 + 4 / SMALL) + 64


@pytest.mark.parametrize("n", [scan.SPAN - 1, scan.SPAN, scan.SPAN + 1, 2 * scan.SPAN + 100])
@pytest.mark.parametrize("kind", ["bf16", "fp32", "e4m3"])
def test_blocks_of_several_tiles_are_what_the_specification_says(n, kind):
    dtype, exponent, _ = KINDS[kind]
    old = random_bits(n, dtype, n)
    classes = Classes((0, 20, 50, 90, 100, 200, 254), (0,) * 8)
    new = some(old, 0.1, lambda bits: bits ^ 1)
    data = encode(old, *changed(old, new), classes, exponent)
    assert data.tobytes() == reference.encode(old, *changed(old, new), classes, exponent).tobytes()
    assert np.array_equal(rebuilt(old, *decode(data, n, old, classes, exponent)), new)


@pytest.mark.parametrize("select", [scan.select_by_table, *([scan.select_by_deposit] if scan.DEPOSITS else [])])
def test_bits_are_selected_by_table_and_by_the_processor(select):
    rng = np.random.default_rng(0)
    for density in (0.05, 0.5, 1.0):
        for bits in rng.random((20, 64)) < density:
            mask = np.packbits(bits, bitorder="little").view(np.uint64)[0]
            assert [select(mask, rank) for rank in range(bits.sum())] == np.flatnonzero(bits).tolist()


@settings(deadline=None, max_examples=40)
@given(updates())
def test_any_update_comes_back_through_the_api(update):
    old, new, classes, exponent = update
    assert round_trip(old, new, classes, exponent).size <= 1.0001 * old.nbytes + 64


@pytest.mark.parametrize("kind", KINDS)
def test_special_values_become_each_other(kind):
    dtype, exponent, torch_kind = KINDS[kind]
    special = np.array(SPECIAL[torch_kind], dtype)
    old, new = np.repeat(special, special.size), np.tile(special, special.size)
    for classes in (ONE, Classes((0, 1, 127), (0, 1, 2, 3))):
        round_trip(np.tile(old, 40), np.tile(new, 40), classes, exponent)  # dense, or absolute values
        sparse = np.zeros(200 * old.size, dtype)
        after = sparse.copy()
        sparse[::200], after[::200] = old, new
        round_trip(sparse, after, classes, exponent)


def test_the_monotone_domain_keeps_order_and_every_pattern():
    bits = np.arange(1 << 16)
    numbers = reference.monotone(bits, 2)
    assert np.array_equal(reference.bits_of(numbers, 2), bits)
    assert np.array_equal(np.sort(numbers), np.arange(-(1 << 15), 1 << 15))
    floats = torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16).double().numpy()
    finite = np.isfinite(floats)
    order = np.argsort(numbers[finite], kind="stable")
    assert (np.diff(floats[finite][order]) >= 0).all()


@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
@pytest.mark.parametrize("classes", [ONE, STRANGE], ids=["level 1", "level 2"])
def test_parts_of_many_blocks(n, classes):
    old, positions, values = warm_update(n, 3e-6, n)
    keep = positions // BLOCK != 1  # a block without a change
    keep |= n < 2 * BLOCK
    new = rebuilt(old, positions[keep], values[keep])
    new[-1] ^= 1
    round_trip(old, new, classes, BF16)


def test_threads_do_not_change_the_bytes():
    old, positions, values = warm_update(200 * SMALL, 1e-4)
    expected = cpu.encode(old, positions, values, STRANGE, BF16, SMALL)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 4)
        assert np.array_equal(cpu.encode(old, positions, values, STRANGE, BF16, SMALL), expected)
        found = cpu.decode(expected, old.size, old.dtype, old, STRANGE, BF16, SMALL)
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(found[0], positions)
    assert np.array_equal(found[1], values)


def test_one_class_reads_old_only_where_it_changed():
    old, positions, values = warm_update(BLOCK + 999, 1e-6)
    poisoned = ~old
    poisoned[positions] = old[positions]
    data = encode(old, positions, values, ONE, BF16)
    assert np.array_equal(encode(poisoned, positions, values, ONE, BF16), data)
    asked = []
    found = decode(data, old.size, lambda at: asked.append(at) or old[at], ONE, BF16, np.uint16)
    assert np.array_equal(found[0], positions)
    assert np.array_equal(found[1], values)
    assert [at.tolist() for at in asked] == [positions.tolist()]


def test_read_only_arrays_will_do():
    old, positions, values = warm_update(3000, 1e-4)
    for array in (positions, values):
        array.flags.writeable = False
    data = np.frombuffer(encode(old, positions, values, STRANGE, BF16).tobytes(), np.uint8)
    assert np.array_equal(decode(data, old.size, old, STRANGE, BF16)[1], values)


# Sizes

N = 2 << 20


@pytest.fixture(scope="module")
def weights():
    return bf16(np.random.default_rng(0).standard_normal(N, np.float32) * np.float32(0.02))


def noise(old):
    return random_bits(old.size, np.uint16, 7)


def one_flip(old):
    return old ^ old.dtype.type(1)


ADVERSARIAL = {  # new from old, most bits a change, most share of a dense copy
    "all one ulp up": (lambda w: w + np.uint16(1), 1.01, 0.063),
    "all random": (noise, 16.01, 1.0001),
    "80 % random": (lambda w: some(w, 0.8, noise), 17.0, 0.847),
    "30 % random": (lambda w: some(w, 0.3, noise), 19.1, 0.357),
    "1 % random": (lambda w: some(w, 0.01, noise), 24.3, 0.0155),
    "0.01 % uniform": (lambda w: some(w, 0.0001, one_flip), 20.5, 0.0002),
}


@pytest.mark.parametrize("case", ADVERSARIAL)
@pytest.mark.parametrize("classes", [ONE, STRANGE], ids=["level 1", "level 2"])
def test_adversarial_updates_stay_near_their_bound(weights, case, classes):
    change, most, share = ADVERSARIAL[case]
    new = change(weights)
    size = round_trip(weights, new, classes, BF16).size
    assert 8 * size / np.count_nonzero(new != weights) <= most
    assert size <= share * weights.nbytes


def test_adversarial_old_values():
    random = random_bits(N, np.uint16)
    zero, nan = np.zeros(N, np.uint16), np.full(N, 0x7F80, np.uint16) | np.arange(N, dtype=np.uint16) & 0x40
    normal = bf16(np.random.default_rng(0).standard_normal(N, np.float32))
    bias = bf16(np.random.default_rng(0).standard_normal(384, np.float32) * np.float32(2e-5))
    rows = np.isin(np.arange(7500 * 256) // 256, np.arange(0, 7500, 75))
    for old, new, most in (
        (random, some(random, 0.01, one_flip), 10.6),
        (zero, np.where(some(zero, 0.01, lambda z: z + np.uint16(1)) > 0, normal, zero), 24.3),
        (nan, some(nan, 0.01, lambda w: w ^ np.uint16(0x8000)), 26.2),
        (bias, some(bias, 0.4, lambda w: w + np.uint16(2)), 7.1),
        (normal[: rows.size], np.where(rows, some(normal[: rows.size], 0.3, one_flip), normal[: rows.size]), 11.1),
    ):
        size = round_trip(old, new, STRANGE, BF16).size
        assert 8 * size / np.count_nonzero(old != new) <= most


def test_the_fewest_changes_cost_the_fewest_bytes(weights):
    assert encode(weights, np.empty(0, np.int64), np.empty(0, np.uint16), STRANGE, BF16).size == 0
    for n, most in ((16, 8), (384, 9), (4096, 10), (N, 13)):
        old = weights[:n]
        new = old.copy()
        new[n // 2] += 1
        assert round_trip(old, new, STRANGE, BF16).size <= most


@pytest.mark.parametrize(("density", "bar"), [(0.0067, 7.7), (0.012, 7.1), (0.03, 6.35), (0.08, 5.5)])
def test_bits_per_change_of_a_typical_update_meet_the_bars(density, bar):
    old, positions, values = warm_update(4 << 20, STEPS[density])
    assert positions.size / old.size == pytest.approx(density, rel=0.1)
    sample = Histogram.measure(old, positions, values, BF16, stride_of(positions.size))
    sizes = {
        most: 8 * encode(old, positions, values, ClassMap.fit(sample, most), BF16).size / positions.size
        for most in (1, 8)
    }
    assert sizes[8] <= bar
    assert sizes[1] <= 11
    if positions.size >= 100_000:
        assert sizes[8] <= 1.10 * sum(exponent_context_bound(old, positions, values, BF16)) / positions.size


# Hostile bytes

REFUSALS = [  # for a part of 30 elements and one class: directory, size, then class mask, head, k, X, planes
    (b"\0", "more changes than elements"),
    (b"\3", "trailing"),
    (b"\1", "truncated"),
    (b"\1\x80\x80\x80\x80\1", "varint is too long"),
    (b"\1\x83\0", "varint is too long"),
    (b"\1\xff\xff\7", "more changes than elements"),
    (b"\1\2\1", "truncated"),
    (b"\1\0", "truncated"),
    (b"\1\1\0", "not those of the map"),
    (b"\1\2\4\0", "not those of the map"),
    (b"\1\2\1\0", "truncated"),
    (b"\1\4\1\0\0\0", "more changes than elements"),
    (b"\1\4\1\0\1\x11", "more changes than elements"),
    (b"\1\x08\1\0\x1f\0\0\0\0\0", "more changes than elements"),
    (b"\1\4\1\0\x05\0", "truncated"),
    (b"\1\4\1\7\1\0", "truncated"),
    (b"\1\6\1\2\1\0\0\0", "truncated"),
    (b"\1\6\1\2\1\0\x80\0", "a bit vector"),
    (b"\1\6\1\2\1\0\3\0", "trailing"),
    (b"\1\6\1\2\1\0\1\xff", "trailing"),
    (b"\1\7\1\2\1\0\1\0\0", "trailing"),
    (b"\1\6\1\2\1\0\1\0\1", "trailing"),
    (b"\1\7\1\2\2\x11\x33\x40\0", "wider than an element"),
]


@pytest.mark.parametrize(("data", "message"), REFUSALS)
def test_what_no_encoder_writes_is_refused(data, message):
    old, found = np.arange(30, dtype=np.uint16), np.frombuffer(data, np.uint8)
    with pytest.raises(CorruptBlockError, match=message):
        decode(found, 30, old, ONE, BF16)
    with pytest.raises(CorruptBlockError):
        reference.decode(found, old, ONE, BF16)


def test_a_step_out_of_the_type_is_refused():
    old = np.full(30, 0x7FFC, np.uint16)
    new = old.copy()
    new[3] = 0x7FFF
    data = round_trip(old, new, ONE, BF16)
    with pytest.raises(CorruptBlockError, match="moves out of its type"):
        decode(data, 30, old + np.uint16(1), ONE, BF16)


@settings(deadline=None, max_examples=400)
@given(updates(), st.data())
def test_damaged_data_is_refused_or_stays_in_bounds(update, data):
    old, new, classes, exponent = update
    bad = cpu.encode(old, *changed(old, new), classes, exponent, SMALL).copy()
    for _ in range(data.draw(st.integers(0, 4))):
        if bad.size:
            bad[data.draw(st.integers(0, min(bad.size - 1, 400)))] ^= 1 << data.draw(st.integers(0, 7))
    bad = bad[: bad.size - data.draw(st.sampled_from([0, 0, 1, 2, 9, 100]))]
    check_hostile(bad, old, classes, exponent)


@settings(deadline=None, max_examples=200)
@given(updates(), st.binary(min_size=1, max_size=60), st.integers(0, 3))
def test_arbitrary_data_is_refused_or_stays_in_bounds(update, data, blocks):
    """Random bytes behind a directory that fits, so that most of them get as far as the blocks."""
    old, _, classes, exponent = update
    old = old[: SMALL * blocks + 100]
    blocks = -(-old.size // SMALL)
    head = reference.packed([1] + [0] * (blocks - 1)) + reference.varint(len(data))
    check_hostile(np.frombuffer(head + data, np.uint8), old, classes, exponent)
    check_hostile(np.frombuffer(data, np.uint8), old, classes, exponent)


def check_hostile(data, old, classes, exponent):
    """Both twins refuse the data, or both decode the same changes inside the part."""
    try:
        positions, values = cpu.decode(data, old.size, old.dtype, old, classes, exponent, SMALL)
    except CorruptBlockError:
        with pytest.raises(CorruptBlockError):
            reference.decode(data, old, classes, exponent, SMALL)
        return
    rebuilt(old, positions, values)
    assert positions.size == values.size
    assert positions.size == 0 or 0 <= positions[0] <= positions[-1] < old.size
    specified = reference.decode(data, old, classes, exponent, SMALL)
    assert np.array_equal(positions, specified[0])
    assert np.array_equal(values, specified[1])


def test_counts_that_the_bytes_cannot_hold_allocate_nothing():
    blocks = 1 << 16
    claim = bytes([1]) + reference.varint(0) + reference.varint(BLOCK) + reference.varint(0) + bytes(40)
    data = b"\xff" * (blocks // 8) + reference.varint(len(claim)) * blocks + claim * blocks
    tracemalloc.start()
    with pytest.raises(CorruptBlockError, match="truncated"):
        decode(np.frombuffer(data, np.uint8), blocks * BLOCK, lambda at: at.astype(np.uint16), ONE, BF16, np.uint16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(data)


def test_an_old_value_that_differs_is_refused_or_bounded_to_its_block():
    old, positions, values = warm_update(3 * BLOCK, 1e-6)
    data = encode(old, positions, values, STRANGE, BF16)
    other = old.copy()
    other[BLOCK + 5] ^= 0x7F80
    try:
        found = rebuilt(old, *decode(data, old.size, other, STRANGE, BF16))
    except CorruptBlockError:
        return
    right = rebuilt(old, positions, values)
    assert set(np.flatnonzero(found != right) // BLOCK) <= {1}


# Arguments


def test_arguments_that_do_not_fit_are_refused():
    old = np.zeros(10, np.uint16)
    at, new = np.array([3]), np.array([5], np.uint16)
    for positions, values, message in (
        (np.array([10]), new, "ascending positions in 0..9"),
        (np.array([-1]), new, "ascending positions"),
        (np.array([3, 3]), np.array([1, 2], np.uint16), "ascending positions"),
        (at, np.array([0], np.uint16), "differ from the old"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(old, positions, values, ONE, BF16)
    for wrong_old, values in ((old.astype(np.int16), new), (old.astype(np.uint32), new), (old[::2], new)):
        with pytest.raises(TypeError):
            encode(wrong_old, at, values, ONE, BF16)
    for classes in (Classes((5,), (0,)), Classes((9, 5), (0, 0, 0)), Classes((255,), (0, 0)), Classes((), (16,))):
        with pytest.raises(ValueError, match="expected"):
            encode(old, at, new, classes, BF16)
    with pytest.raises(ValueError, match="exponent byte"):
        encode(old, at, new, ONE, (16, 255))
    data = encode(old, at, new, ONE, BF16)
    with pytest.raises(TypeError, match="one class only"):
        decode(data, 10, lambda at: old[at], STRANGE, BF16, np.uint16)
    with pytest.raises(ValueError, match="expected 11 old elements"):
        decode(data, 11, old, ONE, BF16)
    with pytest.raises(ValueError, match="expected 1 old elements"):
        decode(data, 10, lambda at: old, ONE, BF16, np.uint16)


# Tensors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [ONE, Classes((60, 113), (1, 0, 2))], ids=["level 1", "level 2"])
def test_tensors_give_the_same_as_arrays(kind, classes):
    dtype, exponent, _ = KINDS[kind]
    signed = {1: np.uint8, 2: np.int16, 4: np.int32}[np.dtype(dtype).itemsize]
    old = random_bits(5000, dtype)
    new = some(old, 0.05, one_flip)
    positions, values = changed(old, new)
    expected = encode(old, positions, values, classes, exponent)
    as_tensors = [torch.from_numpy(a.view(signed)) for a in (old, values)]
    data = encode(as_tensors[0], torch.from_numpy(positions), as_tensors[1], classes, exponent)
    assert data.numpy().tobytes() == expected.tobytes()
    found = decode(data, 5000, as_tensors[0], classes, exponent)
    assert np.array_equal(found[0].numpy(), positions)
    assert torch.equal(found[1], as_tensors[1])
    if classes.number == 1:
        bits = as_tensors[0]
        found = decode(data, 5000, lambda at: bits[at], classes, exponent, bits.dtype)
        assert torch.equal(found[1], as_tensors[1])


def test_tensors_that_do_not_fit_are_refused():
    old, at, new = torch.zeros(10, dtype=torch.int16), torch.tensor([3]), torch.tensor([5], dtype=torch.int16)
    for wrong in (old.to(torch.bfloat16), old.long(), torch.zeros(20, dtype=torch.int16)[::2]):
        with pytest.raises(TypeError):
            encode(wrong, at, new, ONE, BF16)
    with pytest.raises(TypeError, match=r"as many torch\.int16 values"):
        encode(old, at, new.int(), ONE, BF16)
    with pytest.raises(ValueError, match="one device"):
        encode(old, at, new.to("meta"), ONE, BF16)
    data = encode(old, at, new, ONE, BF16)
    with pytest.raises(TypeError, match="one class only"):
        decode(data, 10, lambda at: old[at], STRANGE, BF16, torch.int16)
    with pytest.raises(ValueError, match="expected 11 old elements"):
        decode(data, 11, old, ONE, BF16)
    with pytest.raises(TypeError, match="uint8 data"):
        decode(data.int(), 10, old, ONE, BF16)
