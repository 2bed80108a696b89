"""What the interpreter does not check by itself: the order of programs, and where they read and write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.runtime import interpreter


@pytest.fixture
def shuffled_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the programs of every launch in random order (rows of programs in theirs)."""
    builder, orders = interpreter.interpreter_builder, {}
    set_index, generator = builder.set_grid_idx, random.Random(5)

    def shuffled(x: int, y: int, z: int) -> None:
        if x == y == z == 0:
            orders["x"] = generator.sample(range(builder.grid_dim[0]), builder.grid_dim[0])
        set_index(orders["x"][x], y, z)

    monkeypatch.setattr(builder, "set_grid_idx", shuffled)
    yield
    assert orders, f"triton {triton.__version__} sets the program index in another way: mend this fixture"


@pytest.fixture
def guarded_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail when a kernel reads or writes a byte outside the storages of its tensor arguments."""
    builder, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    ranges: list[tuple[int, int]] = []
    checked = {"accesses": 0}
    initialise = executor._init_args_hst

    def remember(self: Any, args: Any, kwargs: Any) -> Any:
        found = initialise(self, args, kwargs)
        storages = [arg.untyped_storage() for arg in found[0] if isinstance(arg, torch.Tensor)]
        ranges[:] = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]
        return found

    def check(pointers: Any, mask: Any) -> None:
        wanted = np.broadcast_to(pointers.data, np.shape(mask.data))[np.asarray(mask.data, bool)].astype(np.int64)
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        inside = np.zeros(wanted.shape, bool)
        for first, last in ranges:
            inside |= (wanted >= first) & (wanted + width <= last)
        checked["accesses"] += wanted.size
        assert inside.all(), f"{np.count_nonzero(~inside)} of {wanted.size} accesses out of bounds"

    def guard(name: str, pointers_at: int, mask_at: int) -> None:
        original = getattr(builder, name)

        def guarded(*args: Any) -> Any:
            check(args[pointers_at], args[mask_at])
            return original(*args)

        monkeypatch.setattr(builder, name, guarded)

    monkeypatch.setattr(executor, "_init_args_hst", remember)
    guard("create_masked_load", 0, 1)
    guard("create_masked_store", 0, 2)
    guard("create_atomic_rmw", 1, 3)
    yield
    assert checked["accesses"], f"triton {triton.__version__} accesses memory in another way: mend this fixture"
