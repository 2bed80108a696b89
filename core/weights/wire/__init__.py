"""The wire format: frames of checkpoint-tensor changes."""

from slipstream.core.weights.wire.frame import (
    NO_BASE,
    Changes,
    CorruptFrameError,
    Identity,
    Range,
    Section,
    TensorTable,
    changes_section,
    pack_frame,
    range_section,
    unpack_frame,
)

__all__ = [
    "NO_BASE",
    "Changes",
    "CorruptFrameError",
    "Identity",
    "Range",
    "Section",
    "TensorTable",
    "changes_section",
    "pack_frame",
    "range_section",
    "unpack_frame",
]
