"""The specification of the class codec, in plain Python; `docs/wire-format.md` says the same in prose.

A part is cut into blocks. In a block, elements are numbered inside the class of their old value's exponent (their
rank); each class stores the ranks that changed, and then how far each of them moved in units of the last place. Both
are bit vectors stored as Golomb-Rice coded gaps: quotients in a unary plane, remainders in a low plane. Magnitudes are
exponential-Golomb coded, their unary parts being such a bit vector as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptBlockError
from .classes import BLOCK, Classes, Exponent

Bits = list[int]


def monotone(bits: Any, width: int) -> Any:
    """Map bits to integers in the order of the floats they stand for; every bit pattern has its own.

    x for a clear sign bit, else -(x without it) - 1. Takes an int, or an int64 array.
    """
    sign = 1 << (8 * width - 1)
    return np.where(bits < sign, bits, sign - 1 - bits)


def bits_of(number: Any, width: int) -> Any:
    """Inverse of `monotone`."""
    return np.where(number >= 0, number, (1 << (8 * width - 1)) - 1 - number)


class BitVector(NamedTuple):
    """`n` bits of which `ones` are set, as the gaps between those of the rarer kind."""

    n: int
    ones: int

    @property
    def inverted(self) -> bool:
        """Whether the zeros are listed instead of the ones."""
        return 2 * self.ones > self.n

    @property
    def listed(self) -> int:
        """How many gaps there are."""
        return min(self.ones, self.n - self.ones)

    @property
    def low(self) -> int:
        """Low bits of a gap: the Rice parameter for gaps of the mean length, in integers only."""
        scaled, low = 266 * self.listed, 0
        while 0 < scaled <= 64 * (2 * self.n - self.listed):
            scaled, low = 2 * scaled, low + 1
        return low

    def gaps(self, ones: Iterable[int]) -> list[int]:
        """Bits skipped before each listed one; `ones` are the places of the set bits, ascending."""
        chosen = sorted(set(range(self.n)) - set(ones)) if self.inverted else list(ones)
        return [b - a - 1 for a, b in zip([-1, *chosen], chosen, strict=False)]

    def places(self, gaps: Iterable[int]) -> list[int]:
        """Inverse of `gaps`."""
        chosen, at = [], -1
        for gap in gaps:
            at += gap + 1
            if at >= self.n:
                raise CorruptBlockError("a bit vector is longer than it says")
            chosen.append(at)
        return sorted(set(range(self.n)) - set(chosen)) if self.inverted else chosen


def varint(number: int) -> bytes:
    """LEB128: seven bits a byte from the least significant, the high bit set on all but the last."""
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def lowest(number: int, width: int) -> Bits:
    """The `width` low bits, least significant first."""
    return [number >> i & 1 for i in range(width)]


def packed(bits: Bits) -> bytes:
    """Bits to bytes, least significant first, zeros at the end."""
    return bytes(sum(bit << i for i, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8))


class Reader:
    """Bytes, read as bits or as varints, to their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def bit(self) -> int:
        """The next bit."""
        if self.at >= 8 * len(self.data):
            raise CorruptBlockError("it is truncated")
        self.at += 1
        return self.data[(self.at - 1) // 8] >> (self.at - 1) % 8 & 1

    def number(self, width: int) -> int:
        """The next `width` bits."""
        return sum(self.bit() << i for i in range(width))

    def unary(self) -> int:
        """Zeros before the next one."""
        count = 0
        while not self.bit():
            count += 1
        return count

    def varint(self) -> int:
        """The next varint of at most four bytes."""
        number = 0
        for shift in range(0, 28, 7):
            byte = self.number(8)
            number |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    break
                return number
        raise CorruptBlockError("a varint is too long")

    def bytes(self, size: int) -> bytes:
        """The next `size` bytes."""
        return bytes(self.number(8) for _ in range(size))

    def end(self) -> None:
        """Check that nothing but the zeros that fill a byte is left."""
        if 8 * len(self.data) - self.at >= 8 or any(self.bit() for _ in range(8 * len(self.data) - self.at)):
            raise CorruptBlockError("it has trailing bytes")


def encode_block(old: list[int], new: dict[int, int], classes: Classes, exponent: Exponent, width: int) -> bytes:
    """Encode the changes `new` (offset in the block to bits) of a block; at least one."""
    word, table = 8 * width, classes.table()
    ranks: list[list[int]] = [[] for _ in classes.orders]
    offsets: list[list[int]] = [[] for _ in classes.orders]
    n = [0 for _ in classes.orders]
    for i, bits in enumerate(old):
        c = table[bits >> exponent.shift & exponent.mask]
        if i in new:
            ranks[c].append(n[c])
            offsets[c].append(i)
        n[c] += 1
    active = [c for c in range(classes.number) if ranks[c]]

    positions: tuple[Bits, Bits] = [], []
    magnitudes: tuple[Bits, Bits] = [], []
    signs: Bits = []
    residual: Bits = []
    absolute: Bits = []
    sums = {}

    def put(vector: BitVector, ones: Iterable[int], planes: tuple[Bits, Bits]) -> None:
        for gap in vector.gaps(ones):
            planes[0].extend([0] * (gap >> vector.low) + [1])
            planes[1].extend(lowest(gap, vector.low))

    for c in active:
        order = classes.orders[c]
        put(BitVector(n[c], len(ranks[c])), ranks[c], positions)
        string: Bits = []
        for i in offsets[c]:
            step = int(monotone(new[i], width) - monotone(old[i], width))
            magnitude = abs(step) - 1
            length = (magnitude >> order).bit_length()
            string += [0] * length + [1]
            signs.append(int(step < 0))
            residual += lowest(magnitude, order + max(length - 1, 0))
            absolute += lowest(new[i], word)
        sums[c] = len(string) - len(ranks[c])
        put(BitVector(len(string), len(ranks[c])), np.flatnonzero(string).tolist(), magnitudes)

    def block(counts: list[int], unary: Bits, low: Bits, mode: int) -> bytes:
        head = bytes([sum(1 << c for c in active)]) + varint(len(packed(unary)) << 1 | mode)
        return head + b"".join(varint(count) for count in counts) + packed(unary) + packed(low)

    by_step = block(
        [count for c in active for count in (len(ranks[c]), sums[c])],
        positions[0] + magnitudes[0],
        positions[1] + magnitudes[1] + signs + residual,
        0,
    )
    by_value = block([len(ranks[c]) for c in active], positions[0], positions[1] + absolute, 1)
    dense = b"".join(new.get(i, bits).to_bytes(width, "little") for i, bits in enumerate(old))
    smallest = by_value if len(by_value) < len(by_step) else by_step
    return dense if len(smallest) >= len(dense) else smallest


def decode_block(data: bytes, old: list[int], classes: Classes, exponent: Exponent, width: int) -> dict[int, int]:
    """Inverse of `encode_block`. A dense block gives every element, changed or not."""
    word, table = 8 * width, classes.table()
    if len(data) == len(old) * width:
        return {i: int.from_bytes(data[i * width :][:width], "little") for i in range(len(old))}
    members: list[list[int]] = [[] for _ in classes.orders]
    for i, bits in enumerate(old):
        members[table[bits >> exponent.shift & exponent.mask]].append(i)

    header = Reader(data)
    mask, head = header.number(8), header.varint()
    if not 0 < mask < 1 << classes.number:
        raise CorruptBlockError("its classes are not those of the map")
    active = [c for c in range(classes.number) if mask >> c & 1]
    counts, sums = {}, {}
    for c in active:
        counts[c] = header.varint()
        sums[c] = 0 if head & 1 else header.varint()
        if not 0 < counts[c] <= len(members[c]) or sums[c] > word * counts[c]:
            raise CorruptBlockError("it counts more changes than elements")
    unary = Reader(header.bytes(head >> 1))
    low = Reader(data[header.at // 8 :])

    def get(vector: BitVector) -> list[int]:
        if not vector.listed:
            return vector.places([])
        width_of_low = vector.low
        quotients = [unary.unary() for _ in range(vector.listed)]
        return vector.places(quotient << width_of_low | low.number(width_of_low) for quotient in quotients)

    changed = [members[c][rank] for c in active for rank in get(BitVector(len(members[c]), counts[c]))]
    if head & 1:
        new = {i: low.number(word) for i in changed}
    else:
        lengths: list[int] = []
        for c in active:
            ends = get(BitVector(counts[c] + sums[c], counts[c]))
            if ends[-1] != counts[c] + sums[c] - 1:
                raise CorruptBlockError("magnitudes do not end where they should")
            lengths += [b - a - 1 for a, b in zip([-1, *ends], ends, strict=False)]
        orders = [classes.orders[c] for c in active for _ in range(counts[c])]
        signs = [low.bit() for _ in changed]
        new = {}
        for i, length, order, sign in zip(changed, lengths, orders, signs, strict=True):
            if length > word - order:
                raise CorruptBlockError("a magnitude is wider than an element")
            below = order + max(length - 1, 0)
            magnitude = low.number(below) | (1 << below if length else 0)
            number = int(monotone(old[i], width)) + (-1 - magnitude if sign else 1 + magnitude)
            if not -(1 << (word - 1)) <= number < 1 << (word - 1):
                raise CorruptBlockError("a value moves out of its type")
            new[i] = int(bits_of(number, width))
    unary.end()
    low.end()
    return dict(sorted(new.items()))


def encode(
    old: NDArray[Any],
    positions: NDArray[np.int64],
    values: NDArray[Any],
    classes: Classes,
    exponent: Exponent,
    block: int = BLOCK,
) -> NDArray[np.uint8]:
    """Encode the changes of a part: which blocks have changes, their sizes, then the blocks. Nothing for none."""
    if positions.size == 0:
        return np.empty(0, np.uint8)
    changes: dict[int, dict[int, int]] = {}
    for position, value in zip(positions.tolist(), values.tolist(), strict=True):
        changes.setdefault(position // block, {})[position % block] = value
    stored = [int(b in changes) for b in range(-(-old.size // block))]
    blocks = [
        encode_block(old[b * block : (b + 1) * block].tolist(), changes[b], classes, exponent, old.itemsize)
        for b in sorted(changes)
    ]
    sizes = b"".join(varint(len(data)) for data in blocks)
    return np.frombuffer(packed(stored) + sizes + b"".join(blocks), np.uint8)


def decode(
    data: NDArray[np.uint8], old: NDArray[Any], classes: Classes, exponent: Exponent, block: int = BLOCK
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Inverse of `encode`."""
    if data.size == 0:
        return np.empty(0, np.int64), np.empty(0, old.dtype)
    reader = Reader(data.tobytes())
    blocks = -(-old.size // block)
    stored = [b for b in range(blocks) if reader.bit()]
    if any(reader.bit() for _ in range(-blocks % 8)) or not stored:
        raise CorruptBlockError("blocks are out of range")
    sizes = [reader.varint() for _ in stored]
    new: dict[int, int] = {}
    for b, size in zip(stored, sizes, strict=True):
        part = old[b * block : (b + 1) * block].tolist()
        if size > len(part) * old.itemsize:
            raise CorruptBlockError("a block is larger than a copy")
        found = decode_block(reader.bytes(size), part, classes, exponent, old.itemsize)
        new |= {b * block + i: bits for i, bits in found.items()}
    reader.end()
    return np.array(list(new), np.int64), np.array(list(new.values()), old.dtype)
