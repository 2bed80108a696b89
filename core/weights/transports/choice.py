"""Which transport serves a link."""

from __future__ import annotations

from slipstream.core.config import ConfigError
from slipstream.core.hooks import UnknownRecordError, plugins
from slipstream.core.weights.transports.interface import PublisherEndpoint

AUTO = "auto"
_SAME_HOST, _BETWEEN_HOSTS = "zeromq", "zeromq"
"""Shared memory did not measure better; see docs/decisions.md."""


def check_transport(setting: str) -> None:
    """Refuse a name that no plugin provides.

    Raises:
        ConfigError: with the names that there are.
    """
    if setting != AUTO:
        try:
            plugins().transport(setting)
        except UnknownRecordError as error:
            names = ", ".join([AUTO, *sorted(plugins().transports())])
            raise ConfigError(
                f"slipstream.weight_sync.transport: expected one of {names}; got {setting!r}; choose one of them, or "
                "install the plugin that provides it"
            ) from error


def bind(setting: str, endpoint: str, same_host: bool, timeout: float) -> PublisherEndpoint:
    """Open a trainer rank's end.

    Args:
        setting: `slipstream.weight_sync.transport`. `auto` is ZeroMQ, within a host as well.
        endpoint: `ipc://...` or `tcp://...` address of the connection that carries at least the messages.
        same_host: whether all workers are known to be on this host.
        timeout: seconds that a send may block.

    Raises:
        UnknownRecordError: no plugin provides it.
        Exception: the transport cannot be used here, or the address cannot be bound.
    """
    name = (_SAME_HOST if same_host else _BETWEEN_HOSTS) if setting == AUTO else setting
    end: PublisherEndpoint = plugins().transport(name).open("publisher", endpoint, timeout)
    return end
