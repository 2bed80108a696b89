"""TEST ONLY: a stand-in in plain PyTorch for SGLang's kernel package, which has no build for CPUs without AMX.

It is on the path of tests that start the real SGLang engine, and nowhere else. Everything above these operators (the
scheduler, the prefix cache, the models, the control plane, the weight updates) is SGLang's own code. What the engine
touches at import and never calls here raises when it is called.

The operators do what SGLang's Triton kernels of the same names do; see `sglang.kernels.ops`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch


class _Missing:
    """Can be looked at, not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} is not in the stand-in for SGLang's kernels that tests use on a CPU")


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(f"sgl_kernel.{name}")


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """req_to_token[row, start:end] of each request = the next end - start slots of out_cache_loc."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: the next end - start slots of out_cache_loc = req_to_token[row, start:end] of each request."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        taken += end - start


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request."""
    rows = torch.arange(len(accept_lens))
    bonus_tokens.copy_(accept_tokens.reshape(-1)[accept_stride * rows + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Slots of the accepted positions (index not -1), packed to the front."""
    chosen = accept_index.reshape(-1)
    chosen = chosen[chosen > -1].long()
    accept_out_cache_loc.view(-1)[: len(chosen)] = out_cache_loc[chosen].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy rows src_loc to rows tgt_loc of each buffer (address, bytes a row); all are read before one is written."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.view(torch.int64).tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each draft tree along what the target predicts; see `verify_tree_greedy_kernel_triton`."""
    target = target_predict.reshape(-1).tolist()
    for row in range(candidates.shape[0]):
        last = int(retrive_index[row, 0])
        accept_index[row, 0] = last
        accepted, node = 0, 0
        for _ in range(1, accept_index.shape[1]):
            node = int(retrive_next_token[row, node])
            while node != -1 and int(candidates[row, node]) != target[last]:
                node = int(retrive_next_sibling[row, node])
            if node == -1:
                break
            predicts[last] = target[last]
            accepted += 1
            last = int(retrive_index[row, node])
            accept_index[row, accepted] = last
        accept_token_num[row] = accepted
        predicts[last] = target[last]


def murmur_hash32_cpu(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of 16 bytes for each (row, column): the seed's low and high half, the position, the column.

    Returns:
        uint32[rows, columns].
    """
    seeds = seed.numpy().astype(np.uint64)
    rows = (seeds, seeds >> np.uint64(32), positions.numpy())
    blocks = [block.astype(np.uint32)[:, None] for block in rows] + [col_indices.numpy().astype(np.uint32)[None, :]]
    hashed = np.zeros((len(seeds), len(col_indices)), np.uint32)
    for block in blocks:
        hashed = _rotated(hashed ^ _rotated(block * _C1, 15) * _C2, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed ^= np.uint32(16)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> np.uint32(shift)) * np.uint32(factor)
    return torch.from_numpy(hashed)


def _rotated(values: Any, bits: int) -> Any:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)


_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_LIBRARY = torch.library.Library("sgl_kernel", "DEF")
_LIBRARY.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_LIBRARY.impl("murmur_hash32_cpu", murmur_hash32_cpu, "CPU")
