"""What is measured: each Triton twin with its check, torch's own way to the same result, and the bytes it must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from updates import Update

from slipstream.core.weights.wire.class_map import ClassMap
from slipstream.core.weights.wire.histogram import Histogram, stride_of
from slipstream.triton_kernels import Applied, Box, as_unsigned_numpy, undo
from slipstream.triton_kernels.cast_extract import cpu as cast_host
from slipstream.triton_kernels.cast_extract import gpu as cast
from slipstream.triton_kernels.cast_extract import reference as cast_reference
from slipstream.triton_kernels.class_codec import BF16, Classes
from slipstream.triton_kernels.class_codec import cpu as class_host
from slipstream.triton_kernels.class_codec import gpu as class_codec
from slipstream.triton_kernels.class_codec import reference as class_reference
from slipstream.triton_kernels.elias_fano import cpu as elias_fano_host
from slipstream.triton_kernels.elias_fano import gpu as elias_fano
from slipstream.triton_kernels.elias_fano import reference as elias_fano_reference
from slipstream.triton_kernels.extract import cpu as extract_host
from slipstream.triton_kernels.extract import gpu as extract
from slipstream.triton_kernels.extract import reference as extract_reference
from slipstream.triton_kernels.fingerprint import cpu as fingerprint_host
from slipstream.triton_kernels.fingerprint import gpu as fingerprint
from slipstream.triton_kernels.fingerprint import reference as fingerprint_reference
from slipstream.triton_kernels.scatter import cpu as scatter_host
from slipstream.triton_kernels.scatter import gpu as scatter
from slipstream.triton_kernels.scatter import reference as scatter_reference

SECTOR = 32
"""Bytes that a scattered element costs, for reading and again for writing."""
EXACT = 1 << 18
"""Elements up to which results are checked against `reference`; above, against the numba twin that tests hold to it."""


class Operation(NamedTuple):
    """One thing to measure."""

    name: str
    ours: Callable[[], Any]
    check: Callable[[], None]
    """Raises AssertionError when a bit of the result is wrong."""
    moved: int
    """Bytes it must move: every input and output once."""
    torch: Callable[[], Any] | None = None
    """The same by torch's operations, where there is a way."""


def same(name: str, found: Any, expected: Any) -> None:
    """Compare tensors bit for bit (whatever device), and anything else by value.

    Raises:
        AssertionError: they differ.
    """
    for a, b in zip(found, expected, strict=True):
        equal = torch.equal(a.cpu(), b.cpu()) if isinstance(a, Tensor) else a == b
        if not equal:
            raise AssertionError(f"{name}: the Triton twin is not bit for bit its reference")


def operations(update: Update) -> Iterator[Operation]:
    """Everything, on one update."""
    yield from _elementary(update)
    yield from _codecs(update)


