"""Chains on S3: a server of the moto package in this process, read and written through s3fs."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_world import trained
from toy_engine import ToyEngine, checkpoint

from slipstream.core.weights.chain import ChainError, ChainReader, ChainWriter
from slipstream.core.weights.chain.store import ChainStore

sys.path.append(str(Path(sys.prefix) / "s3"))  # where `make test` puts the packages of env/s3.lock
s3fs = pytest.importorskip("s3fs", reason="S3 needs s3fs: `make test` installs env/s3.lock")
server = pytest.importorskip("moto.server", reason="a local S3 needs moto: `make test` installs env/s3.lock")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    bucket = f"bucket-{uuid.uuid4().hex}"  # moto keeps its buckets from server to server
    moto = server.ThreadedMotoServer(port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}").mkdir(bucket)
    yield f"s3://{bucket}/run7"
    s3fs.S3FileSystem.clear_instance_cache()
    moto.stop()


def test_followers_and_late_joiners_over_s3(url):
    chain = ChainWriter(url, anchor_every=3, keep_anchors=1)
    follower = ToyEngine(dtype=checkpoint()["q"].dtype)
    reader = ChainReader(url, follower)
    assert reader.update() is None
    weights = checkpoint()
    for step in range(8):
        weights = trained(weights, "sparse", step)
        chain.publish(weights.items())
        assert reader.update() == step + 1
        assert follower.checksums() == follower.densely_loaded(weights)
    late = ToyEngine(dtype=checkpoint()["q"].dtype)
    assert ChainReader(url, late).update() == 8
    assert late.checksums() == follower.checksums()
    store = ChainStore(url)
    names = {name.rsplit("/", 1)[-1] for name in store._fs.ls(store._root, detail=False, refresh=True)}
    assert {int(name[:12]) for name in names if name[0].isdigit()} <= {6, 7, 8}, "what left the chain is deleted"


def test_a_writer_that_fails_half_way_leaves_the_chain_as_it_was(url, monkeypatch):
    chain, engine = ChainWriter(url), ToyEngine(dtype=checkpoint()["q"].dtype)
    old = checkpoint()
    chain.publish(old.items())
    new = trained(old, "sparse", 1)
    with monkeypatch.context() as patch:
        patch.setattr("slipstream.core.weights.chain.writer.pack_frame", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            chain.publish(new.items())
    assert ChainReader(url, engine).update() == 1
    assert engine.checksums() == engine.densely_loaded(old)
    chain.publish(new.items())
    assert ChainReader(url, engine).update() == 2
    assert engine.checksums() == engine.densely_loaded(new)


def test_a_bucket_that_is_not_there_is_an_error(url):
    with pytest.raises((ChainError, OSError)):
        ChainWriter("s3://no-such-bucket/run").publish(checkpoint().items())
