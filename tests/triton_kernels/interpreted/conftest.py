"""What the interpreter does not check by itself: the order of programs, and where they read and write."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import triton
from separate_memory import check_launch, from_numpy
from triton.runtime import interpreter

from slipstream.triton_kernels.cast_extract import gpu as cast_extract
from slipstream.triton_kernels.class_codec import gpu as class_codec
from slipstream.triton_kernels.elias_fano import gpu as elias_fano
from slipstream.triton_kernels.extract import gpu as extract


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


@pytest.fixture
def separate_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete `SeparateMemory`: no host tensor reaches a kernel, and threads take turns in the interpreter."""
    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    executor, lock = interpreter.GridExecutor, threading.Lock()
    launch = executor.__call__

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_launch(args)
        with lock, torch._C.DisableTorchFunction():
            return launch(self, *args, **kwargs)

    monkeypatch.setattr(executor, "__call__", guarded)


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program take as much as its counters hold: the interpreter's time goes by programs and tiles."""
    for module, name in ((extract, "extract"), (cast_extract, "cast_extract")):
        monkeypatch.setattr(module, name, partial(getattr(module, name), block=4096, tile=4096))
    monkeypatch.setattr(class_codec, "Cut", partial(class_codec.Cut, chunk=32768, tile=32768, gaps=4096, small=2048))
    monkeypatch.setattr(elias_fano, "Cut", partial(elias_fano.Cut, chunk=32768, tile=8192))
