"""What can go wrong in a sync, as the user sees it."""

from __future__ import annotations


class SyncError(RuntimeError):
    """A weight sync did not happen. Unless a subclass says otherwise, engines keep the version they held and the
    trainer's snapshot did not advance."""


class AbortedError(SyncError):
    """The other end gave the sync up."""

    reseed = False
    """Whether the other trainer ranks must know that it does so to start from a seed."""


class UncertainCommitError(SyncError):
    """Every worker applied the update, but not every one confirmed the commit: some may have gone back to the old
    version. Do not generate with these engines before the next sync, which seeds those that did."""


class LayoutChangedError(SyncError):
    """Engine workers with another layout joined while an update for the old ones was staged."""


class EngineFailedError(SyncError):
    """An engine worker could not apply the update; the message carries the engine's own error."""


class SyncTimeoutError(SyncError):
    """The other end said nothing for longer than `slipstream.weight_sync.timeout_seconds`."""


class DamagedMessageError(SyncError, ValueError):
    """A control message that was damaged on the way or is of another protocol version."""


class FingerprintMismatchError(SyncError):
    """An engine worker holds other bits than the trainer sent."""


class AuditMismatchError(SyncError):
    """A dense load by the engine's own loader gives other weights than the synced ones."""
