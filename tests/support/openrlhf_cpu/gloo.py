"""Gloo in the place of vLLM's NCCL communicator, for OpenRLHF's own broadcast of weights."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class GlooCommunicator:
    """The one method of `PyNcclCommunicator` that OpenRLHF calls."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([tensor.detach().reshape(-1).view(torch.uint8)], options).wait()


def communicator(address: str, port: int, rank: int, world_size: int, device: Any) -> GlooCommunicator:
    """Stands in for `openrlhf.utils.distributed_util.stateless_init_process_group`."""
    store = dist.TCPStore(address, port, world_size, is_master=rank == 0, wait_for_workers=False)
    return GlooCommunicator(dist.ProcessGroupGloo(store, rank, world_size, timedelta(minutes=10)))