def _elementary(update: Update) -> Iterator[Operation]:
    n, k, device = update.old.numel(), update.positions.numel(), update.old.device
    exact = n <= EXACT
    host = Update(*(t.cpu() for t in update))
    box = Box.identity(n)

    def torch_extract() -> tuple[Tensor, Tensor]:
        positions = (update.old != update.new).nonzero().view(-1)
        return positions, update.new[positions]

    yield Operation(
        "extract",
        lambda: extract.extract(update.old, update.new),
        lambda: same(
            "extract",
            extract.extract(update.old, update.new),
            (extract_reference if exact else extract_host).extract(host.old, host.new),
        ),
        4 * n + 10 * k,
        torch_extract,
    )

    masters, weights = [update.after.view(torch.int32), update.before.view(torch.int32)], update.old.clone()

    def ours_cast() -> Any:
        masters.reverse()
        return cast.cast_extract(masters[1], weights, False)

    def torch_cast() -> Any:
        masters.reverse()
        new = masters[1].view(torch.float32).bfloat16().view(torch.int16)
        positions = (weights != new).nonzero().view(-1)
        before = weights[positions]
        weights.copy_(new)
        return positions, new[positions], before

    def check_cast() -> None:
        target, twin = update.old.clone(), host.old.clone()
        found = cast.cast_extract(update.after.view(torch.int32), target, False)
        module = cast_reference if exact else cast_host
        same("cast", (*found, target), (*module.cast_extract(host.after.view(torch.int32), twin, False), twin))

    yield Operation("fused cast", ours_cast, check_cast, 6 * n + (14 + SECTOR) * k, torch_cast)

    storage = update.old.clone()

    def torch_scatter() -> Tensor:
        before = storage[update.positions]
        storage[update.positions] = update.values
        return before

    def check_scatter() -> None:
        target, twin = update.old.clone(), host.old.clone()
        found = scatter.write(target, box, update.positions, update.values)
        module = scatter_reference if exact else scatter_host
        same("scatter", (*found, target), (*module.write(twin, box, host.positions, host.values), twin))
        undo(target, found)
        same("undo", (target,), (host.old,))

    yield Operation(
        "scatter",
        lambda: scatter.write(storage, box, update.positions, update.values),
        check_scatter,
        (20 + 2 * SECTOR) * k,
        torch_scatter,
    )
    applied = Applied(update.positions, update.old[update.positions], 0)
    yield Operation("undo", lambda: undo(storage, applied), check_scatter, (10 + 2 * SECTOR) * k)

    def torch_fingerprint() -> int:
        x = (torch.arange(1, n + 1, device=device) * (fingerprint_reference.GOLDEN - (1 << 64))).contiguous()
        x = ((x ^ ((x >> 32) & 0xFFFFFFFF)) * (fingerprint_reference.SPREAD - (1 << 64))) | 1
        return int((x * (update.new.long() & 0xFFFF)).sum()) % fingerprint_reference.MODULUS

    def check_fingerprint() -> None:
        module = fingerprint_reference if exact else fingerprint_host
        expected = module.total(host.new, box)
        same("fingerprint", (fingerprint.total(update.new, box), torch_fingerprint()), (expected, expected))

    yield Operation(
        "fingerprint", lambda: fingerprint.total(update.new, box), check_fingerprint, 2 * n, torch_fingerprint
    )


def _codecs(update: Update) -> Iterator[Operation]:
    n, k = update.old.numel(), update.positions.numel()
    exact = n <= EXACT
    old, positions, values = (as_unsigned_numpy(t.cpu()) for t in (update.old, update.positions, update.values))
    positions = positions.view("i8")
    sample = Histogram.measure(old, positions, values, BF16, stride_of(k))

    def classed(level: int, classes: Classes) -> Iterator[Operation]:
        data = class_codec.encode(update.old, update.positions, update.values, classes, BF16)

        def check() -> None:
            module: Any = class_reference if exact else class_host
            expected = torch.from_numpy(module.encode(old, positions, values, classes, BF16).copy())
            found = class_codec.encode(update.old, update.positions, update.values, classes, BF16)
            same(f"class encode {level}", (found,), (expected,))
            back = class_codec.decode(found, n, torch.int16, update.old, classes, BF16)
            rebuilt = update.old.clone()
            rebuilt[back[0]] = back[1]
            same(f"class decode {level}", (rebuilt, *back), (update.new, *(update.positions, update.values)))

        read = 2 * n if classes.number > 1 else SECTOR * k
        yield Operation(
            f"encode level {level}",
            lambda: class_codec.encode(update.old, update.positions, update.values, classes, BF16),
            check,
            read + 10 * k + data.numel(),
        )
        yield Operation(
            f"decode level {level}",
            lambda: class_codec.decode(data, n, torch.int16, update.old, classes, BF16),
            check,
            read + 10 * k + data.numel(),
        )

    data = elias_fano.encode(update.positions, update.values, n, lambda: update.old)

    def check() -> None:
        if exact:
            expected = elias_fano_reference.encode(positions, values, old).copy()
        else:
            expected = elias_fano_host.encode(positions, values, n, lambda: old)
        found = elias_fano.encode(update.positions, update.values, n, lambda: update.old)
        same("encode level 0", (found,), (torch.from_numpy(expected),))
        same("decode level 0", elias_fano.decode(found, n, torch.int16), (update.positions, update.values))

    yield Operation(
        "encode level 0",
        lambda: elias_fano.encode(update.positions, update.values, n, lambda: update.old),
        check,
        10 * k + data.numel(),
    )
    yield Operation("decode level 0", lambda: elias_fano.decode(data, n, torch.int16), check, 10 * k + data.numel())
    yield from classed(1, ClassMap.fit(sample, 1))
    yield from classed(2, ClassMap.fit(sample, 8))
