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
    """False for blocks of a LoRA adapter, with images or salt, or of another tier: plain prompts do not hit those."""


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


_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
"""Leading fields of an event that is encoded as an array."""


def decode_batch(parts: Sequence[bytes]) -> EventBatch:
    """Decode one multipart message of either engine.

    The payload is ``[timestamp, [event, ...], dp_rank]``. vLLM 0.29 encodes an event as a map with the class name under
    ``type``, SGLang 0.5.23 and older vLLM as an array that begins with it. Other fields are ignored, and so are kinds
    of events that a prefix index has no use for.

    :raises ValueError: for anything else.
    """
    if len(parts) != 3 or len(parts[1]) != 8:
        sizes = [len(part) for part in parts]
        raise ValueError(f"expected [topic, 8-byte sequence, payload], got parts of {sizes} bytes")
    try:
        batch = msgspec.msgpack.decode(parts[2])
        events = tuple(event for each in batch[1] if (event := _event(each)) is not None)
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"not a batch of KV events: {error!r}; is the endpoint an engine's kv_events publisher?"
        ) from error
    rank = batch[2] if len(batch) > 2 else None
    return EventBatch(int.from_bytes(parts[1], "big"), rank, events)


def _event(encoded: Any) -> KvEvent | None:
    if isinstance(encoded, dict):
        kind, fields = encoded["type"], encoded
    else:
        kind, *rest = encoded
        names = ("block_hashes", "medium") if kind == "BlockRemoved" else _STORED
        fields = dict(zip(names, rest, strict=False))
    if kind == "AllBlocksCleared":
        return BlocksCleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        return None
    on_device = fields.get("medium") in DEVICE
    hashes = tuple(fields["block_hashes"])
    if kind == "BlockRemoved":
        return BlocksRemoved(hashes) if on_device else None
    special = fields.get("lora_id") is not None or any(fields.get("extra_keys") or ())
    tokens = tuple(fields["token_ids"])
    parent = fields["parent_block_hash"]
    return BlocksStored(hashes, parent, tokens, fields["block_size"], on_device and not special)
