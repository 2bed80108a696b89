"""`docs/wire-format.md` is enough: a decoder written from it alone, in plain Python, reads the golden frames.

Nothing here imports slipstream's codecs. It decodes what is right; what a decoder must refuse is in the other tests.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import pytest
import xxhash

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.slipstream"))
EXPONENTS = {"bfloat16": (7, 255), "float16": (10, 31), "float32": (23, 255)}
EXPONENTS |= {"float8_e4m3fn": (0, 127), "float8_e5m2": (0, 127)}


class Plane:
    """Bits from the least significant of the first byte on."""

    def __init__(self, data: bytes) -> None:
        self.bits, self.size, self.at = int.from_bytes(data, "little"), 8 * len(data), 0

    def number(self, bits: int) -> int:
        self.at += bits
        return self.bits >> (self.at - bits) & ((1 << bits) - 1)

    def runs(self, count: int) -> list[int]:
        """Lengths of the runs of zeros before each of the next `count` ones."""
        *found, _ = f"{self.bits >> self.at:b}"[::-1].split("1", count) if count else [""]
        self.at += sum(map(len, found)) + count
        return [len(zeros) for zeros in found]


def little(data: bytes, width: int) -> list[int]:
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def sections(frame: bytes) -> Iterator[tuple[int, int, int, int, int, int, bytes]]:
    """(unit, mode, width, level, first, count, payload) of each section."""
    magic, version, zero, _run, _base, _target, _index, number, size = struct.unpack_from("<4sHHQQQIIQ", frame)
    assert (magic, version, zero, len(frame)) == (b"SLPS", 2, 0, 56 + size)
    assert int.from_bytes(frame[48:56], "little") == xxhash.xxh3_64_intdigest(frame[:48] + frame[56:])
    at = 56
    for _ in range(number):
        *fields, length = struct.unpack_from("<IBBHQQQ", frame, at)
        yield (*fields, frame[at + 32 : at + 32 + length])
        at += 32 + length
    assert at == len(frame)


def level_0(data: bytes, width: int, new: list[int]) -> None:
    at = 0
    while at < len(data):
        block, word = struct.unpack_from("<II", data, at)
        count, dense, bits = (word & 0xFFFF) + 1, word >> 16 & 15, word >> 20
        first, at = 65536 * block, at + 8
        n = min(65536, len(new) - first)
        places = list(range(n))
        if not dense:
            middle = at + -(-count * bits // 8)
            low, end = Plane(data[at:middle]), middle + -(-(count + (n >> bits) + 1) // 8)
            places = [high << bits | low.number(bits) for high in accumulate(Plane(data[middle:end]).runs(count))]
            at = end
        for place, value in zip(places, little(data[at : at + count * width], width), strict=True):
            new[first + place] = value
        at += count * width


def bit_vector(n: int, ones: int, unary: Plane) -> Callable[[Plane], list[int]]:
    """Read the unary part of BV(n, ones); what is returned reads the low bits, and gives the places of the ones."""
    listed = min(ones, n - ones)
    bits = next(j for j in range(64) if not listed or 266 * listed << j > 64 * (2 * n - listed))
    runs = unary.runs(listed)

    def places(low: Plane) -> list[int]:
        found = list(accumulate((1 + (run << bits | low.number(bits)) for run in runs), initial=-1))[1:]
        return sorted({*range(n)} - {*found}) if 2 * ones > n else found

    return places


def coded_block(data: bytes, width: int, exponent: tuple[int, int], maps: list[bytes], new: list[int]) -> None:
    edges, orders = maps
    members: list[list[int]] = [[] for _ in orders]
    for index, bits in enumerate(new):
        members[sum(edge < bits >> exponent[0] & exponent[1] for edge in edges)].append(index)
    active = [c for c in range(len(orders)) if data[0] >> c & 1]
    head, at = varint(data, 1)
    counts = []
    for _ in active:
        k, at = varint(data, at)
        x, at = (0, at) if head & 1 else varint(data, at)
        counts.append((k, x))
    unary, low = Plane(data[at : at + (head >> 1)]), Plane(data[at + (head >> 1) :])
    ranks = [bit_vector(len(members[c]), k, unary) for c, (k, _) in zip(active, counts, strict=True)]
    lengths = [] if head & 1 else [bit_vector(k + x, k, unary) for k, x in counts]
    changed = [members[c][rank] for c, places in zip(active, ranks, strict=True) for rank in places(low)]
    if head & 1:
        for place in changed:
            new[place] = low.number(8 * width)
    else:
        ends = [(orders[c], [-1, *places(low)]) for c, places in zip(active, lengths, strict=True)]
        gaps = [(order, b - a - 1) for order, listed in ends for a, b in pairwise(listed)]
        signs, top = [low.number(1) for _ in changed], 1 << (8 * width - 1)
        for place, (order, length), down in zip(changed, gaps, signs, strict=True):
            magnitude = low.number(order + max(length - 1, 0)) | (1 << order + length >> 1 if length else 0)
            step = -magnitude - 1 if down else magnitude + 1
            moved = step + (-(new[place] - top) - 1 if new[place] >= top else new[place])
            new[place] = moved if moved >= 0 else top - moved - 1
    assert all(plane.size - plane.at < 8 and plane.bits >> plane.at == 0 for plane in (unary, low))


def levels_1_and_2(data: bytes, width: int, dtype: str, new: list[int]) -> None:
    maps, part = [data[1 : data[0]], data[data[0] : 2 * data[0]]], data[2 * data[0] :]
    blocks = -(-len(new) // 262144)
    at, sizes = -(-blocks // 8), {}
    for block in range(blocks):
        if part[block // 8] >> block % 8 & 1:
            sizes[block], at = varint(part, at)
    for block, size in sizes.items():
        here = new[262144 * block : 262144 * (block + 1)]
        if size == len(here) * width:
            here = little(part[at : at + size], width)
        else:
            coded_block(part[at : at + size], width, EXPONENTS[dtype], maps, here)
        new[262144 * block : 262144 * (block + 1)] = here
        at += size
    assert at == len(part)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_golden_frame(file: Path) -> None:
    capture = file.read_bytes()
    magic, table = struct.unpack_from("<4sI", capture)
    assert magic == b"SLPC"
    ((dtype, numel, (name,)),) = msgspec.msgpack.decode(capture[8 : 8 + table])
    for _unit, mode, width, level, first, count, payload in sections(capture[8 + table :]):
        new, want = (little(gzip.decompress((FOLDER / f"{name}.{w}.gz").read_bytes()), width) for w in ("old", "new"))
        assert (len(new), len(want)) == (numel, numel)
        if mode == 1:
            new[first : first + count] = little(payload, width)
        else:
            assert count == sum(map(int.__ne__, new, want))
            level_0(payload, width, new) if level == 0 else levels_1_and_2(payload, width, dtype, new)
        assert new == want
