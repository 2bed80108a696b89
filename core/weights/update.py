"""What a publisher is told, what it stages, and what it reports."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from slipstream.core.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class PublisherSettings:
    """Options of a publisher; see `slipstream.core.config.WeightSyncConfig` for their meaning."""

    timeout: float = 300.0
    """Seconds to wait for each message of a worker."""
    level: int | None = None
    """Codec level; None chooses one for each link and update."""
    chunk_bytes: int = 64 << 20
    audit_every: int = 0
    verify_every: int = 16
    dense: bool = False
    """Ship every element at every sync."""
    keep_on_device: bool = False
    history_share: float = 0.125


@dataclass
class Update:
    """Weights staged for delivery: the trainer's tensors are no longer needed after it exists."""

    target: int
    table: Checkpoint
    seed: bool
    """Every worker gets all elements."""
    raw: dict[int, torch.Tensor] = field(default_factory=dict)
    """Trainer-dtype host copies, kept for a first seed or an audit."""
    audit: bool = False
    layouts: frozenset[str] = frozenset()
    """Digests of the layouts that its changes were encoded for."""
    changed: int = 0
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(changed elements, elements) by layer, as far as it is staged; empty for a seed."""
    seconds: float = 0.0

    def count(self, name: str, changed: int, elements: int) -> None:
        """Count the changes of a checkpoint tensor."""
        self.changed += changed
        layer = layer_of(name)
        before = self.layers.get(layer, (0, 0))
        self.layers[layer] = (before[0] + changed, before[1] + elements)


@functools.lru_cache(maxsize=1 << 16)
def layer_of(name: str) -> str:
    """Return what a checkpoint tensor belongs to: its name up to the first number, or without its last part.

    For example ``model.layers.3`` for all experts of that layer, ``model.embed_tokens``, ``lm_head``.
    """
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[:-1] or parts)


def merged_layers(*layers: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return the changes by layer of several senders that hold parts of the same checkpoint."""
    total: dict[str, tuple[int, int]] = {}
    for each in layers:
        for name, (changed, elements) in each.items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + changed, before[1] + elements)
    return total


@dataclass(frozen=True)
class SyncReport:
    """What one sync did; with several trainer ranks, what this one had a part in."""

    run: int
    base: int | None
    target: int
    stage_seconds: float
    """Gathering, comparing and encoding on the trainer."""
    deliver_seconds: float
    """From the first message to the last acknowledgement."""
    payload_bytes: int
    """Bytes of frames sent, over all workers."""
    dense_bytes: int
    """What the same workers would have been sent in full, in the trainer's dtype."""
    changed_elements: int
    total_elements: int
    tensors: int
    workers: int
    seeded_workers: int
    level: int
    """Codec level of the delta; the highest, when links differ."""
    unverified_tensors: int
    """Tensors that the engine's own loader transforms: no fingerprint covers them, only an audit does."""
    audit_seconds: float = 0.0
    """Time of the audit alone; not part of `deliver_seconds`."""
    audited_tensors: int = 0
    """Engine tensors compared with a dense load and found equal; 0 when this sync was not audited."""
    late_workers: int = 0
    """Workers that had missed earlier syncs and were sent all changes since then."""
    apply_seconds: float = 0.0
    """Decoding and writing on the slowest worker; part of `deliver_seconds`."""
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(changed elements, elements) of each layer, in the order of the checkpoint; empty for a seed."""
