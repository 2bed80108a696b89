"""Layouts recorded from loaders of every habit, checked against what the loader really does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toy_engine import ToyEngine, checkpoint

from slipstream.core.weights import TensorSpec, record_layout
from slipstream.triton_kernels import normalise, restrict


def specs(weights):
    return [TensorSpec.of(name, tensor) for name, tensor in weights.items()]


@pytest.mark.parametrize("rank", range(2))
def test_recording_writes_nothing_and_maps_every_element_where_the_loader_puts_it(rank):
    engine = ToyEngine(rank, 2, torch.float32)
    before = engine.checksums()
    weights = checkpoint()
    layout = record_layout(engine.load_weights, specs(weights))
    assert engine.checksums() == before
    engine.load_weights(weights.items())
    for spec, tensor in zip(layout.specs, layout.tensors, strict=True):
        source = weights[spec.name].reshape(-1).view(torch.int32)
        for piece in tensor.pieces:
            box = piece.as_box()
            held = layout.storages[piece.storage].as_strided(box.sizes, box.dst_strides, box.dst_offset)
            assert torch.equal(held, source.as_strided(box.sizes, box.src_strides, box.src_offset)), spec.name


def test_kinds_say_how_each_tensor_is_taken():
    layout = record_layout(ToyEngine().load_weights, specs(checkpoint()))
    kinds = {tensor.name: tensor.kind for tensor in layout.tensors}
    assert kinds.pop("flipped") == "loader"
    assert kinds.pop("lm_head") == "unused"
    assert set(kinds.values()) == {"mapped"}


def test_the_engines_dtype_is_recorded_per_tensor():
    layout = record_layout(ToyEngine().load_weights, specs(checkpoint()))
    dtypes = {tensor.name: tensor.dtype for tensor in layout.tensors if tensor.kind == "mapped"}
    assert dtypes.pop("router") == "float32"
    assert set(dtypes.values()) == {"bfloat16"}


class Loader:
    """One parameter and a loader body."""

    def __init__(self, body):
        self.target = torch.zeros(6, 4)
        self.body = body

    def __call__(self, weights):
        for _, weight in weights:
            self.body(self.target, weight)


TRANSFORMS = {
    "cast before the copy": lambda t, w: t.copy_(w.to(torch.float16)),
    "negate": lambda t, w: t.copy_(-w),
    "in-place add": lambda t, w: t.add_(w),
    "read a value": lambda t, w: (t.copy_(w), w[0, 0].item()),
    "broadcast": lambda t, w: t.copy_(w[:1]),
    "copy and use": lambda t, w: (t.copy_(w), (w * 2).sum()),
    "halves of elements": lambda t, w: t.view(torch.int16).copy_(w.view(torch.int16)),
    "bits as a number": lambda t, w: t.copy_(w.view(torch.int32)),
    "complex": lambda t, w: torch.view_as_complex(t.view(6, 2, 2)).copy_(torch.view_as_complex(w.view(6, 2, 2))),
    "negated view": lambda t, w: t[:, :2].copy_(torch.view_as_complex(w.view(6, 2, 2)).conj().imag),
    "cleared bytes": lambda t, w: (t.copy_(w), t.view(torch.uint8).view(-1)[90:94].zero_()),
}


@pytest.mark.parametrize("body", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_loader_that_transforms_takes_the_dense_path(body):
    loader = Loader(body)
    (tensor,) = record_layout(loader, [TensorSpec("w", (6, 4), "float32")]).tensors
    assert tensor.kind == "loader"
    assert tensor.reason
    assert torch.equal(loader.target, torch.zeros(6, 4))


VIEWS = {
    "transposed": lambda t, w: t.copy_(w.t()),
    "rows reversed by halves": lambda t, w: (t[:3].copy_(w.t()[3:]), t[3:].copy_(w.t()[:3])),
    "every other column": lambda t, w: (t[:, ::2].copy_(w.t()[:, ::2]), t[:, 1::2].copy_(w.t()[:, 1::2])),
    "reshaped": lambda t, w: t.view(2, 3, 4).copy_(w.reshape(4, 2, 3).permute(1, 2, 0)),
    "flat": lambda t, w: t.view(-1)[5:15].copy_(w.reshape(-1)[7:17]),
}


@pytest.mark.parametrize("body", VIEWS.values(), ids=VIEWS)
def test_views_of_any_kind_are_mapped_exactly(body):
    loader = Loader(body)
    layout = record_layout(loader, [TensorSpec("w", (4, 6), "float32")])
    (tensor,) = layout.tensors
    assert tensor.kind == "mapped"
    weight = torch.randn(4, 6)
    loader([("w", weight)])
    rebuilt = torch.zeros(24)
    flat = weight.reshape(-1)
    for piece in tensor.pieces:
        taken, places = restrict(np.arange(24), normalise(piece.as_box()))
        rebuilt[torch.from_numpy(places)] = flat[taken]
    assert torch.equal(rebuilt.view(6, 4), loader.target)


def test_parameters_the_engine_repacks_are_not_written_in_place():
    engine = ToyEngine()
    layout = record_layout(engine.load_weights, specs(checkpoint()), [engine.tensors["gate_up"]])
    kinds = {tensor.name: (tensor.kind, tensor.reason) for tensor in layout.tensors}
    assert kinds["gate"] == kinds["up"] == ("loader", "the engine repacks this parameter after loading")
    assert kinds["q"][0] == "mapped"


def test_eighteen_thousand_small_tensors_are_recorded_in_linear_time():
    """verl #6974: per-expert loading of 18,432 tensors once took 55 s because a name look-up was quadratic."""
    import time

    targets = torch.zeros(18_432, 8)
    index = {f"expert{i}": i for i in range(len(targets))}

    def load(weights):
        for name, weight in weights:
            targets[index[name]].copy_(weight)

    start = time.process_time()  # of this process: other work on the machine says nothing
    layout = record_layout(load, [TensorSpec(name, (8,), "float32") for name in index])
    assert time.process_time() - start < 20
    assert all(tensor.kind == "mapped" for tensor in layout.tensors)
    assert len(layout.storages) == 1


def test_a_constant_beside_the_checkpoint_is_exact():
    target = torch.zeros(6, dtype=torch.int64)

    def load(weights):
        for _, weight in weights:
            target.fill_(2**60 + 1)
            target[:4].copy_(weight)

    (fill,) = record_layout(load, [TensorSpec("w", (4,), "int64")]).fills
    assert fill.value == 2**60 + 1
