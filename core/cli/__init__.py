"""The ``slipstream`` command."""

from slipstream.core.cli.app import main

__all__ = ["main"]
