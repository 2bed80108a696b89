"""Work on several cores: compiled kernels that release the GIL, run by a pool of Python threads.

Not numba's own `parallel=True`: its default layers end the whole process, one when two Python threads call at the same
time, the other when a forked child calls. A trainer does both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import torch

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def workers() -> int:
    """How many threads an operation uses: `torch.get_num_threads()`, so OMP_NUM_THREADS and torch decide."""
    return max(1, torch.get_num_threads())


def split(n: int, least: int) -> list[tuple[int, int]]:
    """Cut range(n) into (start, stop) pieces of at least `least`, about four per thread; one piece when small."""
    pieces = 1 if workers() == 1 else max(1, min(4 * workers(), n // least))
    bounds = [n * k // pieces for k in range(pieces + 1)]
    return list(pairwise(bounds))


def run(task: Callable[[int, int], T], ranges: list[tuple[int, int]]) -> list[T]:
    """Call `task(start, stop)` for every range and return the results in order of the ranges."""
    count = min(workers(), len(ranges))
    if count <= 1:
        return [task(start, stop) for start, stop in ranges]
    pool = _pools.get(count)
    if pool is None:
        pool = _pools.setdefault(count, ThreadPoolExecutor(count, thread_name_prefix="slipstream-kernels"))
    return list(pool.map(lambda bounds: task(*bounds), ranges))
