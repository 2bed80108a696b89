"""Tests here run in `.venv-sglang` (see `tests/support/environments.py`), on SGLang's own CPU code."""

import sglang_rollout

sglang_rollout.prepare()
