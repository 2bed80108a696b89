"""Weights as files: full copies (anchors) and a chain of deltas, in a directory or an object store.

For engines in other data centres, and for late joiners. A trainer writes with `ChainWriter`; any number of engines
follow with `ChainReader`, at their own pace and without a connection to the trainer; `ChainMirror` writes what live
syncs have delivered. See `docs/chain.md`.
"""

from slipstream.core.weights.chain.errors import ChainError
from slipstream.core.weights.chain.mirror import ChainMirror, MirrorReport, check_chain
from slipstream.core.weights.chain.reader import ChainReader
from slipstream.core.weights.chain.writer import ChainReport, ChainWriter

__all__ = ["ChainError", "ChainMirror", "ChainReader", "ChainReport", "ChainWriter", "MirrorReport", "check_chain"]
