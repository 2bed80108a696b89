"""Weight sync: only what changed travels from trainer to engine, in place, acknowledged by fingerprint.

Where to look:

- trainer: `publisher` (stage, deliver), `snapshot` (the base), `sending` (one layout: what to send, what to expect),
  `level` (codec by measured bandwidth), `delivery` (one exchange), `trainer_shards` (who holds what);
- engine worker: `subscriber` (state), `feed` (one trainer rank), `recorder` and `layout` (where tensors live),
  `transaction` (write, undo), `held` (read), `assembly` (whole tensors);
- both: `units` (what is addressed), `plan/` (who sends what to whom), `wire/` (frames and codecs), `messages`,
  `channel`, `transports/`; `chain/` is the same as files, without a connection.
"""

from slipstream.core.weights.channel import InProcessHub, PublisherChannel, SubscriberChannel
from slipstream.core.weights.engine import Engine, ModuleEngine, TensorEngine
from slipstream.core.weights.errors import (
    AuditMismatchError,
    EngineFailedError,
    FingerprintMismatchError,
    SyncError,
    SyncTimeoutError,
)
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.publisher import Publisher
from slipstream.core.weights.recorder import record_layout
from slipstream.core.weights.subscriber import Subscriber
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.trainer_shards import TrainerShards
from slipstream.core.weights.transports import Connections
from slipstream.core.weights.transports.zeromq import ZmqPublisherChannel, ZmqSubscriberChannel
from slipstream.core.weights.update import PublisherSettings, SyncReport, Update

__all__ = [
    "AuditMismatchError",
    "Connections",
    "Engine",
    "EngineFailedError",
    "FingerprintMismatchError",
    "InProcessHub",
    "LayoutMap",
    "ModuleEngine",
    "Publisher",
    "PublisherChannel",
    "PublisherSettings",
    "Subscriber",
    "SubscriberChannel",
    "SyncError",
    "SyncReport",
    "SyncTimeoutError",
    "TensorEngine",
    "TensorSpec",
    "TrainerShards",
    "Update",
    "ZmqPublisherChannel",
    "ZmqSubscriberChannel",
    "record_layout",
]
