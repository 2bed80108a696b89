"""A chain beside live syncs: it holds what was acknowledged, and its errors do not reach the syncs."""

from __future__ import annotations

import threading

import pytest
from fault_world import trained
from toy_engine import Pair, ToyEngine, checkpoint

from slipstream.core.config import ConfigError
from slipstream.core.weights import EngineFailedError, SyncError
from slipstream.core.weights.chain import ChainMirror, ChainReader, MirrorReport, check_chain
from slipstream.core.weights.chain.store import ChainStore


class Mirrored:
    """A publisher with its engine, and a mirror."""

    def __init__(self, url, level=0):
        self.pair = Pair([ToyEngine()])
        self.reports: list[MirrorReport] = []
        self.mirror = ChainMirror(str(url), self.reports.append, level=level)

    def sync(self, weights):
        self.mirror.wait()
        self.pair.sync(weights)
        self.mirror.follow(self.pair.publisher)


def read(url):
    engine = ToyEngine()
    assert ChainReader(str(url), engine).update() is not None
    return engine


@pytest.mark.parametrize("level", [0, 2])
def test_a_late_engine_holds_what_the_live_one_holds(tmp_path, level):
    run = Mirrored(tmp_path, level)
    follower = ToyEngine()
    reader = ChainReader(str(tmp_path), follower)
    weights = checkpoint()
    for step, how in enumerate(["nothing", "sparse", "special", "everything"]):
        weights = trained(weights, how, step)
        run.sync(weights)
        run.mirror.wait()
        live = run.pair.engines[0].checksums()
        assert reader.update() == step + 1
        assert follower.checksums() == live
        assert read(tmp_path).checksums() == live
    assert [(report.target, report.error) for report in run.reports] == [(n, "") for n in range(1, 5)]


def test_what_was_not_acknowledged_is_not_written(tmp_path):
    run = Mirrored(tmp_path)
    old = checkpoint()
    run.sync(old)
    run.pair.engines[0].fail_after = 0
    with pytest.raises(EngineFailedError):
        run.sync(trained(old, "everything", 1))
    run.pair.engines[0].fail_after = None
    assert read(tmp_path).checksums() == ToyEngine().densely_loaded(old)
    new = trained(old, "sparse", 2)
    run.sync(new)
    run.mirror.wait()
    assert read(tmp_path).checksums() == ToyEngine().densely_loaded(new)


def test_a_full_disk_is_reported_and_costs_no_sync(tmp_path, monkeypatch, caplog):
    run = Mirrored(tmp_path)
    weights = checkpoint()
    run.sync(weights)
    run.mirror.wait()

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        weights = trained(weights, "sparse", 1)
        run.sync(weights)
        run.mirror.wait()
    assert "No space left" in run.reports[-1].error
    assert "version 2 was not written to the chain" in caplog.text
    assert run.pair.holds(weights)
    weights = trained(weights, "sparse", 2)
    run.sync(weights)
    run.mirror.wait()
    assert run.reports[-1].error == ""
    assert run.reports[-1].chain.anchor_bytes == 0, "a delta over both steps"
    assert read(tmp_path).checksums() == ToyEngine().densely_loaded(weights)


def test_writing_goes_on_beside_the_run_and_the_next_sync_waits_for_it(tmp_path, monkeypatch):
    run = Mirrored(tmp_path)
    go, write_step = threading.Event(), ChainStore.write_step

    def slow(*args):
        assert go.wait(30)
        return write_step(*args)

    monkeypatch.setattr(ChainStore, "write_step", slow)
    run.sync(checkpoint())
    assert run.reports == []
    threading.Timer(0.3, go.set).start()
    assert run.mirror.wait() > 0.1
    assert [report.target for report in run.reports] == [1]


def test_another_checkpoint_starts_a_chain_of_its_own(tmp_path):
    run = Mirrored(tmp_path)
    weights = checkpoint()
    run.sync(weights)
    fewer = {name: tensor for name, tensor in weights.items() if name != "router"}
    with pytest.raises(SyncError):
        run.pair.publisher.stage(fewer.items())
    run.sync(fewer)  # a seed: the checkpoint has changed
    run.mirror.wait()
    assert run.reports[-1].error == ""
    store = ChainStore(str(tmp_path))
    assert "router" not in {spec.name for spec in store.table(store.head().table).specs}


def test_a_file_system_that_is_not_installed_is_refused():
    with pytest.raises(ConfigError, match="nosuchfs"):
        check_chain("nosuchfs://bucket/run")
