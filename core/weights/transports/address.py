"""What a trainer tells its engine workers about a link: `[<transport>+]<endpoint>[#<sync>]`."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = "zeromq"


class Address(NamedTuple):
    """Where a worker connects, over what, and for which sync."""

    transport: str
    """Name of the transport; `zeromq` when the text has none."""
    endpoint: str
    """ZeroMQ address of the trainer's end, `ipc://...` or `tcp://...`."""
    sync: str = ""
    """Sets the messages of this sync apart from those of others that use the same connection."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """From what `str` gives.

        Raises:
            ValueError: there is no `ipc://` or `tcp://` in it.
        """
        link, _, sync = text.partition("#")
        scheme, found, rest = link.partition("://")
        if not found:
            raise ValueError(f"expected an address such as tcp://host:port or ray+tcp://host:port, got {text!r}")
        transport, plus, scheme = scheme.rpartition("+")
        return cls(transport if plus else DEFAULT, f"{scheme}://{rest}", sync)

    @property
    def link(self) -> str:
        """The same for every sync over this connection."""
        return f"{self.transport}+{self.endpoint}"

    def __str__(self) -> str:
        prefix = "" if self.transport == DEFAULT else f"{self.transport}+"
        return f"{prefix}{self.endpoint}" + (f"#{self.sync}" if self.sync else "")
