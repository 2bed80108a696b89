"""``python -m slipstream.core.cli`` is the ``slipstream`` command."""

from slipstream.core.cli.app import main

main()
