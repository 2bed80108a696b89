"""The hook specifications, one class per noun; this module holds nothing but specifications.

A distribution announces a plugin module in its ``pyproject.toml``::

    [project.entry-points."slipstream"]
    my-plugin = "my_package.my_plugin"

Each example below is such a module, complete. Provider hooks return records; they fire once, the first time a process
asks for a record of that kind. Event hooks return nothing and fire in the process that the docstring names; an
exception raised by an implementation propagates to the run.
"""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.core.hooks.events import RolloutFinished, Stage, WeightSyncFinished, WeightSyncStarted
from slipstream.core.hooks.markers import hookspec
from slipstream.core.hooks.records import Codec, Drafter, Engine, Framework, RoutingPolicy, Scheduler, Transport


class CodecSpecs:
    """Hooks about the wire format of a weight delta."""

    @hookspec
    def slipstream_codecs(self) -> Iterable[Codec]:
        """Provide codecs; fires in trainers and engine workers before the first weight sync.

        Example::

            import numpy as np

            from slipstream.core.hooks import Codec, hookimpl

            class Plain:
                def encode(self, old, positions, values):
                    return np.frombuffer(positions.tobytes() + values.tobytes(), np.uint8)

                def finish(self):
                    pass

            def decode(data, old):
                count = data.size // (8 + old.at(np.zeros(1, np.int64)).itemsize)
                values = data[8 * count :].view(old.at(np.zeros(1, np.int64)).dtype)
                return data[: 8 * count].view(np.int64), values

            @hookimpl
            def slipstream_codecs():
                yield Codec(name="plain", level=9, encoder=Plain, decode=decode)
        """
        return ()


class TransportSpecs:
    """Hooks about the links between trainer and engine workers."""

    @hookspec
    def slipstream_transports(self) -> Iterable[Transport]:
        """Provide transports; fires in trainers and engine workers before the first link is opened.

        Example::

            from slipstream.core.hooks import Transport, hookimpl

            def open_end(role, endpoint, timeout):
                from slipstream.core.weights.transports import zeromq

                print(f"{role} at {endpoint}")
                return zeromq.open_end(role, endpoint, timeout)

            @hookimpl
            def slipstream_transports():
                yield Transport(name="talkative", open=open_end)
        """
        return ()


class DrafterSpecs:
    """Hooks about speculative decoding."""

    @hookspec
    def slipstream_drafters(self) -> Iterable[Drafter]:
        """Provide drafters; fires in an engine process when it starts with a drafter switched on.

        Example::

            from slipstream.core.hooks import Drafter, hookimpl

            class RepeatLastToken:
                def propose(self, tokens, count):
                    return [tokens[-1]] * count

            @hookimpl
            def slipstream_drafters():
                yield Drafter(name="repeat", factory=RepeatLastToken)
        """
        return ()


class RoutingSpecs:
    """Hooks about which replica serves a request."""

    @hookspec
    def slipstream_routing_policies(self) -> Iterable[RoutingPolicy]:
        """Provide routing policies; fires in the router's process when it starts.

        Example::

            import random

            from slipstream.core.hooks import RoutingPolicy, hookimpl

            class Uniform:
                def __init__(self, replicas):
                    self.replicas = replicas

                def route(self, request_id):
                    return random.Random(request_id).choice(self.replicas)

            @hookimpl
            def slipstream_routing_policies():
                yield RoutingPolicy(name="uniform", factory=Uniform)
        """
        return ()


class SchedulerSpecs:
    """Hooks about which stage runs where."""

    @hookspec
    def slipstream_schedulers(self) -> Iterable[Scheduler]:
        """Provide schedulers; fires in the arbiter's process when it starts.

        Example::

            from slipstream.core.hooks import Scheduler, hookimpl

            class FirstComeFirstServed:
                def next_stage(self, waiting):
                    return waiting[0]

            @hookimpl
            def slipstream_schedulers():
                yield Scheduler(name="fifo", factory=FirstComeFirstServed)
        """
        return ()


