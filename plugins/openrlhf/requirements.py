"""What slipstream needs of an OpenRLHF command line: combinations that this version cannot serve are refused."""

from __future__ import annotations

from typing import Any

from slipstream.core.config import ConfigError, SlipstreamConfig
from slipstream.core.telemetry import check_path, check_prometheus


def check(args: Any, slipstream: SlipstreamConfig) -> None:
    """Refuse combinations that this version cannot serve, before anything starts.

    Args:
        args: OpenRLHF's arguments, as its `hierarchize` nests them.
        slipstream: the node, parsed.

    Raises:
        ConfigError: with the option, what it needs and what to do.
    """
    if slipstream.events is not None:
        check_path(slipstream.events)
    if slipstream.prometheus_port is not None:
        check_prometheus()
    if slipstream.placement.mode != "native":
        raise ConfigError(
            f"--slipstream.placement {slipstream.placement.mode}: not available for OpenRLHF in this version; remove it"
        )
    if slipstream.drafter.mode != "off":
        _needs_engines(args, f"--slipstream.drafter {slipstream.drafter.mode}", "or use --slipstream.drafter off")
    if slipstream.router.mode != "native":
        _check_router(args, f"--slipstream.router {slipstream.router.mode}", "or use --slipstream.router native")
    if slipstream.weight_sync.mode == "native":
        return
    # torch is slow to import
    from slipstream.core.weights.chain import check_chain
    from slipstream.core.weights.transports import check_transport

    check_transport(slipstream.weight_sync.transport)
    if slipstream.weight_sync.chain is not None:
        check_chain(slipstream.weight_sync.chain)
    setting, off = f"--slipstream.weight_sync {slipstream.weight_sync.mode}", "or use --slipstream.weight_sync native"
    _needs_engines(args, setting, off)
    if args.ds.lora.rank > 0:
        raise ConfigError(f"{setting} needs --ds.lora.rank 0 in this version, got {args.ds.lora.rank}; remove it {off}")
    if args.ds.load_in_4bit:
        raise ConfigError(f"{setting} needs weights that are not quantised, got --ds.load_in_4bit; remove it {off}")
    _needs_text(args, setting, off)


def _check_router(args: Any, setting: str, off: str) -> None:
    _needs_engines(args, setting, off)
    _needs_text(args, setting, off)
    if args.train.full_determinism_enable:
        raise ConfigError(
            f"{setting}: which engine serves a sample depends on timing, and each has random numbers of its own, so "
            f"--train.full_determinism_enable cannot hold; remove it {off}"
        )


def _needs_text(args: Any, setting: str, off: str) -> None:
    images = getattr(args.data, "max_images_per_prompt", 0)
    if images > 0:
        raise ConfigError(
            f"{setting} needs --data.max_images_per_prompt 0 in this version, got {images}; remove it {off}"
        )


def _needs_engines(args: Any, setting: str, off: str) -> None:
    engines = args.vllm.num_engines or 0
    if engines < 1:
        raise ConfigError(f"{setting} needs --vllm.num_engines of 1 or more, got {engines}; add it {off}")
