"""The wire format: frames of checkpoint-tensor changes."""

from slipstream.core.weights.wire.frame import (
    NO_BASE,
    Changes,
    CorruptFrameError,
    Identity,
    Range,
    Section,
    UnitTable,
    changes_section,
    pack_frame,
    range_section,
    unpack_frame,
)
from slipstream.core.weights.wire.unit import I64, Bits, OldValues, bits_dtype

__all__ = [
    "I64",
    "NO_BASE",
    "Bits",
    "Changes",
    "CorruptFrameError",
    "Identity",
    "OldValues",
    "Range",
    "Section",
    "UnitTable",
    "bits_dtype",
    "changes_section",
    "pack_frame",
    "range_section",
    "unpack_frame",
]
