"""What all twins of the cast share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
"""What fp32 can be rounded to."""


class CastChanges(NamedTuple):
    """What a cast changed, in order of position."""

    positions: Tensor
    """int64[n], ascending, flat row-major."""
    values: Tensor
    """int16[n], the bits that were written."""
    old_values: Tensor
    """int16[n], the bits that stood there."""
