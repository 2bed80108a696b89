"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): the engine worker's process is killed inside a delta."""

from __future__ import annotations

import os
import signal

from breaking import before_scatters

from slipstream.plugins.verl.post_import import after_import


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


after_import("slipstream.core.weights.transaction", lambda transaction: before_scatters(transaction, _die))
