"""Seam tables: what an adapter relies on in somebody else's code, checked before it is relied on."""

from slipstream.core.seams.check import SeamError, check, remedy, require
from slipstream.core.seams.result import SeamResult, SeamStatus
from slipstream.core.seams.table import Seam, SeamTable
from slipstream.core.seams.versions import installed_version, installed_versions

__all__ = [
    "Seam",
    "SeamError",
    "SeamResult",
    "SeamStatus",
    "SeamTable",
    "check",
    "installed_version",
    "installed_versions",
    "remedy",
    "require",
]
