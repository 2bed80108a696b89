"""Weight sync: only what changed travels from trainer to engine, in place, acknowledged by fingerprint."""

from slipstream.core.weights.channel import InProcessHub, PublisherChannel, SubscriberChannel
from slipstream.core.weights.engine import Engine
from slipstream.core.weights.errors import (
    AuditMismatchError,
    EngineFailedError,
    FingerprintMismatchError,
    SyncError,
    SyncTimeoutError,
)
from slipstream.core.weights.layout import LayoutMap
from slipstream.core.weights.publisher import Publisher, PublisherSettings, SyncReport, Update
from slipstream.core.weights.recorder import record_layout
from slipstream.core.weights.subscriber import Subscriber
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.trainer_shards import TrainerShards
from slipstream.core.weights.transports.zeromq import ZmqPublisherChannel, ZmqSubscriberChannel

__all__ = [
    "AuditMismatchError",
    "Engine",
    "EngineFailedError",
    "FingerprintMismatchError",
    "InProcessHub",
    "LayoutMap",
    "Publisher",
    "PublisherChannel",
    "PublisherSettings",
    "Subscriber",
    "SubscriberChannel",
    "SyncError",
    "SyncReport",
    "SyncTimeoutError",
    "TensorSpec",
    "TrainerShards",
    "Update",
    "ZmqPublisherChannel",
    "ZmqSubscriberChannel",
    "record_layout",
]
