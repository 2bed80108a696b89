"""Composes a Hydra config the way a training command line does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize, initialize_config_dir
from omegaconf import OmegaConf

from slipstream.core.config import ConfigError


def compose_node(overrides: Sequence[str], primary: str | None = None) -> Any:
    """Return the value of the ``slipstream`` key of the composed config, or None when there is none.

    :param overrides: Hydra overrides.
    :param primary: the primary config as ``"package:name"``; None composes slipstream's own groups only.
    """
    if primary is None:
        with initialize(config_path=None, version_base=None):
            composed = compose(overrides=list(overrides))
    else:
        package, _, name = primary.partition(":")
        with initialize_config_dir(str(_folder_of(package)), version_base=None):
            composed = compose(name, overrides=list(overrides))
    return OmegaConf.select(composed, "slipstream")


def _folder_of(package: str) -> Path:
    """Return the folder of a package without importing it: frameworks take seconds to import."""
    root, *rest = package.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"expected the package {root!r} to be installed, found none; install it")
    return Path(next(iter(spec.submodule_search_locations)), *rest)
