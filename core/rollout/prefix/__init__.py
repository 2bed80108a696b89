"""Prefixes of prompts: block keys, which replica holds what, KV events, and what is shared."""

from slipstream.core.rollout.prefix.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EventBatch,
    KvEvent,
    decode_batch,
)
from slipstream.core.rollout.prefix.index import PrefixIndex
from slipstream.core.rollout.prefix.shared import SharedPrefixes

__all__ = [
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "EventBatch",
    "KvEvent",
    "PrefixIndex",
    "SharedPrefixes",
    "decode_batch",
]
