"""What can go wrong between a chain and its readers and writers."""

from __future__ import annotations

from slipstream.core.weights.errors import SyncError


class ChainError(SyncError):
    """A chain that is missing, damaged, written by somebody else, or of no use to this engine."""
