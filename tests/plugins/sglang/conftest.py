"""Tests here run in `.venv-sglang` (see `tests/support/environments.py`), on SGLang's own CPU code."""

from pathlib import Path

import environments

if environments.environment_of(Path(__file__)) is None:  # the main pytest reads this file as well
    import sglang_rollout

    sglang_rollout.prepare()
