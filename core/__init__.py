"""The framework-agnostic half of slipstream: it imports no RL framework and no rollout engine."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("slipstream-rl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
