"""Let Hydra find slipstream's config groups, so that ``+slipstream=sync`` works on any Hydra command line.

Hydra imports every ``hydra_plugins.*`` package at start-up: this module must stay tiny and import nothing heavy.
"""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class SlipstreamSearchPath(SearchPathPlugin):
    """Appends the package that holds slipstream's config groups to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append ``pkg://slipstream.core.config.conf``, after the application's own config."""
        search_path.append(provider="slipstream", path="pkg://slipstream.core.config.conf")
