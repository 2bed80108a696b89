"""Frames that no encoder writes but whose checksum is right: each is refused, or decodes to something in bounds.

The corpus are the golden frames (every dtype, level and mode), damaged in their section headers and payloads and sealed
again, so that the decoders are reached. `SLIPSTREAM_FUZZ=500` takes that many of each kind, at random.
"""

from __future__ import annotations

import gzip
import os
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from unit_values import Old

from slipstream.core.weights.errors import DamagedMessageError
from slipstream.core.weights.layout import Piece, TensorLayout
from slipstream.core.weights.messages import Abort, Applied, Begin, Commit, Hello, Layout, Table, Units, decode, encode
from slipstream.core.weights.tensors import DTYPES, TensorSpec
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire import CorruptFrameError, Identity, Packed, UnitTable, unpack_frame
from slipstream.core.weights.wire.capture import read_capture
from slipstream.core.weights.wire.frame import HEADER_BYTES, SECTION_BYTES
from slipstream.triton_kernels import Box, as_unsigned_numpy, scatter_packed, undo

FUZZ = int(os.environ.get("SLIPSTREAM_FUZZ", "0"))
FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.slipstream"))
IDENTITY = Identity(0x0123456789ABCDEF, 41, 42)
EXTREME = (b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", struct.pack("<Q", 1 << 40), struct.pack("<Q", 1 << 31))
ROOM = 512 << 20
"""Address space beyond what the process has; every frame here is below 600 kB and its unit below 530 kB."""


@pytest.fixture
def little_memory():
    """Whoever allocates what a frame claims gets a MemoryError, which is no CorruptFrameError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    with pytest.raises(MemoryError):
        np.empty(2 * ROOM, np.uint8)
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def sealed(frame: bytes) -> bytes:
    """The frame with the size and checksum that its body has now."""
    header = bytearray(frame[: HEADER_BYTES - 8])
    struct.pack_into("<Q", header, len(header) - 8, len(frame) - HEADER_BYTES)
    checksum = xxhash.xxh3_64_intdigest(bytes(header) + frame[HEADER_BYTES:])
    return bytes(header) + struct.pack("<Q", checksum) + frame[HEADER_BYTES:]


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """One of the ways in which a body can be wrong."""
    head, body = frame[:HEADER_BYTES], bytearray(frame[HEADER_BYTES:])
    way = rng.randrange(6)
    near = min(len(body), SECTION_BYTES + 64) if rng.random() < 0.5 else len(body)  # headers, or anywhere
    at = rng.randrange(near)
    if way == 0:
        body[at] ^= 1 << rng.randrange(8)
    elif way == 1:
        extreme = rng.choice(EXTREME)[: rng.choice((1, 2, 4, 8))]
        body[at : at + len(extreme)] = extreme
    elif way == 2:
        del body[at : at + rng.choice((1, 8, 1000))]
    elif way == 3:
        body[at:at] = rng.randbytes(rng.choice((1, 8, 1000)))
    elif way == 4:
        body[SECTION_BYTES:] = rng.randbytes(len(body) - SECTION_BYTES)
    else:
        del body[at:]
        # the section header says again how long the rest is, so that the payload itself is what is cut
        if len(body) >= SECTION_BYTES:
            struct.pack_into("<Q", body, SECTION_BYTES - 8, len(body) - SECTION_BYTES)
    return sealed(head + bytes(body))


def check_packed(section: Packed, old: np.ndarray) -> None:
    """Positions are in bounds and in order; the changes go in and come out again, or are refused without a trace."""
    positions = section.positions
    assert positions.size <= old.size
    assert not positions.size or (positions[0] >= 0 and positions[-1] < old.size)
    assert (np.diff(positions) > 0).all()
    bits = torch.from_numpy(old.copy().view(f"i{old.itemsize}" if old.itemsize > 1 else "u1"))
    try:
        applied = scatter_packed(bits, Box.identity(old.size), section.changes)
    except ValueError as error:
        assert np.array_equal(as_unsigned_numpy(bits), old)
        with pytest.raises(ValueError, match="out of its type"):
            _ = section.values
        raise CorruptFrameError(str(error)) from error
    expected = old.copy()
    expected[positions] = section.values
    assert np.array_equal(as_unsigned_numpy(bits), expected)
    undo(bits, applied)
    assert np.array_equal(as_unsigned_numpy(bits), old)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_damaged_frame_is_refused_or_stays_in_bounds(file, little_memory):
    (unit,), (frame,) = read_capture(file.read_bytes())
    width = DTYPES[unit.dtype].itemsize
    old = np.frombuffer(gzip.decompress((FOLDER / f"{unit.tensors[0]}.old.gz").read_bytes()), f"<u{width}")
    held, table = Old(old, unit.dtype), UnitTable((unit.numel,), (width,))
    assert sealed(frame) == frame
    rng = random.Random(None if FUZZ else file.stem)
    refused = 0
    for _ in range(FUZZ or 150):
        try:
            sections = unpack_frame(damaged(frame, rng), IDENTITY, 3, table, lambda _: held)
            for section in sections:
                assert section.unit == 0
                if isinstance(section, Packed):
                    check_packed(section, old)
                else:
                    assert section.values.dtype.itemsize == width
                    assert section.first + section.values.size <= unit.numel
        except CorruptFrameError:
            refused += 1
    assert refused > 20


SPEC = TensorSpec("a", (4, 2), "bfloat16")
PIECE = Piece.of(0, Box.identity(8))
MESSAGES = [
    Hello("w", 1, 2, "t"),
    Table((SPEC,), 7),
    Layout((TensorLayout("a", "bfloat16", "mapped", (PIECE,)),)),
    Units(0, (WireUnit("bfloat16", 8, (0,), (PIECE,)),)),
    Begin(1, 2, 3, 4, True, 0),
    Applied(b"12345678", 0.5, 0.5),
    Commit(True),
    Abort("why", False),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_damaged_message_is_refused_or_is_another_message(message, little_memory):
    """Sealed again after the damage; lengths that MessagePack claims (`dd`, `df`: 2^32 entries) allocate nothing."""
    body = encode(message, 9)[8:]
    rng = random.Random(None if FUZZ else type(message).__name__)
    refused = 0
    for _ in range(FUZZ or 300):
        bad = bytearray(body)
        at = rng.randrange(8, len(bad))
        extreme = rng.choice(
            (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc0", b"\x00")
        )
        bad[at : at + rng.choice((0, len(extreme)))] = extreme
        sealed_again = xxhash.xxh3_64_digest(bytes(bad)) + bytes(bad)
        try:
            found, exchange = decode(sealed_again)
        except DamagedMessageError:
            refused += 1
        else:
            assert exchange == 9
            assert encode(found, 9), "what was read can be said"
    assert refused > 20
