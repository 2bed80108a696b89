"""What can go wrong in a sync, as the user sees it."""

from __future__ import annotations


class SyncError(RuntimeError):
    """A weight sync did not happen. Engines keep the version they held; the trainer's snapshot did not advance."""


class EngineFailedError(SyncError):
    """An engine worker could not apply the update; the message carries the engine's own error."""


class SyncTimeoutError(SyncError):
    """The other end said nothing for longer than `slipstream.weight_sync.timeout_seconds`."""


class FingerprintMismatchError(SyncError):
    """An engine worker holds other bits than the trainer sent."""


class AuditMismatchError(SyncError):
    """A dense load by the engine's own loader gives other weights than the synced ones."""
