"""Composes a Hydra config the way a training command line does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from slipstream.core.config import ConfigError


def compose_config(overrides: Sequence[str], primary: str | None = None) -> Any:
    """Return the composed config.

    :param overrides: Hydra overrides.
    :param primary: the primary config as ``"package:name"``; None composes slipstream's own groups only.
    :raises ConfigError: when a setting of slipstream is overridden that only ``+slipstream=...`` would add.
    """
    try:
        if primary is None:
            with initialize(config_path=None, version_base=None):
                return compose(overrides=list(overrides))
        package, _, name = primary.partition(":")
        with initialize_config_dir(str(_folder_of(package)), version_base=None):
            return compose(name, overrides=list(overrides))
    except HydraException as error:
        settings = [each for each in overrides if each.startswith(("slipstream.", "slipstream/"))]
        if not settings or any(each.startswith("+slipstream=") for each in overrides):
            raise
        # Hydra's own advice is to write the setting with a plus, which would leave slipstream off.
        raise ConfigError(
            f"{settings[0]}: expected +slipstream=sync beside it, got none; add +slipstream=sync and leave the setting "
            "as it is, without a plus"
        ) from error


def node_of(config: Any) -> Any:
    """Return the value of the ``slipstream`` key of a composed config, or None when there is none."""
    return OmegaConf.select(config, "slipstream")


def _folder_of(package: str) -> Path:
    """Return the folder of a package without importing it: frameworks take seconds to import."""
    root, *rest = package.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"expected the package {root!r} to be installed, found none; install it")
    return Path(next(iter(spec.submodule_search_locations)), *rest)
