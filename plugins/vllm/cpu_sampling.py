"""Repair of vLLM's CPU backend: temperature, top-k and top-p of drafted tokens.

vLLM 0.29 spreads these over the tokens of a row with a kernel that, without a Triton for CPUs, writes to a copy of its
output. What is verified against then is whatever lay in memory: the distribution is wrong, and tensor-parallel workers
go on with different tokens. Not so on GPUs, nor for greedy requests.
"""

from __future__ import annotations

import torch


def repair_spread() -> bool:
    """Replace the function where it does not work; whether it was replaced."""
    from vllm.v1.sample import rejection_sampler

    values, ends = torch.tensor([0.5, 0.25, 0.0]), torch.tensor([2, 2, 5], dtype=torch.int32)
    spread = rejection_sampler.expand_batch_to_tokens(values, ends, 5, replace_from=0, replace_to=1)
    if spread.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]:
        return False
    rejection_sampler.expand_batch_to_tokens = _spread
    return True


def _spread(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """x[batch] over num_tokens tokens, of which row i has those from cu_num_tokens[i - 1] to cu_num_tokens[i]."""
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(values, counts, output_size=num_tokens)
