"""A pytest plugin: slipstream is active in the process that runs OpenRLHF's own tests (`-p openrlhf_cpu.active`)."""

from __future__ import annotations

from slipstream.core.config import parse_config
from slipstream.plugins.openrlhf.activation import activate, carry

_config = parse_config({"weight_sync": {"mode": "delta"}})
activate(_config)
carry(_config)
