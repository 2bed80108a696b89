"""What can be wrong with a schedule's inputs or the arbiter's callers."""

from __future__ import annotations


class GraphError(Exception):
    """Something is wrong; the message says expected, found and what to do."""


class WorkloadError(GraphError, ValueError):
    """A workload cannot be scheduled."""


class LeaseError(GraphError):
    """A caller of the arbiter has no lease for what it asks."""
