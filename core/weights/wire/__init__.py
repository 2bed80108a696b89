"""The wire format: frames of checkpoint-tensor changes."""

from slipstream.core.weights.wire.arrays import Bits, Places
from slipstream.core.weights.wire.frame import (
    MAGIC,
    NO_BASE,
    Changes,
    CorruptFrameError,
    Encoders,
    Identity,
    Packed,
    PackedSections,
    Range,
    Section,
    UnitTable,
    decode_frame,
    pack_frame,
    range_section,
    unpack_frame,
)
from slipstream.core.weights.wire.unit import I64, OldValues, bits_dtype

__all__ = [
    "I64",
    "MAGIC",
    "NO_BASE",
    "Bits",
    "Changes",
    "CorruptFrameError",
    "Encoders",
    "Identity",
    "OldValues",
    "Packed",
    "PackedSections",
    "Places",
    "Range",
    "Section",
    "UnitTable",
    "bits_dtype",
    "decode_frame",
    "pack_frame",
    "range_section",
    "unpack_frame",
]
