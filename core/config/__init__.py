"""slipstream's configuration: one validated schema for every front end, and the Hydra groups that fill it.

The same ``slipstream`` node means the same thing on a Hydra command line, in an argparse front end and in the
environment variable that carries it to the processes of a run.
"""

from slipstream.core.config.errors import ConfigError
from slipstream.core.config.node import (
    RUN_NONCE,
    SLIPSTREAM_NODE,
    enabled_features,
    from_environment,
    from_json,
    parse_config,
    to_json,
    to_mapping,
    with_absolute_paths,
)
from slipstream.core.config.schema import (
    AUTO_EVENTS,
    EVENTS_FILE,
    DrafterConfig,
    PlacementConfig,
    RouterConfig,
    SlipstreamConfig,
    WeightSyncConfig,
)

__all__ = [
    "AUTO_EVENTS",
    "EVENTS_FILE",
    "RUN_NONCE",
    "SLIPSTREAM_NODE",
    "ConfigError",
    "DrafterConfig",
    "PlacementConfig",
    "RouterConfig",
    "SlipstreamConfig",
    "WeightSyncConfig",
    "enabled_features",
    "from_environment",
    "from_json",
    "parse_config",
    "to_json",
    "to_mapping",
    "with_absolute_paths",
]
