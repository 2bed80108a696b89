"""Every transport of ours passes the conformance suite."""

from __future__ import annotations

from transport import TransportConformance


class TestZeromq(TransportConformance):
    name = "zeromq"


class TestSharedMemory(TransportConformance):
    name = "shared_memory"


class TestTorchDistributed(TransportConformance):
    name = "torch_distributed"
