"""Names blocks of a prompt by everything up to their end, so that equal names mean equal prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

ROOT = 0
"""The key in front of a prompt's first block."""


def block_keys(
    token_ids: Sequence[int] | npt.NDArray[np.integer], block_tokens: int, parent: int = ROOT
) -> tuple[int, ...]:
    """Return a 64-bit key for each whole block: a hash of the key before it and the block's tokens.

    :param token_ids: int[tokens]; a tail shorter than a block has no key.
    :param parent: key of the block before the first one.
    """
    if block_tokens <= 0:
        raise ValueError(f"expected a positive block size, got {block_tokens}; take the engine's")
    ids = np.ascontiguousarray(token_ids, dtype="<u4")
    keys = []
    for start in range(0, ids.size - block_tokens + 1, block_tokens):
        parent = xxhash.xxh3_64_intdigest(ids[start : start + block_tokens].tobytes(), seed=parent)
        keys.append(parent)
    return tuple(keys)
