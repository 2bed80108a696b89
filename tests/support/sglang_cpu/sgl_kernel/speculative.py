"""TEST ONLY; see the package."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links of each draft tree from who is whose ancestor, as the Triton kernel of SGLang does it."""
    width = draft_token_num
    masks = tree_mask.reshape(batch_size, width, width)
    for row in range(batch_size):
        before = [[j for j in range(i) if masks[row, i, j]] for i in range(width)]
        parents = [max(ancestors, default=-1) for ancestors in before]
        for i in range(width):
            positions[row * width + i] = len(before[i]) + verified_seq_len[row]
            retrieve_index[row, i] = row * width + i
            retrieve_next_token[row, i] = next((k for k in range(i + 1, width) if i in before[k]), -1)
            siblings = (k for k in range(i + 1, width) if parents[k] == parents[i])
            retrieve_next_sibling[row, i] = next(siblings, -1) if parents[i] >= 0 else -1
