"""The transfer plan: which trainer rank sends which elements to which engine worker. See `docs/transfer-plan.md`."""

from slipstream.core.weights.plan.affine import affine_boxes
from slipstream.core.weights.plan.intersect import intersect
from slipstream.core.weights.plan.overlap import Overlap
from slipstream.core.weights.plan.planner import Receivers, Senders, plan
from slipstream.core.weights.plan.shards import Cut, block, flat_shard, fused_qkv, sharded, stacked, subtensor, window
from slipstream.core.weights.plan.transfer import Destination, Transfer, TransferPlan

__all__ = [
    "Cut",
    "Destination",
    "Overlap",
    "Receivers",
    "Senders",
    "Transfer",
    "TransferPlan",
    "affine_boxes",
    "block",
    "flat_shard",
    "fused_qkv",
    "intersect",
    "plan",
    "sharded",
    "stacked",
    "subtensor",
    "window",
]
