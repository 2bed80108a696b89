"""KV cache events as vLLM and SGLang publish them over ZeroMQ: [topic, 8-byte sequence number, msgpack batch]."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

DEVICE = (None, "GPU", "gpu", "device")
"""Names of the tier that a prefix hit is free on."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks entered the cache, each after the one before; the first after `parent`."""

    hashes: tuple[Hashable, ...]
    """The engine's own names."""

    parent: Hashable | None
    token_ids: tuple[int, ...]
    block_tokens: int
    plain: bool = True
    """False for blocks of a LoRA adapter or another tier, which plain prompts do not hit."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks left the cache."""

    hashes: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The cache was reset."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | BlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one message carries."""

    sequence: int
    """Counts up by one; a gap means lost events (see `PrefixIndex.lost_events`)."""

    dp_rank: int | None
    """The replica is (worker, rank) with data parallelism."""

    events: tuple[KvEvent, ...]


def decode_batch(parts: Sequence[bytes]) -> EventBatch:
    """Decode one multipart message of either engine.

    Both encode structs as arrays with the class name first: ``[timestamp, [event, ...], dp_rank]`` and
    ``["BlockStored", hashes, parent, token ids, block size, lora id, medium, ...]``. Fields that later versions append
    are ignored, and so are kinds of events that a prefix index has no use for.

    :raises ValueError: for anything else.
    """
    if len(parts) != 3 or len(parts[1]) != 8:
        raise ValueError(
            f"expected [topic, 8-byte sequence, payload], got parts of {[len(part) for part in parts]} bytes"
        )
    try:
        batch = msgspec.msgpack.decode(parts[2])
        events = tuple(event for each in batch[1] if (event := _event(each)) is not None)
    except (msgspec.DecodeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"not a batch of KV events: {error}; is the endpoint an engine's kv_events publisher?"
        ) from error
    rank = batch[2] if len(batch) > 2 else None
    return EventBatch(int.from_bytes(parts[1], "big"), rank, events)


def _event(fields: list[Any]) -> KvEvent | None:
    kind, *rest = fields
    if kind == "AllBlocksCleared":
        return BlocksCleared()
    if kind == "BlockRemoved":
        medium = rest[1] if len(rest) > 1 else None
        return BlocksRemoved(tuple(rest[0])) if medium in DEVICE else None
    if kind == "BlockStored":
        hashes, parent, token_ids, block_tokens = rest[:4]
        lora, medium = (*rest[4:6], None, None)[:2]
        return BlocksStored(tuple(hashes), parent, tuple(token_ids), block_tokens, lora is None and medium in DEVICE)
    return None
