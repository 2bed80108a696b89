"""Weight sync's own codec and transport, as an ordinary plugin: another distribution can replace either."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks import Codec, Transport, hookimpl
from slipstream.core.weights.transports import zeromq
from slipstream.core.weights.wire import elias_fano


@hookimpl
def slipstream_codecs() -> Iterable[Codec]:
    """Level 0."""
    yield Codec(name="elias-fano", level=0, encode=elias_fano.encode, decode=elias_fano.decode)


@hookimpl
def slipstream_transports() -> Iterable[Transport]:
    """Sockets on one node or between nodes."""
    yield Transport(name="zeromq", open=zeromq.open_end)
