"""The worker extension of OpenRLHF's engines plus the means to break it; imported inside vLLM's workers."""

from __future__ import annotations

from vllm_test_extension import TestExtension as Breakable

from slipstream.plugins.openrlhf.vllm_worker import SlipstreamWorkerExtension


class TestExtension(Breakable, SlipstreamWorkerExtension):
    """Used by name as vLLM's `worker_extension_cls`."""

    __test__ = False
