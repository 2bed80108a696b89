import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from slipstream.triton_kernels import extract_changes, fingerprint, threads

from .samples import changed_copy, random_bits

SIZE = 1 << 21  # two pieces


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def work(seed: int) -> int:
    old = random_bits(SIZE, torch.uint8, seed)
    positions, _ = extract_changes(old, changed_copy(old, 0.01, seed))
    return positions.numel() + fingerprint(old)


def test_pieces_cover_the_range() -> None:
    for n, least in ((0, 10), (9, 10), (10, 10), (95, 10), (10**6, 10)):
        pieces = threads.split(n, least)
        assert [i for start, stop in pieces for i in range(start, stop)] == list(range(n))
        assert len(pieces) == 1 or min(stop - start for start, stop in pieces) >= least


def test_results_come_in_order() -> None:
    assert threads.run(lambda start, stop: (start, stop), [(3, 4), (1, 2), (5, 9)]) == [(3, 4), (1, 2), (5, 9)]


def test_calls_at_the_same_time_and_after_a_fork() -> None:
    expected = [work(0), work(1)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [0, 1] * 3)) == expected * 3
    bits = torch.zeros(SIZE, dtype=torch.uint8)  # made here: torch's own threads do not outlive a fork
    child = multiprocessing.get_context("fork").Process(target=child_work, args=(bits,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def child_work(bits: torch.Tensor) -> None:
    raise SystemExit(fingerprint(bits) != 0)
