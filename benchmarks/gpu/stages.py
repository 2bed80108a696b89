"""What is measured: all that one update costs a trainer's device, and all that it costs an engine's."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from operations import SECTOR, Operation, same
from torch import Tensor
from updates import Update

from slipstream.core.weights.chunks import change_chunks
from slipstream.core.weights.held import HeldUnit
from slipstream.core.weights.layout import LayoutMap, Piece, TensorLayout
from slipstream.core.weights.sending import SendingLink
from slipstream.core.weights.snapshot import Snapshot
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.trainer_shards import whole_tensors
from slipstream.core.weights.transaction import Transaction
from slipstream.core.weights.units import link_units
from slipstream.core.weights.wire import Identity, UnitTable, pack_frame, unpack_frame
from slipstream.triton_kernels import Box
from slipstream.triton_kernels.placement import interpreting

IDENTITY = Identity(1, 1, 2)
CHUNK = 64 << 20


class End:
    """A publisher and a worker of one bf16 tensor, without the messages between them."""

    def __init__(self, update: Update, level: int) -> None:
        n, self.device = update.old.numel(), update.old.device
        specs = (TensorSpec("w", (n,), "float32"),)
        layout = TensorLayout("w", "bfloat16", "mapped", (Piece.of(0, Box.identity(n)),))
        link = link_units(specs, (layout,), whole_tensors(specs, 1).senders, 0)
        self.snapshot = Snapshot(keep_on_device=True)
        self.snapshot.store(0, update.old.view(torch.bfloat16))
        self.link = SendingLink(link, self.snapshot.bits, level)
        self.link.expected(whole=True)
        self.link.commit()
        self.held = LayoutMap(specs, (layout,), [update.old.clone()])
        self.table = UnitTable((n,), (2,))
        self.masters = [update.after, update.before]

    def stage(self) -> tuple[list[bytes], int]:
        """One update, there or back: frames and the fingerprint that the worker must report."""
        self.link.begin(1)
        self.link.stage(0, self.snapshot.advance(0, self.masters[0], torch.bfloat16))
        self.link.finish()
        frames = [pack_frame(IDENTITY, i, make()) for i, make in enumerate(change_chunks(self.link.sections, CHUNK))]
        (fingerprint,) = self.link.expected(whole=False)
        self.snapshot.commit()
        self.link.commit()
        self.masters.reverse()
        return frames, fingerprint

    def apply(self, frames: list[bytes]) -> tuple[Transaction, int]:
        """Decode, check and write an update; the transaction that takes it back, and how it moved the fingerprint."""
        units = self.link.units
        sections = [
            section
            for i, frame in enumerate(frames)
            for section in unpack_frame(
                frame, IDENTITY, i, self.table, lambda unit: HeldUnit(units[unit], self.held.storages), self.device
            )
        ]
        transaction = Transaction(self.held, units, SimpleNamespace(device=self.device))  # type: ignore[arg-type]
        for section in sections:
            transaction.write(section)
        transaction.finish()
        return transaction, transaction.deltas.get(0, 0)


def stages(update: Update) -> Iterator[Operation]:
    """Stage and apply at every level.

    torch's way is that of the 48-bit formats: cast, compare, gather, int32 positions and bf16 values to the host; and
    from the host into the weights. It checks nothing, and nothing can be taken back.
    """
    for level in (0, 1, 2):
        yield from _stages(update, level)


def _stages(update: Update, level: int) -> Iterator[Operation]:
    n, k = update.old.numel(), update.positions.numel()
    end = End(update, level)
    there, fingerprint = end.stage()
    end.stage()  # and back, so that the class maps are fitted
    size = sum(map(len, there))
    served, written, masters = update.old.clone(), update.old.clone(), [update.after, update.before]

    def check_stage() -> None:
        host = Update(*(t.cpu() for t in update))
        with interpreting(lambda t: False):
            expected = End(host, level).stage()
        same(f"stage level {level}", End(update, level).stage(), expected)

    def torch_stage() -> tuple[Tensor, Tensor]:
        new = masters[0].bfloat16().view(torch.int16)
        positions = (served != new).nonzero().view(-1)
        served.copy_(new)
        masters.reverse()
        return positions.int().cpu(), new[positions].cpu()

    def check_apply() -> None:
        transaction, moved = end.apply(there)
        before = End(update, level).link.pending_fingerprints[0]
        same(f"apply level {level}", (end.held.storages[0], (before + moved) % 2**64), (update.new, fingerprint))
        transaction.roll_back()
        same(f"undo level {level}", (end.held.storages[0],), (update.old,))

    def ours_apply() -> None:
        end.apply(there)[0].roll_back()

    message = update.positions.int().cpu(), update.values.cpu()

    def torch_apply() -> None:
        positions, values = (part.to(update.old.device) for part in message)
        written[positions.long()] = values

    ranked = 2 * n if level == 2 else 0
    staged, applied = 6 * n + ranked + (14 + SECTOR) * k + size, ranked + (20 + 4 * SECTOR) * k + size
    yield Operation(f"stage level {level}", end.stage, check_stage, staged, torch_stage)
    yield Operation(f"apply, undo {level}", ours_apply, check_apply, applied, torch_apply)
