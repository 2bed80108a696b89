"""The connections of one engine worker, kept from sync to sync: setting one up costs three round trips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slipstream.core.hooks import plugins
from slipstream.core.weights.channel import SubscriberChannel
from slipstream.core.weights.transports.address import Address
from slipstream.core.weights.transports.interface import SubscriberEndpoint


class Connections:
    """Connections to the trainer ranks of the last sync. Not for several syncs at a time."""

    def __init__(self) -> None:
        self._open: dict[str, SubscriberEndpoint] = {}

    @contextmanager
    def joined(self, addresses: Sequence[str], timeout: float) -> Iterator[Sequence[SubscriberChannel]]:
        """Channels to the trainer ranks at `addresses`, for one sync.

        Connections that are not among them are closed. After an error all are, so that nothing of the failed sync is
        left in them; a trainer that has started again needs nothing of the kind.

        Args:
            addresses: see `Address`.
            timeout: seconds that a send may block.

        Raises:
            ValueError: it is not an address.
            UnknownRecordError: no plugin provides that transport.
        """
        try:
            parsed = [Address.parse(text) for text in addresses]
            for gone in self._open.keys() - {address.link for address in parsed}:
                self._open.pop(gone).close()
            for address in parsed:
                if address.link not in self._open:
                    transport = plugins().transport(address.transport)
                    self._open[address.link] = transport.open("subscriber", address.endpoint, timeout)
                self._open[address.link].join(address.sync, timeout)
            yield [self._open[address.link] for address in parsed]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1].close()
