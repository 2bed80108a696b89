"""Weight sync's own codecs and transports, as an ordinary plugin: another distribution can replace either."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from slipstream.core.hooks import Codec, Transport, hookimpl
from slipstream.core.weights.transports import ray_objects, shared_memory, torch_distributed, zeromq
from slipstream.core.weights.wire import class_levels, elias_fano
from slipstream.triton_kernels.class_codec import MAX_CLASSES


@hookimpl
def slipstream_codecs() -> Iterable[Codec]:
    """Levels 0 to 2."""
    yield Codec(
        name="elias-fano",
        level=0,
        encoder=elias_fano.Encoder,
        decode=elias_fano.decode,
        unpack=elias_fano.unpack,
        unpack_all=elias_fano.unpack_all,
        on_device=True,
    )
    for level, most in ((1, 1), (2, MAX_CLASSES)):
        yield Codec(
            name="ulp" if level == 1 else "class",
            level=level,
            encoder=partial(class_levels.ClassEncoder, most),
            decode=class_levels.decode,
            unpack=class_levels.unpack,
            unpack_all=class_levels.unpack_all,
            dtypes=frozenset(class_levels.EXPONENTS),
            on_device=True,
        )


@hookimpl
def slipstream_transports() -> Iterable[Transport]:
    """Sockets, and three ways for frames beside them."""
    yield Transport(name="zeromq", open=zeromq.open_end)
    for module in (shared_memory, ray_objects, torch_distributed):
        yield Transport(name=module.NAME, open=module.open_end)
