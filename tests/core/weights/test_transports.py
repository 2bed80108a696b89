"""Every transport of ours passes the conformance suite."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from toy_engine import ToyEngine, checkpoint
from transport import LONG_WAIT, TIMEOUT, TransportConformance, frame_of
from transport_peers import Trainer, read_frames, trained

from slipstream.core.weights import SyncError
from slipstream.core.weights.transports import Address, bind, shared_memory, torch_distributed


class TestZeromq(TransportConformance):
    name = "zeromq"

    def test_a_trainer_killed_before_it_says_commit_leaves_the_engine_as_it_was(self, endpoint):
        """On every transport this message goes here."""
        self.kill_in_a_sync(endpoint, "commit")


class TestSharedMemory(TransportConformance):
    name = "shared_memory"

    def test_a_worker_that_cannot_see_the_memory_gets_its_frames_all_the_same(self, endpoint, monkeypatch, caplog):
        """As in another container, where the process of that number is another one."""
        monkeypatch.setattr(shared_memory.os, "readlink", lambda path: "/memfd:other (deleted)")
        with Trainer(self.name, endpoint, [ToyEngine(0, 2), ToyEngine(1, 2)], 1, 20.0) as trainer:
            weights = checkpoint()
            for step in range(2):
                weights = trained(weights, "sparse", step)
                trainer.sync(weights)
                assert trainer.holds(weights)
        assert caplog.text.count("cannot use transport shared_memory") == 2, "once a worker"

    def test_memory_is_given_back_when_the_frames_are_read(self, endpoint, workers):
        """Not only when the next sync begins, which may be an hour later."""
        with self.bound(endpoint) as end:
            reader = workers.submit(read_frames, end.invite(), b"w", 4, TIMEOUT)
            peer, _ = end.receive(LONG_WAIT)
            for number in range(4):
                end.send_all([peer], frame_of(number, 20 << 20))
            assert sum(os.fstat(file).st_size for file in end._lane._files) > 60 << 20
            assert end.receive(LONG_WAIT) == (peer, b"w has all")
            assert sum(os.fstat(file).st_size for file in end._lane._files) <= 48 << 20
            assert len(reader.result(LONG_WAIT)) == 4

    def test_memory_that_cannot_be_had_is_not_lost(self, monkeypatch):
        lane = shared_memory.SharedMemorySender()
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory.os, "pwrite", lambda *_: os.write(-1, b""))
            for _ in range(lane.window + 1):
                with pytest.raises(OSError, match="Bad file"):
                    lane.put(bytes(10))
        assert len({lane.put(bytes(10)) for _ in range(lane.window)}) == lane.window
        lane.close()


class TestTorchDistributed(TransportConformance):
    name = "torch_distributed"

    def test_the_default_group_is_left_alone(self, endpoint):
        with Trainer(self.name, endpoint, [ToyEngine()], 1, 20.0) as trainer:
            trainer.sync(checkpoint())
        assert not torch.distributed.is_initialized()

    def test_a_group_is_kept_whoever_comes_first(self):
        lane = torch_distributed.BroadcastSender("127.0.0.1", shared_host=True)
        with ThreadPoolExecutor(2) as workers:
            others = [torch_distributed.BroadcastReceiver() for _ in range(2)]
            offers = lane.offers((b"a", b"b"))
            joining = [workers.submit(w.accept, offers[n], 20.0) for w, n in zip(others, (b"a", b"b"), strict=True)]
            lane.meet(lambda: False, 20.0)
            for each in joining:
                each.result()
            assert not lane.offers((b"b", b"a")), "nothing to set up"
            reference = lane.put(b"frame")
            fetching = [workers.submit(w.fetch, reference, 20.0) for w in others]
            lane.push(lambda: False, 20.0)
            assert [each.result() for each in fetching] == [b"frame"] * 2
        for end in (lane, *others):
            end.close()


@pytest.mark.parametrize(
    "address",
    [
        Address("zeromq", "tcp://[fe80::1]:5"),
        Address("ray", "tcp://10.0.0.1:7", "3f"),
        Address("torch_distributed", "ipc:///tmp/a-{local_rank}.sock", "12"),
    ],
)
def test_an_address_is_what_it_says(address):
    assert Address.parse(str(address)) == address


def test_what_is_no_address_is_refused():
    with pytest.raises(ValueError, match="tcp://host:port"):
        Address.parse("10.0.0.1:7")


def test_ray_needs_a_trainer_in_ray(tmp_path):
    with pytest.raises(SyncError, match=r"ray\.init was not called"):
        bind("ray", f"ipc://{tmp_path}/z", True, 1.0)