class EngineSpecs:
    """Hooks about rollout engines."""

    @hookspec
    def slipstream_engines(self) -> Iterable[Engine]:
        """Provide engine adapters; fires in the command line tool and before an engine is patched.

        Example::

            from slipstream.core.hooks import Engine, hookimpl
            from slipstream.core.seams import Seam, SeamTable

            def seams():
                return SeamTable(
                    owner="echo",
                    distribution="pluggy",
                    versions=">=1.0",
                    tested=("1.5.0",),
                    seams=(Seam("pluggy:PluginManager.register", "weight_sync", "(plugin, name)"),),
                )

            @hookimpl
            def slipstream_engines():
                yield Engine(name="echo", distribution="pluggy", seams=seams)
        """
        return ()


class FrameworkSpecs:
    """Hooks about training frameworks."""

    @hookspec
    def slipstream_frameworks(self) -> Iterable[Framework]:
        """Provide framework adapters; fires in the command line tool and before a framework is patched.

        Example::

            from slipstream.core.hooks import Framework, hookimpl
            from slipstream.core.seams import SeamTable

            def seams():
                return SeamTable(owner="toy", distribution="pluggy", versions=">=1.0", tested=(), seams=())

            def demo(model=None, arguments=()):
                print("training", model)
                return 0

            @hookimpl
            def slipstream_frameworks():
                yield Framework(name="toy", distribution="pluggy", seams=seams, demo=demo)
        """
        return ()


class WeightSyncSpecs:
    """Events of a weight sync."""

    @hookspec
    def slipstream_before_weight_sync(self, event: WeightSyncStarted) -> None:
        """Observe the start of a sync; fires in the trainer's first rank, before anything is extracted.

        Example::

            from slipstream.core.hooks import hookimpl

            @hookimpl
            def slipstream_before_weight_sync(event):
                print(f"sync {event.base_version} -> {event.target_version} for {event.workers} workers")
        """

    @hookspec
    def slipstream_after_weight_sync(self, event: WeightSyncFinished) -> None:
        """Observe the end of a sync; fires in the trainer's first rank, after the last acknowledgement.

        It does not fire for a sync that failed: that one raises.

        Example::

            from slipstream.core.hooks import hookimpl

            @hookimpl
            def slipstream_after_weight_sync(event):
                print(f"{event.payload_bytes} of {event.dense_bytes} bytes in {event.seconds:.2f} s")
        """

    @hookspec
    def slipstream_weights_changed(self, version: int) -> None:
        """React to new weights; fires in each engine worker, once they are in place for good.

        Example::

            from slipstream.core.hooks import hookimpl

            cache = {}

            @hookimpl
            def slipstream_weights_changed(version):
                cache.clear()
        """


class RolloutSpecs:
    """Events of a rollout."""

    @hookspec
    def slipstream_rollout_finished(self, record: RolloutFinished) -> None:
        """Observe a finished request; fires in the process that submitted it, after its last token.

        Example::

            from slipstream.core.hooks import hookimpl

            @hookimpl
            def slipstream_rollout_finished(record):
                print(f"{record.request_id}: {record.output_tokens / record.seconds:.0f} tokens/s")
        """


class StageSpecs:
    """Events of a training step."""

    @hookspec
    def slipstream_stage_started(self, stage: Stage) -> None:
        """Observe the start of a stage; fires in the process that runs the training loop.

        Example::

            from slipstream.core.hooks import hookimpl

            @hookimpl
            def slipstream_stage_started(stage):
                print(f"step {stage.step}: {stage.name} ...")
        """

    @hookspec
    def slipstream_stage_finished(self, stage: Stage) -> None:
        """Observe the end of a stage; fires in the process that runs the training loop.

        Example::

            from slipstream.core.hooks import hookimpl

            @hookimpl
            def slipstream_stage_finished(stage):
                print(f"step {stage.step}: {stage.name} done")
        """
