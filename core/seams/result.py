"""What the check of one seam found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SeamStatus(str, Enum):
    """Verdict on one seam, or on the version of the distribution."""

    OK = "ok"
    """As expected."""

    UNTESTED_VERSION = "version outside tested range"
    """A warning: the seams may still fit."""

    SIGNATURE_CHANGED = "signature changed"
    """The attribute exists and takes other parameters."""

    MISSING = "missing"
    """The module or the attribute does not exist, or cannot be imported."""

    NOT_INSTALLED = "not installed"
    """No distribution of that name."""


_BROKEN = (SeamStatus.SIGNATURE_CHANGED, SeamStatus.MISSING, SeamStatus.NOT_INSTALLED)


@dataclass(frozen=True)
class SeamResult:
    """One row of a seam report."""

    target: str
    """The seam's target, or the name of the distribution in the row about its version."""

    feature: str
    """The feature that needs the seam; empty in the row about the version."""

    status: SeamStatus
    """The verdict."""

    expected: str
    """What the adapter is written for."""

    found: str
    """What this environment has."""

    note: str = ""
    """What the adapter does with the seam."""

    @property
    def broken(self) -> bool:
        """Whether the feature cannot work; a version outside the tested range is only a warning."""
        return self.status in _BROKEN
