"""Boxes of checkpoint tensors: who holds which, and what two of them have in common."""

from slipstream.core.weights.plan.intersect import intersect
from slipstream.core.weights.plan.overlap import Overlap
from slipstream.core.weights.plan.shards import Cut, block, flat_shard, fused_qkv, sharded, stacked, window

__all__ = ["Cut", "Overlap", "block", "flat_shard", "fused_qkv", "intersect", "sharded", "stacked", "window"]
