"""CPU speed of extraction and of the class codec over reading two streams, interleaved in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from bars import Bar
from synthetic_updates import STEPS, warm_update
from timing import interleaved, read_two

from slipstream.core.weights.wire.class_map import ClassMap
from slipstream.core.weights.wire.histogram import Histogram, stride_of
from slipstream.triton_kernels import extract_changes
from slipstream.triton_kernels.class_codec import BF16, decode, encode

EXTRACTION_BARS = {0.001: 1.8, 0.006: 1.8, 0.01: 1.8, 0.05: 4.0}


def extraction(elements: int, rounds: int) -> Iterator[dict[str, Any]]:
    """`extract_changes`, and torch and numpy doing the same, at the densities that have a bar."""
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 16, elements, np.uint16)
    for density in EXTRACTION_BARS:
        new = old.copy()
        new[rng.random(elements, np.float32) < density] ^= 1
        a, b = (torch.from_numpy(bits.view(np.int16)) for bits in (old, new))
        found = extract_changes(a, b)[0].numpy()
        if not np.array_equal(found, np.flatnonzero(old != new)):
            raise AssertionError("extraction missed changes")
        limit, ours, by_numpy, by_torch = interleaved(
            rounds,
            lambda new=new: read_two(old.view(np.uint64), new.view(np.uint64)),
            lambda a=a, b=b: extract_changes(a, b),
            lambda new=new: new[np.flatnonzero(old != new)],
            lambda a=a, b=b: b[(a != b).nonzero().view(-1)],
        )
        yield {
            "kind": "extraction",
            "changed %": 100 * density,
            "read GB/s": 4 * elements / limit / 1e9,
            "slipstream x limit": ours / limit,
            "numpy x limit": by_numpy / limit,
            "torch x limit": by_torch / limit,
        }


def extraction_bars(rows: list[dict[str, Any]]) -> Iterator[Bar]:
    """Times of the two-stream read."""
    for row, bar in zip(rows, EXTRACTION_BARS.values(), strict=True):
        beside = f"numpy {row['numpy x limit']:.1f}, torch {row['torch x limit']:.1f}"
        name = f"CPU extraction at {row['changed %']:g} %"
        yield Bar.at_most(name, row["slipstream x limit"], "x two-stream read", bar, beside)


def codec(elements: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Class codec with eight classes, at the densities that have a bar."""
    for density in (0.0067, 0.012):
        old, positions, values = warm_update(elements, STEPS[density])
        new = old.copy()
        new[positions] = values
        classes = ClassMap.fit(Histogram.measure(old, positions, values, BF16, stride_of(positions.size)))
        data = encode(old, positions, values, classes, BF16)
        limit, encoding, decoding = interleaved(
            rounds,
            lambda old=old, new=new: read_two(old.view(np.uint64), new.view(np.uint64)),
            lambda old=old, p=positions, v=values, c=classes: encode(old, p, v, c, BF16),
            lambda old=old, d=data, c=classes: decode(d, old.size, old, c, BF16),
        )
        yield {
            "kind": "codec speed",
            "changed %": round(100 * positions.size / elements, 3),
            "limit Gelem/s": elements / limit / 1e9,
            "encode Gelem/s": elements / encoding / 1e9,
            "decode Gelem/s": elements / decoding / 1e9,
            "encode of limit": limit / encoding,
            "decode of limit": limit / decoding,
        }


def codec_bars(rows: list[dict[str, Any]]) -> Iterator[Bar]:
    """Shares of the two-stream read."""
    for row in rows:
        at = f"level 2 at {row['changed %']:.2g} %"
        limit = f"{row['limit Gelem/s']:.1f} Gelem/s read"
        yield Bar.at_least(f"CPU encode, {at}", row["encode of limit"], "of two-stream read", 0.25, limit)
        yield Bar.at_least(f"CPU decode, {at}", row["decode of limit"], "of two-stream read", 0.125, limit)
