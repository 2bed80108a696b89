"""A chain of files: any engine gets from any version to the newest one, and a damaged file changes nothing."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import fsspec
import msgspec
import pytest
import torch
from msgspec.structs import replace
from toy_engine import ToyEngine, checkpoint
from typer.testing import CliRunner

from slipstream.core.cli.app import app
from slipstream.core.weights import FingerprintMismatchError, SyncError
from slipstream.core.weights.chain import ChainError, ChainReader, ChainWriter
from slipstream.core.weights.chain.manifest import Step, step_name
from slipstream.core.weights.chain.store import ChainStore
from slipstream.core.weights.wire import CorruptFrameError


def moved(weights, step):
    generator = torch.Generator().manual_seed(step)
    result = {n: w + 1e-2 * torch.randn(w.shape, generator=generator).to(w.dtype) for n, w in weights.items()}
    result["lm_head"] = result["embed"]
    return result


def in_bf16(weights):
    """What the chain holds when it is written in bf16: the router, which engines keep in fp32, is rounded too."""
    return {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}


def holds(engine, weights):
    return engine.checksums() == engine.densely_loaded(in_bf16(weights))


@pytest.fixture(params=["directory", "object store"])
def url(request, tmp_path):
    if request.param == "directory":
        yield str(tmp_path / "chain")
    else:
        yield "memory://chain"
        fsspec.filesystem("memory").rm("/chain", recursive=True)


def writer(url, **settings):
    return ChainWriter(url, dtype=torch.bfloat16, **settings)


@pytest.mark.parametrize(("rank", "size", "level"), [(0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 2, 0), (1, 2, 0)])
def test_a_reader_that_follows_holds_every_version(url, rank, size, level):
    chain, engine = writer(url, level=level), ToyEngine(rank, size)
    reader = ChainReader(url, engine)
    assert reader.update() is None
    weights = checkpoint()
    for step in range(5):
        weights = moved(weights, step)
        report = chain.publish(weights.items())
        assert reader.update() == report.version == step + 1
        assert holds(engine, weights)
        assert reader.update() == step + 1
    assert report.delta_bytes > 0


def test_a_late_joiner_and_one_that_fell_behind_end_at_the_same_version(url):
    chain = writer(url, anchor_every=3, keep_anchors=2)
    early, engine = ToyEngine(), ToyEngine()
    reader = ChainReader(url, early)
    weights = checkpoint()
    for step in range(9):
        weights = moved(weights, step)
        chain.publish(weights.items())
        if step in (0, 4):
            reader.update()
    assert reader.update() == 9
    assert ChainReader(url, engine).update() == 9
    assert holds(early, weights)
    assert holds(engine, weights)


def test_old_files_go_one_version_after_they_left_the_chain(url):
    chain = writer(url, anchor_every=2, keep_anchors=1)
    weights = checkpoint()
    for step in range(7):
        weights = moved(weights, step)
        chain.publish(weights.items())
    store = ChainStore(url)
    head = store.head()
    assert head is not None
    assert [(step.base, step.target) for step in head.steps] == [(None, 7)]
    names = {name.rsplit("/", 1)[-1] for name in store._fs.ls(store._root, detail=False)}
    present = {(name[:12].lstrip("0"), name[13:18]) for name in names if name[0].isdigit()}
    assert present == {("5", "ancho"), ("6", "delta"), ("7", "delta"), ("7", "ancho")}, "what readers may still be at"
    assert not any(name.endswith(".part") for name in names)


def test_a_reader_that_is_further_back_than_the_chain_starts_from_an_anchor(url):
    chain = writer(url, anchor_every=2, keep_anchors=1)
    engine = ToyEngine()
    reader = ChainReader(url, engine)
    weights = checkpoint()
    chain.publish(weights.items())
    reader.update()
    for step in range(6):
        weights = moved(weights, step)
        chain.publish(weights.items())
    assert reader.update() == 7
    assert holds(engine, weights)


def test_deltas_are_small(url):
    chain = writer(url, level=2)
    weights = {"norm": torch.linspace(-1, 1, 24), "q": torch.randn(16, 24, generator=torch.Generator().manual_seed(0))}
    first = chain.publish(weights.items())
    weights["q"][3, 4] += 1
    second = chain.publish(weights.items())
    assert (second.changed_elements, second.anchor_bytes) == (1, 0)
    assert second.delta_bytes < 250 < first.anchor_bytes


def test_a_chain_can_be_inspected(url):
    """`slipstream inspect`: every step by its folder, one step by its file; names, sizes, changes of each tensor."""
    assert CliRunner().invoke(app, ["inspect", url]).exit_code != 0, "there is none yet"
    chain, weights = writer(url, level=2), checkpoint()
    chain.publish(weights.items())
    weights["q"][:2, :3] += 1
    chain.publish(weights.items())
    outcome = CliRunner().invoke(app, ["inspect", url, "--json"])
    assert outcome.exit_code == 0, outcome.output
    anchor, delta = json.loads(outcome.stdout)
    assert (anchor["base"], anchor["target"], delta["base"], delta["target"]) == (None, 1, 1, 2)
    assert {name: tensor.numel() for name, tensor in weights.items()} == {
        section["tensors"][0]: section["elements"] for section in anchor["sections"]
    }
    (section,) = delta["sections"]
    assert (section["tensors"], section["changes"], section["level"]) == (["q"], 6, 2)
    if "://" not in url:
        (step,) = Path(url).glob("*-delta-*")
        assert json.loads(CliRunner().invoke(app, ["inspect", str(step), "--json"]).stdout) == [delta]
        assert json.loads(CliRunner().invoke(app, ["inspect", f"{url}/HEAD", "--json"]).stdout) == [anchor, delta]
        assert "has no step" in str(
            CliRunner().invoke(app, ["inspect", str(next(Path(url).glob("table-*")))]).exception
        )


def test_a_second_writer_takes_over_and_the_first_notices(url):
    weights = checkpoint()
    first, engine = writer(url), ToyEngine()
    first.publish(weights.items())
    reader = ChainReader(url, engine)
    reader.update()
    second = writer(url)
    second.publish(moved(weights, 1).items())
    with pytest.raises(ChainError, match="another writer"):
        first.publish(weights.items())
    assert reader.update() == 1
    assert holds(engine, moved(weights, 1)), "version 1 of another run is another version"


def damage(url, kind, how):
    store = ChainStore(url)
    head = store.head()
    step = next(s for s in head.steps[::-1] if (s.base is None) == (kind == "anchor"))
    path = store._path(step.file)
    data = store._fs.cat_file(path)
    bad = data[: len(data) // 2] if how == "truncated" else data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]
    store._fs.pipe_file(path, bad)
    return lambda: store._fs.pipe_file(path, data)


@pytest.mark.parametrize("how", ["truncated", "flipped"])
@pytest.mark.parametrize("kind", ["anchor", "delta"])
def test_a_damaged_file_changes_nothing_and_a_repaired_one_is_read(url, kind, how):
    chain, engine = writer(url, anchor_every=3), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    reader = ChainReader(url, engine)
    if kind == "delta":
        reader.update()
        chain.publish(moved(weights, 1).items())
    before = engine.checksums()
    repair = damage(url, kind, how)
    with pytest.raises((ChainError, CorruptFrameError)):
        reader.update()
    assert engine.checksums() == before
    repair()
    reader.update()
    assert holds(engine, moved(weights, 1) if kind == "delta" else weights)


@pytest.mark.parametrize("kind", ["anchor", "delta"])
def test_a_damaged_byte_anywhere_changes_nothing_and_allocates_nothing(tmp_path, kind, monkeypatch):
    """Sizes included: a header or a frame that claims to be longer than the file is not read."""
    url = str(tmp_path)
    chain, engine = writer(url, anchor_every=3), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    reader = ChainReader(url, engine)
    if kind == "delta":
        reader.update()
        chain.publish(moved(weights, 1).items())
    before = engine.checksums()
    store = ChainStore(url)
    step = next(s for s in store.head().steps[::-1] if (s.base is None) == (kind == "anchor"))
    path = Path(store._path(step.file))
    data = path.read_bytes()
    if kind == "anchor":
        reader._prepare(store.head().table)
    asked = []

    class Counted(io.BytesIO):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    front = 8 + int.from_bytes(data[4:8], "little") + 56  # the header of the file and that of its first frame
    with monkeypatch.context() as patch:
        patch.setattr(reader._store._fs, "open", lambda *_: Counted(path.read_bytes()))
        for at in (*range(front), *range(front, len(data), 97)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0xC0]) + data[at + 1 :])
            with pytest.raises((SyncError, CorruptFrameError)):
                reader._apply(store.head().run, step)
            assert engine.checksums() == before
    assert max(asked) <= len(data)
    path.write_bytes(data)
    reader.update()
    assert holds(engine, moved(weights, 1) if kind == "delta" else weights)


DAMAGED_HEADS = {
    "no full copy": lambda h: replace(h, steps=()),
    "deltas only": lambda h: replace(h, steps=h.steps[1:]),
    "a gap": lambda h: replace(h, steps=(h.steps[0], h.steps[2])),
    "a circle": lambda h: replace(h, steps=(h.steps[0], Step(2, 1, step_name(h.run, 2, 1), 1), *h.steps[1:])),
    "a step that stays": lambda h: replace(h, steps=(*h.steps, Step(3, 3, step_name(h.run, 3, 3), 1))),
    "a table elsewhere": lambda h: replace(h, table="../precious"),
    "a step elsewhere": lambda h: replace(h, steps=(replace(h.steps[0], file="../precious"), *h.steps[1:])),
    "itself": lambda h: replace(h, steps=(replace(h.steps[0], file="HEAD"), *h.steps[1:])),
}


@pytest.mark.parametrize("edit", DAMAGED_HEADS.values(), ids=DAMAGED_HEADS)
def test_a_damaged_head_is_refused_and_deletes_nothing(tmp_path, edit):
    url, precious = str(tmp_path / "chain"), tmp_path / "precious"
    precious.write_text("not of this chain")
    chain, weights = writer(url), checkpoint()
    for step in range(3):
        chain.publish(moved(weights, step).items())
    store = ChainStore(url)
    store.write_head(edit(store.head()))
    files = sorted(os.listdir(url))
    for use in (ChainReader(url, ToyEngine()).update, lambda: writer(url).publish(weights.items())):
        with pytest.raises(ChainError, match="damaged"):
            use()
    assert sorted(os.listdir(url)) == files
    assert precious.exists()


DAMAGED_TABLES = {
    "a tensor that is not there": lambda t: replace(t, units=(replace(t.units[0], tensors=(99,)), *t.units[1:])),
    "another size": lambda t: replace(t, units=(replace(t.units[0], numel=2**50), *t.units[1:])),
    "no dtype": lambda t: replace(t, specs=(replace(t.specs[0], dtype="float7"), *t.specs[1:])),
    "no shape": lambda t: replace(t, specs=(replace(t.specs[0], shape=(-3, 4)), *t.specs[1:])),
    "other names": lambda t: replace(t, specs=(replace(t.specs[0], name="k"), *t.specs[1:])),
}


@pytest.mark.parametrize("edit", DAMAGED_TABLES.values(), ids=DAMAGED_TABLES)
def test_a_damaged_table_is_refused(tmp_path, edit):
    url, engine = str(tmp_path), ToyEngine()
    writer(url).publish(checkpoint().items())
    store, before = ChainStore(url), engine.checksums()
    name = store.head().table
    (tmp_path / name).write_bytes(msgspec.msgpack.encode(edit(store.table(name))))
    with pytest.raises(ChainError, match="damaged"):
        ChainReader(url, engine).update()
    assert engine.checksums() == before
    assert isinstance(CliRunner().invoke(app, ["inspect", url]).exception, ChainError)


@pytest.mark.parametrize("written", [False, True], ids=["not written", "answer lost"])
@pytest.mark.parametrize("nth", range(3))
def test_a_head_whose_writing_fails_costs_that_version_only(url, nth, written, monkeypatch):
    """Whether the store has taken it or not, and whether a reader has seen it or not."""
    weights, write = checkpoint(), ChainStore.write_head
    chain, engine = writer(url, anchor_every=2), ToyEngine()
    reader = ChainReader(url, engine)

    def failing(store, head):
        if written:
            write(store, head)
        raise OSError("connection reset")

    for step in range(5):
        weights = moved(weights, step)
        with monkeypatch.context() as patch:
            if step == nth:
                patch.setattr(ChainStore, "write_head", failing)
                with pytest.raises(OSError, match="reset"):
                    chain.publish(weights.items())
            else:
                chain.publish(weights.items())
        if step != nth or written:
            assert reader.update() is not None
            assert holds(engine, weights)
    store = ChainStore(url)
    named = {"HEAD", store.head().table, *(step.file for step in store.head().steps)}
    there = {Path(path).name for path in store._fs.ls(store._root, detail=False)}
    assert named <= there
    assert len(there - named) <= 2, "what was dropped last"


def test_a_chain_that_was_deleted_starts_again(url, caplog):
    chain, engine, weights = writer(url), ToyEngine(), checkpoint()
    reader = ChainReader(url, engine)
    for step in range(4):
        if step == 2:
            store = ChainStore(url)
            store._fs.rm(store._root, recursive=True)
        weights = moved(weights, step)
        chain.publish(weights.items())
        reader.update()
        assert holds(engine, weights)
    assert "is gone" in caplog.text


def test_two_tensors_of_one_name_are_refused(tmp_path):
    with pytest.raises(ChainError, match="duplicate"):
        writer(str(tmp_path)).publish([("a", torch.ones(3)), ("a", torch.ones(4))])


def test_weights_that_something_else_wrote_are_found_and_replaced(url):
    chain, engine = writer(url), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    reader = ChainReader(url, engine)
    reader.update()
    engine.tensors["norm"][3] += 1
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    changed["norm"][3] += 5
    chain.publish(changed.items())
    with pytest.raises(FingerprintMismatchError, match="norm"):
        reader.update()
    assert reader.version is None
    assert reader.update() == 2
    assert holds(engine, changed)


def test_a_failing_loader_keeps_what_the_engine_held(url):
    chain, engine = writer(url), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    reader = ChainReader(url, engine)
    reader.update()
    chain.publish(moved(weights, 1).items())
    before = engine.checksums()
    engine.fail_after = 0
    with pytest.raises(RuntimeError, match="loader refuses"):
        reader.update()
    assert engine.checksums() == before
    engine.fail_after = None
    assert reader.update() == 2
    assert holds(engine, moved(weights, 1))


def test_sharded_engines_are_told_to_use_level_0(url):
    writer(url, level=2).publish(checkpoint().items())
    with pytest.raises(ChainError, match="write it with level=0"):
        ChainReader(url, ToyEngine(0, 2)).update()


def test_a_checkpoint_that_changed_is_refused_and_the_chain_goes_on(url):
    chain, engine = writer(url), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    with pytest.raises(ChainError, match="tensor 2"):
        chain.publish((name, tensor[:1] if name == "k" else tensor) for name, tensor in moved(weights, 1).items())
    with pytest.raises(ChainError, match="10 tensors came"):
        chain.publish(list(moved(weights, 1).items())[:10])
    chain.publish(moved(weights, 2).items())
    assert ChainReader(url, engine).update() == 2
    assert holds(engine, moved(weights, 2))


def test_something_that_is_no_chain_is_refused(tmp_path):
    (tmp_path / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    with pytest.raises(ChainError, match="damaged or of another version"):
        ChainReader(str(tmp_path), ToyEngine()).update()


def test_a_disk_that_fills_up_leaves_the_chain_as_it_was(tmp_path, monkeypatch):
    chain, engine = writer(str(tmp_path)), ToyEngine()
    weights = checkpoint()
    chain.publish(weights.items())
    files = sorted(os.listdir(tmp_path))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            chain.publish(moved(weights, 1).items())
    assert sorted(os.listdir(tmp_path)) == files
    chain.publish(moved(weights, 2).items())
    assert ChainReader(str(tmp_path), engine).update() == 2
    assert holds(engine, moved(weights, 2))
