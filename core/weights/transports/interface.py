"""What a transport gives to trainer and engine worker: channels that outlive a sync."""

from __future__ import annotations

from typing import Protocol

from slipstream.core.weights.channel import PublisherChannel, SubscriberChannel


class PublisherEndpoint(PublisherChannel, Protocol):
    """A trainer rank's end, bound for the life of the run."""

    def invite(self, sync: str = "") -> str:
        """Begin a sync: return the address that its workers have to be given.

        Messages of any other sync are dropped from here on, and an earlier `fail` is forgotten.

        Args:
            sync: name of the sync, not used before on this endpoint; a random one by default.
        """


class SubscriberEndpoint(SubscriberChannel, Protocol):
    """An engine worker's end, connected for as long as the trainer uses the same endpoint."""

    def join(self, sync: str, timeout: float) -> None:
        """Take part in the sync of that name; a send may block for `timeout` seconds."""
