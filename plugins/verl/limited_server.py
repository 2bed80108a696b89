"""verl's servers whose engines may use a share of the GPU's threads."""

from __future__ import annotations

import os
from typing import Any

from slipstream.core.config import from_environment


class LimitedServer:
    """Mixin for verl's server actors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = from_environment()
        threads = None if config is None else config.placement.engine_threads
        if threads is not None:
            # MPS reads it when a process makes its CUDA context; those of the engine are started by this one.
            os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(threads)
        super().__init__(*args, **kwargs)
