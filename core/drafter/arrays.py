"""The drafter's memory: flat arrays of records in named tuples, as compiled code takes them.

Nothing here grows: arrays of the byte budget are reserved once, and the system gives pages as they are touched.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_BITS: Final = 8
BLOCK: Final = 1 << BLOCK_BITS
"""Positions of a block of tokens."""
MARGIN: Final = 32
"""Leading positions of a block that repeat the tokens before it, so that reading backwards never leaves it."""
BUCKET: Final = 16
"""Slots of a bucket of the context table: one cache line of uint32."""
TAG_BITS: Final = 6
"""Low bits of a slot that tell contexts of one bucket apart; the rest is a position."""
TAG_MASK: Final = (1 << TAG_BITS) - 1
MOST_BLOCKS: Final = 1 << (32 - TAG_BITS - BLOCK_BITS)
"""More blocks than this have positions that do not fit a slot."""
LONGEST_DRAFT: Final = 64
CANDIDATES: Final = 12
"""Occurrences that vote on one token."""
FILLER: Final = -1
"""Stands before the first token of a sequence; matches no token."""

Records = NDArray[Any]

BLOCK_RECORD: Final = np.dtype(
    [
        ("following", np.int32),  # the block that continues this one, or -1
        ("fill", np.int32),  # positions in use, MARGIN included; 0 when free
        ("owner", np.int32),  # its sequence, or -1
        ("everywhere", np.int32),  # 1 when other groups may be offered its tokens: responses
    ]
)
SEQUENCE_RECORD: Final = np.dtype(
    [
        ("scope_key", np.uint64),  # key of its prompt group
        ("length", np.int64),  # tokens
        ("first", np.int32),  # its blocks, or -1
        ("last", np.int32),
        ("shared", np.int32),  # tokens of its group's prompt that stand before it
        ("version", np.int32),  # policy version that wrote it
    ]
)
REQUEST_RECORD: Final = np.dtype(
    [
        ("sequence", np.int32),  # what it writes
        ("prompt", np.int32),  # the sequence of its group's prompt
        ("drafted", np.int32),  # tokens of its last draft; -1 when there is no prediction to learn from
    ]
)
PREDICTION_RECORD: Final = np.dtype(
    [
        ("top", np.int32),  # leading token, -1 without candidates
        ("count", np.int32),  # candidates
        ("probability", np.float32),  # calibrated, that `top` is right
        ("escape", np.float32),  # weight of "none of the candidates"
        ("longest", np.int32),  # bucket of its candidates' longest match
        ("cell", np.int32),  # entries of the calibration it used
        ("of_top", np.int32),
        ("of_last", np.int32),
        ("of_pair", np.int32),
        ("of_last_two", np.int32),
    ]
)
CANDIDATE_RECORD: Final = np.dtype(
    [
        ("position", np.int32),  # where its next token is
        ("match", np.int32),  # tokens before it that agree with the request
        ("skip", np.int32),  # further tokens that agree behind one edit
        ("scope", np.int32),  # see `candidates`
        ("token", np.int32),  # what it votes for, or -1
        ("weight", np.float32),
        ("by_length", np.int32),  # the factors of its weight
        ("by_skip", np.int32),
        ("by_rank", np.int32),
        ("by_pair", np.int32),
        ("by_triple", np.int32),
        ("by_token", np.int32),
        ("by_skipped", np.int32),
    ]
)


class Store(NamedTuple):
    """Every known token, and the index over them."""

    token: NDArray[np.int32]
    """int32[blocks * BLOCK]: the token at a position."""
    block: Records
    """BLOCK_RECORD[blocks]"""
    free: NDArray[np.int32]
    """int32[1 + blocks]: stack of free blocks; the first element is its height."""
    sequence: Records
    """SEQUENCE_RECORD[sequences]"""
    slots: NDArray[np.uint32]
    """uint32[buckets, BUCKET]: position << TAG_BITS | tag, latest first; 0 is empty. Buckets are a power of two."""
    counts: NDArray[np.int64]
    """int64[3]: bits of a bucket's number; slots in use; slots that other contexts displaced."""


class Rows(NamedTuple):
    """The running requests, and what was predicted at each position of their last draft."""

    request: Records
    """REQUEST_RECORD[rows]"""
    prediction: Records
    """PREDICTION_RECORD[rows, LONGEST_DRAFT + 1]"""
    candidate: Records
    """CANDIDATE_RECORD[rows, LONGEST_DRAFT + 1, CANDIDATES]"""


class Learned(NamedTuple):
    """What acceptance has taught; shared by all requests and kept for the life of a drafter. See `vote`."""

    vote: NDArray[np.float32]
    """float32[entries]: factors of candidates' weights."""
    offset: NDArray[np.float32]
    """float32[entries, 2]: logit offset, tries."""


def new_slots(bucket_bits: int) -> NDArray[np.uint32]:
    """Reserve an empty context table of 2**bucket_bits buckets."""
    return np.zeros((1 << bucket_bits, BUCKET), np.uint32)


def new_store(blocks: int, sequences: int, bucket_bits: int) -> Store:
    """Reserve a store."""
    free = np.empty(1 + blocks, np.int32)
    free[0] = blocks
    free[1:] = np.arange(blocks - 1, -1, -1)
    block = np.zeros(blocks, BLOCK_RECORD)
    block["following"] = block["owner"] = -1
    sequence = np.zeros(sequences, SEQUENCE_RECORD)
    sequence["first"] = sequence["last"] = -1
    counts = np.array([bucket_bits, 0, 0])
    return Store(np.empty(blocks * BLOCK, np.int32), block, free, sequence, new_slots(bucket_bits), counts)


def new_rows(rows: int) -> Rows:
    """Reserve the state of `rows` requests."""
    depth = LONGEST_DRAFT + 1
    request = np.zeros(rows, REQUEST_RECORD)
    request["drafted"] = -1
    return Rows(
        request, np.zeros((rows, depth), PREDICTION_RECORD), np.zeros((rows, depth, CANDIDATES), CANDIDATE_RECORD)
    )
