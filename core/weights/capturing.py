"""Keep what a publisher sends: `Publisher.deliver(update, capturing(channel, folder), workers)`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipstream.core.weights.channel import PublisherChannel
from slipstream.core.weights.messages import Begin, Table, Units, decode
from slipstream.core.weights.tensors import TensorSpec
from slipstream.core.weights.units import WireUnit
from slipstream.core.weights.wire.capture import CapturedUnit, write_capture


def capturing(channel: PublisherChannel, folder: Path) -> Capturing:
    """A channel that also writes `<target version>-<peer>.slipstream` into `folder` for each update and worker.

    Wrap the channel of the first sync and pass the wrapper on to the later ones (or call `Capturing.over` with the new
    channel): only then are the units known by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return Capturing(channel, folder)


class Capturing(PublisherChannel):
    """See `capturing`."""

    def __init__(self, channel: PublisherChannel, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._specs: tuple[TensorSpec, ...] = ()
        self._units: dict[bytes, tuple[WireUnit, ...]] = {}
        self._open: dict[bytes, tuple[int, int, list[bytes]]] = {}  # peer -> (target, frames to come, frames)

    def over(self, channel: PublisherChannel) -> Capturing:
        """Go on with another channel to the same workers, under the same peer names."""
        self._channel = channel
        return self

    def send(self, peer: bytes, data: bytes) -> None:
        self._note(peer, data)
        self._channel.send(peer, data)

    def send_all(self, peers: Sequence[bytes], frame: bytes) -> None:
        for peer in peers:
            self._note(peer, frame)
        self._channel.send_all(peers, frame)

    def receive(self, timeout: float) -> tuple[bytes, bytes]:
        return self._channel.receive(timeout)

    def fail(self, error: BaseException) -> None:
        self._channel.fail(error)

    def close(self) -> None:
        self._channel.close()

    def _note(self, peer: bytes, data: bytes) -> None:
        if data.startswith(b"SLPS"):
            if peer in self._open:
                self._open[peer][2].append(data)
        else:
            message, _ = decode(data)
            if isinstance(message, Table):
                self._specs = message.specs
            elif isinstance(message, Units):
                self._units[peer] = message.units
            elif isinstance(message, Begin):
                self._open[peer] = message.target, message.frames, []
        self._write(peer)

    def _write(self, peer: bytes) -> None:
        target, left, frames = self._open.get(peer, (0, -1, []))
        if len(frames) == left:
            del self._open[peer]
            units = (
                CapturedUnit(unit.dtype, unit.numel, tuple(self._specs[tensor].name for tensor in unit.tensors))
                for unit in self._units.get(peer, ())
            )
            write_capture(self._folder / f"{target}-{peer.hex()}.slipstream", units, frames)
