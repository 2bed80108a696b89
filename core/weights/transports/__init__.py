"""Transports of weight sync behind one interface.

`bind` opens a trainer rank's end, `Connections` an engine worker's, from the address that the trainer hands out.
`zeromq` carries messages and frames; `shared_memory`, `ray_objects` and `torch_distributed` carry frames beside it
(`lane`).
"""

from slipstream.core.weights.transports.address import Address
from slipstream.core.weights.transports.choice import bind, check_transport
from slipstream.core.weights.transports.connections import Connections
from slipstream.core.weights.transports.interface import PublisherEndpoint, SubscriberEndpoint

__all__ = ["Address", "Connections", "PublisherEndpoint", "SubscriberEndpoint", "bind", "check_transport"]
