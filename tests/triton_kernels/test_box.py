import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.triton_kernels import Box, normalise
from slipstream.triton_kernels.fingerprint.reference import places


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Slices of a contiguous tensor copied to slices of a permuted one."""
    rank = draw(st.integers(1, 5))
    whole = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    sizes = [draw(st.integers(1, size)) for size in whole]
    begins = [draw(st.integers(0, full - size)) for full, size in zip(whole, sizes, strict=True)]
    src, dst, src_step, dst_step = [0] * rank, [0] * rank, 1, 1
    for j in reversed(range(rank)):
        src[j], src_step = src_step, src_step * whole[j]
    for j in order:
        dst[j], dst_step = dst_step, dst_step * sizes[j]
    offset = sum(begin * stride for begin, stride in zip(begins, src, strict=True))
    return Box(offset, draw(st.integers(0, 9)), tuple(sizes), tuple(src), tuple(dst))


def pairs(box: Box) -> set[tuple[int, int]]:
    src, dst = places(box)
    return set(zip(src.tolist(), dst.tolist(), strict=True))


@settings(deadline=None)
@given(boxes())
def test_normalising_keeps_the_pairs_and_is_idempotent(box: Box) -> None:
    result = normalise(box)
    assert pairs(result) == pairs(box)
    assert len(pairs(result)) == box.numel == result.numel
    assert normalise(result) == result
    src, dst = places(result)
    assert (src[1:] > src[:-1]).all()
    assert result.span == src[-1] - src[0] + 1
    assert result.dst_span == dst.max() - box.dst_offset + 1


def test_contiguous_neighbours_merge_and_ones_vanish() -> None:
    assert normalise(Box(5, 7, (2, 1, 3, 4), (12, 99, 4, 1), (12, 0, 4, 1))) == Box(5, 7, (24,), (1,), (1,))
    assert normalise(Box(5, 7, (2, 3), (8, 1), (3, 1))) == Box(5, 7, (2, 3), (8, 1), (3, 1))
    assert normalise(Box(0, 0, (3, 2), (1, 3), (2, 1))) == Box(0, 0, (2, 3), (3, 1), (1, 2))


def test_single_element_and_empty_boxes_have_one_form() -> None:
    assert (
        normalise(Box(3, 4, (), (), ())) == normalise(Box(3, 4, (1, 1), (0, 9), (5, 0))) == Box(3, 4, (1,), (1,), (1,))
    )
    empty = normalise(Box(3, 4, (2, 0), (0, 1), (0, 0)))
    assert empty == Box(3, 4, (0,), (1,), (1,))
    assert (empty.numel, empty.span, empty.dst_span) == (0, 0, 0)
    assert Box.identity(0).span == 0


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (Box(0, 0, (2, 2), (1,), (2, 1)), "as many sizes"),
        (Box(-1, 0, (2,), (1,), (1,)), "offsets and sizes >= 0"),
        (Box(0, 0, (-2,), (1,), (1,)), "offsets and sizes >= 0"),
        (Box(0, 0, (2,), (0,), (1,)), "source strides"),
        (Box(0, 0, (2,), (-1,), (1,)), "source strides"),
        (Box(0, 0, (3, 4), (3, 1), (4, 1)), "got stride 3 around a span of 4"),
        (Box(0, 0, (3, 4), (4, 1), (3, 1)), "destination strides"),
        (Box(0, 0, (3, 4), (4, 1), (0, 1)), "destination strides"),
    ],
)
def test_boxes_that_do_not_invert_are_refused(box: Box, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalise(box)
