"""What others send for the same update: encoders and decoders over the tensors of a checkpoint.

An encoder takes the old and the new bf16 tensors by name and returns the bytes that travel, as a list of buffers; a
decoder takes those bytes and the old tensors and returns the new ones. Envelopes (pickle, sockets) are not counted,
which favours the peers; ours are counted in full.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray

Tensors = Mapping[str, torch.Tensor]
Buffers = list[bytes]


class Peer(NamedTuple):
    """One format."""

    name: str
    encode: Callable[[Tensors, Tensors], Buffers]
    decode: Callable[[Buffers, Tensors], dict[str, torch.Tensor]]


def bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    """The elements of a bf16 tensor, flat."""
    array: NDArray[np.uint16] = tensor.reshape(-1).view(torch.int16).numpy().view(np.uint16)
    return array


def _changed(old: Tensors, new: Tensors) -> list[tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """(name, positions, old values, new values) of each tensor that changed."""
    found = []
    for name, tensor in new.items():
        before, after = bits(old[name]), bits(tensor)
        positions = np.flatnonzero(before != after)
        if positions.size:
            found.append((name, positions, before[positions], after[positions]))
    return found


def _patched(old: Tensors, patches: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> dict[str, torch.Tensor]:
    """Copies of `old` with (positions, new bits) written by name."""
    result = {name: tensor.clone() for name, tensor in old.items()}
    for name, (positions, values) in patches.items():
        bits(result[name])[positions] = values
    return result


@cache
def _verl() -> tuple[Any, Any]:
    from verl.checkpoint_engine.delta_sync import encode, sparse_gather

    return encode, sparse_gather


def _verl_encode(old: Tensors, new: Tensors) -> Buffers:
    """verl's own diff, manifest, flush and checksum.

    `DeltaShardedCheckpointEngine._assemble_flush`, which puts them together, is in a module that imports cupy; the loop
    below does what it does, on host tensors.
    """
    encode, sparse_gather = _verl()
    params, indices, values = [], [], []
    at = 0
    for name, tensor in new.items():
        index, value = sparse_gather.shard_delta_indices(tensor.reshape(-1), old[name].reshape(-1), 0)
        n = index.numel()
        if n:
            params.append(encode.DeltaParam(name, "bfloat16", list(tensor.shape), 4 * at, 4 * (at + n), 4, at, at + n))
            indices.append(index.to(torch.int32))
            values.append(value)
            at += n
    positions, flat = torch.cat(indices).view(torch.uint8), torch.cat(values)
    flush = encode.DeltaFlush("indices", params, positions, flat, encode.checksum(positions, flat))
    manifest = json.dumps({"params": [vars(param) for param in params], "checksum": flush.checksum}).encode()
    payload = positions.numpy().tobytes(), flat.view(torch.int16).numpy().tobytes()
    if flush.wire_bytes != sum(map(len, payload)):
        raise AssertionError("verl counts its payload otherwise")
    return [manifest, *payload]


def _verl_decode(data: Buffers, old: Tensors) -> dict[str, torch.Tensor]:
    encode, _ = _verl()
    spec = json.loads(data[0])
    positions, values = np.frombuffer(data[1], np.uint8), np.frombuffer(data[2], np.uint16)
    both = torch.from_numpy(positions.copy()), torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    if encode.checksum(*both) != spec["checksum"]:
        raise AssertionError("verl's checksum does not hold")
    patches = {}
    for fields in spec["params"]:
        param = encode.DeltaParam(**fields)
        index = positions[param.pos_start : param.pos_end].view(np.int32)
        patches[param.name] = index, values[param.val_start : param.val_end]
    return _patched(old, patches)


def _counts(changed: list[tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]]) -> bytes:
    """Changes by tensor: the least that a receiver must be told."""
    return json.dumps({name: positions.size for name, positions, _, _ in changed}).encode()


def _int32_encode(old: Tensors, new: Tensors) -> Buffers:
    changed = _changed(old, new)
    positions = np.concatenate([item[1] for item in changed]).astype(np.int32)
    return [_counts(changed), positions.tobytes(), np.concatenate([item[3] for item in changed]).tobytes()]


def _int32_decode(data: Buffers, old: Tensors) -> dict[str, torch.Tensor]:
    positions, values = np.frombuffer(data[1], np.int32), np.frombuffer(data[2], np.uint16)
    patches, at = {}, 0
    for name, count in json.loads(data[0]).items():
        patches[name] = positions[at : at + count], values[at : at + count]
        at += count
    return _patched(old, patches)


def _gap16_encode(old: Tensors, new: Tensors) -> Buffers:
    """NeMo-RL's sparse refit: gaps in the smallest of uint16/32 that fits the tensor, XOR of the values, zstd-1."""
    changed = _changed(old, new)
    gaps: list[bytes] = []
    kinds = []
    for _, positions, _, _ in changed:
        gap = np.diff(positions, prepend=-1) - 1
        kind = "<u2" if gap.max() < 1 << 16 else "<u4"
        kinds.append(kind)
        gaps.append(gap.astype(kind).tobytes())
    xor = np.concatenate([before ^ after for _, _, before, after in changed]).tobytes()
    spec = json.dumps([(item[0], item[1].size, kind) for item, kind in zip(changed, kinds, strict=True)]).encode()
    return [_zstd(part) for part in (spec, b"".join(gaps), xor)]


def _gap16_decode(data: Buffers, old: Tensors) -> dict[str, torch.Tensor]:
    spec, gaps, xor = (_unzstd(part) for part in data)
    flips = np.frombuffer(xor, np.uint16)
    patches, at, byte = {}, 0, 0
    for name, count, kind in json.loads(spec):
        gap = np.frombuffer(gaps, kind, count, byte)
        byte += gap.nbytes
        positions = np.cumsum(gap.astype(np.int64) + 1) - 1
        patches[name] = positions, bits(old[name])[positions] ^ flips[at : at + count]
        at += count
    return _patched(old, patches)


def _zstd(data: bytes) -> bytes:
    codec = pyarrow.Codec("zstd", compression_level=1)
    return len(data).to_bytes(8, "little") + codec.compress(data, asbytes=True)


def _unzstd(data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    plain: bytes = pyarrow.Codec("zstd").decompress(data[8:], size, asbytes=True)
    return plain


def _dense_encode(old: Tensors, new: Tensors) -> Buffers:
    return [bits(tensor).tobytes() for tensor in new.values()]


def _dense_decode(data: Buffers, old: Tensors) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(np.frombuffer(part, np.int16).copy()).view(torch.bfloat16).view(tensor.shape)
        for part, (name, tensor) in zip(data, old.items(), strict=True)
    }


PEERS = (
    Peer("dense", _dense_encode, _dense_decode),
    Peer("verl delta_sharded", _verl_encode, _verl_decode),
    Peer("int32 + values", _int32_encode, _int32_decode),
    Peer("gap16 + XOR + zstd-1", _gap16_encode, _gap16_decode),
)
