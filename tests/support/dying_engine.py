"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): the engine worker's process is killed inside a delta."""

from __future__ import annotations

import os
import signal
from typing import Any

from slipstream.plugins.verl.post_import import after_import


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


after_import("slipstream.core.weights.transaction", lambda transaction: setattr(transaction, "scatter_changes", _die))
