"""Hydra config groups of slipstream; a regular package so that ``pkg://slipstream.core.config.conf`` resolves.

``+slipstream=sync`` (or ``full``) adds the ``slipstream`` node and the framework keys that activate it.
``slipstream/weight_sync=delta|dense|native`` next to it overrides the choice that ``sync`` makes; on its own,
``+slipstream/weight_sync=delta`` adds just that part. An explicit value on the command line beats every group file.
"""
