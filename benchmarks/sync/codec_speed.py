"""Speed and size of the class codec on one core, against reading two versions of the weights.

    .venv/bin/python benchmarks/sync/codec_speed.py [--quick]

Every row is measured interleaved with its limit: a compiled loop that reads two streams of the same length. Best of the
rounds, in elements per second of CPU time (one thread works). The bars are 1/4 of the limit for encoding and 1/8 for
decoding, at densities up to 1.2 % and 8 classes.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from bounds import exponent_context_bound
from synthetic_updates import STEPS, warm_update
from timing import interleaved, read_two

from slipstream.core.weights.wire.class_map import ClassMap
from slipstream.core.weights.wire.histogram import Histogram, stride_of
from slipstream.triton_kernels.class_codec import BF16, decode, encode


def row(n: int, density: float, most: int, rounds: int) -> str:
    """Measure one density with at most `most` classes."""
    old, positions, values = warm_update(n, STEPS[density])
    new = old.copy()
    new[positions] = values
    sample = Histogram.measure(old, positions, values, BF16, stride_of(positions.size))
    classes = ClassMap.fit(sample, most)
    data = encode(old, positions, values, classes, BF16)
    found = decode(data, n, old, classes, BF16)
    if not (np.array_equal(found[0], positions) and np.array_equal(found[1], values)):
        raise AssertionError(f"{n} elements at {density} did not come back")
    limit, encoding, decoding, fitting = interleaved(
        rounds,
        lambda: read_two(old.view(np.uint64), new.view(np.uint64)),
        lambda: encode(old, positions, values, classes, BF16),
        lambda: decode(data, n, old, classes, BF16),
        lambda: ClassMap.fit(Histogram.measure(old, positions, values, BF16, stride_of(positions.size)), most),
    )
    bound = sum(exponent_context_bound(old, positions, values, BF16))
    bits = 8 * data.size
    return (
        f"{100 * positions.size / n:9.2f} {classes.number:8d} {bits / positions.size:9.2f} {bits / bound:8.3f}"
        f" {n / limit / 1e9:9.2f} {n / encoding / 1e9:9.2f} {limit / encoding:9.2f}"
        f" {n / decoding / 1e9:9.2f} {limit / decoding:9.2f} {1e3 * fitting:8.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and only the densities that have a bar")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    n, rounds = 32 << 20, 5 if quick else 9
    print(f"bf16, {n >> 20}M elements, one thread, best of {rounds}; speeds in 1e9 elements a second")
    print("changed %  classes  bits/chg  x bound     limit    encode  of limit    decode  of limit   fit ms")
    for density in list(STEPS)[: 2 if quick else None]:
        for most in (8, 4, 1):
            print(row(n, density, most, rounds), flush=True)


if __name__ == "__main__":
    main()
