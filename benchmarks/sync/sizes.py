"""Bytes of an update in every format, each stream decoded and compared bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from bars import Bar
from bounds import order_0_bound, positions_bound, values_bound
from peer_formats import PEERS, Tensors
from synthetic_updates import STEPS, warm_update

from slipstream.core.weights.chunks import change_chunks
from slipstream.core.weights.held import HeldUnit
from slipstream.core.weights.layout import LayoutMap, Piece, TensorLayout
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.trainer_shards import whole_tensors
from slipstream.core.weights.transaction import Transaction
from slipstream.core.weights.units import link_units
from slipstream.core.weights.wire import Identity, Range, UnitTable, pack_frame, unpack_frame
from slipstream.core.weights.wire.class_levels import EXPONENTS
from slipstream.triton_kernels import Box, as_bits

LEVELS = (0, 1, 2)
CHUNK = 64 << 20
SYNTHETIC_BARS = {0.0067: 7.7, 0.012: 7.1, 0.03: 6.35, 0.08: 5.5}
MANY = 100_000
"""Changes from which on the bound is the stricter one."""


@dataclass(frozen=True)
class Series:
    """Successive versions of the weights; the last step is what a row shows."""

    name: str
    versions: Sequence[Tensors]
    level_2: float | None = None
    """Bar in bits a change; None: a multiple of the bound."""
    trained: bool = False


def synthetic(elements: int) -> Iterator[Series]:
    """The fixture of the codec study: one tensor, no training."""
    for density, bar in SYNTHETIC_BARS.items():
        old, positions, values = warm_update(elements, STEPS[density])
        new = old.copy()
        new[positions] = values
        pair = [{"w": torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)} for bits in (old, new)]
        yield Series(f"synthetic {100 * density:.2g} %", pair, bar)


class End:
    """A sender and a receiver of one level, without a transport between them."""

    def __init__(self, weights: Tensors, level: int, snapshot: Snapshot) -> None:
        specs = tuple(TensorSpec.of(name, tensor) for name, tensor in weights.items())
        pieces = [(Piece.of(i, Box.identity(spec.numel)),) for i, spec in enumerate(specs)]
        tensors = tuple(
            TensorLayout(spec.name, spec.dtype, "mapped", piece) for spec, piece in zip(specs, pieces, strict=True)
        )
        link = link_units(specs, tensors, whole_tensors(specs, 1).senders, 0)
        self.link = SendingLink(link, snapshot.bits, level)
        self.link.begin(1)
        self.held = LayoutMap(specs, tensors, [as_bits(tensor.clone()).reshape(-1) for tensor in weights.values()])

    def frames(self, identity: Identity) -> list[bytes]:
        """The staged update as it would be sent."""
        self.link.finish()
        return [pack_frame(identity, i, chunk()) for i, chunk in enumerate(change_chunks(self.link.sections, CHUNK))]

    def receive(self, frames: Sequence[bytes], identity: Identity) -> list[Any]:
        """Decode and apply; the sections, positions and values."""
        units = self.link.units
        table = UnitTable(tuple(u.numel for u in units), tuple(u.width for u in units))
        sections = [
            section
            for i, frame in enumerate(frames)
            for section in unpack_frame(
                frame, identity, i, table, lambda unit: HeldUnit(units[unit], self.held.storages)
            )
        ]
        transaction = Transaction(self.held, units, SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
        for section in sections:
            transaction.write(section)
        transaction.finish()
        return sections

    def holds(self, weights: Tensors) -> bool:
        """Whether the receiver has exactly these."""
        held = zip(self.held.storages, weights.values(), strict=True)
        return all(torch.equal(bits, as_bits(tensor).reshape(-1)) for bits, tensor in held)


class Sizes(NamedTuple):
    """What one update weighs."""

    elements: int
    changes: int
    bound: float
    """Bits of the exponent-context bound."""
    order_0: float
    """Bits of the bound without context."""
    bytes: dict[str, int]
    """By format."""


def measure(series: Series) -> Sizes:
    """Send every version after the first at every level, and the last one in the peers' formats.

    Raises:
        AssertionError: a stream did not come back bit for bit.
    """
    first, *later = series.versions
    snapshot = Snapshot(keep_on_device=False)
    for index, tensor in enumerate(first.values()):
        snapshot.store(index, tensor)
    ends = {level: End(first, level, snapshot) for level in LEVELS}
    sizes: dict[str, int] = {}
    changes, bound, order_0 = 0, 0.0, 0.0
    for version, weights in enumerate(later, 1):
        identity = Identity(1, version, version + 1)
        changes = 0
        for index, tensor in enumerate(weights.values()):
            found = snapshot.advance(index, tensor)
            changes += len(found.positions)
            for end in ends.values():
                end.link.stage(index, found)
        snapshot.commit()
        for level, end in ends.items():
            frames = end.frames(identity)
            sizes[f"level {level}"] = sum(map(len, frames))
            if level == 0 and version == len(later):
                bound, order_0 = _bounds(end, frames, identity)
            end.receive(frames, identity)
            end.link.discard()
            if not end.holds(weights):
                raise AssertionError(f"{series.name}: level {level} did not come back")
    old, new = series.versions[-2], series.versions[-1]
    for peer in PEERS:
        data = peer.encode(old, new)
        back = peer.decode(data, old)
        if not all(torch.equal(as_bits(back[name]), as_bits(tensor)) for name, tensor in new.items()):
            raise AssertionError(f"{series.name}: {peer.name} did not come back")
        sizes[peer.name] = sum(map(len, data))
    return Sizes(sum(tensor.numel() for tensor in new.values()), changes, bound, order_0, sizes)


def _bounds(end: End, frames: Sequence[bytes], identity: Identity) -> tuple[float, float]:
    """Bits with the old exponent as context, and without; the receiver still holds the old version."""
    units = end.link.units
    table = UnitTable(tuple(u.numel for u in units), tuple(u.width for u in units))
    olds = [HeldUnit(unit, end.held.storages) for unit in units]
    exponent = EXPONENTS["bfloat16"]
    bits, before, after = 0.0, [], []
    for index, frame in enumerate(frames):
        for section in unpack_frame(frame, identity, index, table, olds.__getitem__):
            old = olds[section.unit].all()
            if isinstance(section, Range):
                positions, values = np.arange(section.first, section.first + section.values.size), section.values
            else:
                positions, values = section.positions, section.values
            moved = old[positions] != values
            positions, values = positions[moved], values[moved]
            bits += positions_bound(old, positions, exponent)
            before.append(old[positions])
            after.append(values)
    olds_of, news_of = np.concatenate(before), np.concatenate(after)
    elements = sum(unit.numel for unit in units)
    return bits + values_bound(olds_of, news_of, exponent), order_0_bound(elements, olds_of, news_of)


def rows(series: Series, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """One row a format."""
    dense = sizes.bytes["dense"]
    for name, size in sizes.bytes.items():
        yield {
            "kind": "size",
            "data": series.name,
            "elements": sizes.elements,
            "changed %": round(100 * sizes.changes / sizes.elements, 3),
            "format": name,
            "bytes": size,
            "bits/change": round(8 * size / sizes.changes, 3),
            "bound": round(sizes.bound / sizes.changes, 3),
            "x bound": round(8 * size / sizes.bound, 3),
            "x order-0": round(8 * size / sizes.order_0, 3),
            "dense / this": round(dense / size, 1),
        }


def bars(series: Series, sizes: Sizes) -> Iterator[Bar]:
    """What the row promises."""
    density = sizes.changes / sizes.elements
    each = {name: 8 * size / sizes.changes for name, size in sizes.bytes.items()}
    verl, nemo = each["verl delta_sharded"], each["gap16 + XOR + zstd-1"]
    peers = f"delta_sharded {verl:.1f}, gap16+XOR+zstd {nemo:.1f}"
    unit = "bits/change"
    if 0.006 <= density <= 0.016:
        order_0 = f"order-0 bound {sizes.order_0 / sizes.changes:.1f}"
        yield Bar.at_most(f"level 0, {series.name}", each["level 0"], unit, 26.5, peers)
        yield Bar.at_most(f"level 1, {series.name}", each["level 1"], unit, 11.0, f"{order_0}, {peers}")
    bound = sizes.bound / sizes.changes
    if series.level_2 is not None:
        yield Bar.at_most(f"level 2, {series.name}", each["level 2"], unit, series.level_2, f"bound {bound:.2f}")
    if series.trained:
        most = 1.10 if sizes.changes >= MANY else 1.15
        yield Bar.at_most(
            f"level 2, {series.name}", each["level 2"] / bound, "x bound", most, f"bound {bound:.2f} bits"
        )


def worst(elements: int) -> Iterator[tuple[str, int, float]]:
    """(case, level, excess bytes over 1.0001 x dense, by tensor) of updates that do not compress."""
    rng = np.random.default_rng(0)
    shapes = {"large": elements, "small": 70_000, "tiny": 3}

    def draw(share: float) -> dict[str, torch.Tensor]:
        result = {}
        for name, n in shapes.items():
            new = bits[name].copy()
            chosen = rng.random(n) < share
            new[chosen] ^= rng.integers(1, 1 << 16, int(chosen.sum()), np.uint16)
            result[name] = torch.from_numpy(new.view(np.int16)).view(torch.bfloat16)
        return result

    bits = {name: rng.integers(0, 1 << 16, n, np.uint16) for name, n in shapes.items()}
    first = {name: torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) for name, value in bits.items()}
    for share in (1.0, 0.97, 0.9, 0.8, 0.5):
        weights = draw(share)
        for level in LEVELS:
            snapshot = Snapshot(keep_on_device=False)
            for index, tensor in enumerate(first.values()):
                snapshot.store(index, tensor)
            end = End(first, level, snapshot)
            for index, tensor in enumerate(weights.values()):
                end.link.stage(index, snapshot.advance(index, tensor))
            frames = end.frames(Identity(1, 1, 2))
            end.receive(frames, Identity(1, 1, 2))
            if not end.holds(weights):
                raise AssertionError(f"{share:.0%} random, level {level} did not come back")
            dense = sum(2 * n for n in shapes.values())
            yield f"{share:.0%} random", level, (sum(map(len, frames)) - 1.0001 * dense) / len(shapes)


def worst_bars(rows: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """At most 1.0001 x dense and 64 bytes a tensor."""
    for level in LEVELS:
        most = max(row["B/tensor over 1.0001 x dense"] for row in rows if row["level"] == level)
        yield Bar.at_most(f"level {level}: worst case", most, "B/tensor over 1.0001 x dense", 64.0, "dense")
