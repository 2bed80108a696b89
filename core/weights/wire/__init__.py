"""The wire format: frames of checkpoint-tensor changes."""

from slipstream.core.weights.wire.frame import (
    ANY_WIDTH,
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
    "ANY_WIDTH",
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
