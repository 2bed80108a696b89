"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): the engine worker fails in the middle of a delta."""

from __future__ import annotations

from breaking import break_third_scatter

from slipstream.plugins.verl.post_import import after_import

after_import("slipstream.core.weights.transaction", break_third_scatter)
