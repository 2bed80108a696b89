"""What can go wrong, as the user of a drafter sees it."""

from __future__ import annotations


class DrafterError(ValueError):
    """A call that makes no sense for the requests there are; nothing was changed."""


class HistoryFileError(DrafterError):
    """A saved history that cannot be read; nothing was loaded."""
