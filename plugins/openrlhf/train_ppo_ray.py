"""OpenRLHF's `openrlhf.cli.train_ppo_ray` with slipstream: the same options, and those of slipstream.

python -m slipstream.plugins.openrlhf.train_ppo_ray --slipstream.weight_sync delta <the usual arguments>
"""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
from collections.abc import Callable
from typing import Any

from slipstream.core.config import ConfigError, SlipstreamConfig, enabled_features
from slipstream.core.seams import SeamError
from slipstream.plugins.openrlhf.options import add_options, parse_options

CLI = "openrlhf.cli.train_ppo_ray"


def main() -> None:
    """Run the command line of this process; ends it with status 2 for what slipstream refuses."""
    asks_help = any(argument in ("-h", "--help") for argument in sys.argv[1:])
    try:
        config = SlipstreamConfig() if asks_help else parse_options(sys.argv[1:])[0]
        if enabled_features(config):
            from slipstream.plugins.openrlhf.activation import activate

            activate(config)
    except (ConfigError, SeamError) as error:
        _refuse(error)
    # OpenRLHF builds its parser under `if __name__ == "__main__"`, so this is the only way to see it.
    argparse.ArgumentParser.parse_args = _parsing(argparse.ArgumentParser.parse_args, config)  # type: ignore[method-assign]
    runpy.run_module(CLI, run_name="__main__", alter_sys=True)


def _parsing(parse_args: Callable[..., Any], config: SlipstreamConfig) -> Any:
    """Wrap the first `parse_args`, which is OpenRLHF's: it knows our options, and does not see them."""

    @functools.wraps(parse_args)
    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> argparse.Namespace:
        argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]
        add_options(self)
        parsed: argparse.Namespace = parse_args(self, *args, **kwargs)
        for name in [name for name in vars(parsed) if name.startswith("slipstream.")]:
            delattr(parsed, name)
        from openrlhf.utils.config import hierarchize
        from slipstream.plugins.openrlhf.activation import carry
        from slipstream.plugins.openrlhf.requirements import check

        try:
            arguments = hierarchize(parsed)
            check(arguments, config)
            if enabled_features(config):
                carry(config, arguments.ckpt.output_dir)
        except ConfigError as error:
            _refuse(error)
        return parsed

    return parse


def _refuse(error: Exception) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
