"""What a publisher is told, what it stages, and what it reports."""

from __future__ import annotations

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
    seconds: float = 0.0


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
