"""Record an engine's layout by running its own loader on tensors that have no storage.

The loader is the only complete description of how a checkpoint becomes engine memory. It is run once on probes on
the meta device under a `TorchDispatchMode`; each `copy_` from a view of a probe into engine memory is noted with both
views (offset, strides, shape), and nothing is executed. The map is therefore exact for fused QKV, gate_up,
tensor-parallel and vocabulary shards of any rank, costs milliseconds and moves no
data. Idea: WeightBridge (arXiv 2609.25442); vLLM #53751 discusses the copies-as-contract property it relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.core.weights.engine import LiveStorage
from slipstream.core.weights.layout import Fill, LayoutMap, Piece, TensorLayout, flat_bits
from slipstream.core.weights.plan.intersect import intersect_normal
from slipstream.core.weights.tensors import DTYPES, TensorSpec, dtype_name
from slipstream.triton_kernels import Box, as_bits, normalise
from slipstream.triton_kernels.box import MAX_RANK

LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]

_METADATA_ONLY = {
    torch.ops.aten.t_.default,
    torch.ops.aten.transpose_.default,
    torch.ops.aten.squeeze_.default,
    torch.ops.aten.squeeze_.dim,
    torch.ops.aten.unsqueeze_.default,
}
_TRAVELLING = set(DTYPES.values())
_FILLS = {torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default}


def record_layout(
    load_weights: LoadWeights,
    specs: Iterable[TensorSpec],
    transformed: Iterable[torch.Tensor] = (),
    live: Mapping[int, LiveStorage] | None = None,
) -> LayoutMap:
    """Run `load_weights` on probes of `specs` and return the layout it implies.

    Args:
        load_weights: the engine's own loader; takes (name, tensor) pairs. It must not keep the tensors.
        specs: the checkpoint tensors as the trainer will send them.
        transformed: engine tensors whose memory is no longer in checkpoint form (repacked or quantised after loading);
            everything that writes to one of them takes the loader path.
        live: the storages that the engine serves from, by data pointer. A tensor that the loader writes elsewhere (a
            buffer it assembles first) takes the loader path. None trusts every target.

    Raises:
        Exception: whatever the engine's loader raises for names or shapes it does not accept.
    """
    specs = tuple(specs)
    probes = {spec.name: torch.empty(spec.shape, dtype=spec.torch_dtype, device="meta") for spec in specs}
    if len(probes) != len(specs):
        raise ValueError("duplicate tensor names in the checkpoint table; each name must appear once")
    recorder = _Recorder(probes, transformed, live)
    with torch.no_grad(), recorder:
        load_weights(recorder.feed(specs))
    return recorder.layout(specs)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class hook is untyped
    """Notes every write of the loader and executes none."""

    def __init__(
        self,
        probes: dict[str, torch.Tensor],
        transformed: Iterable[torch.Tensor],
        live: Mapping[int, LiveStorage] | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._probes = probes
        self._owner = {_storage_key(probe): name for name, probe in probes.items()}
        self._derived: list[torch.Tensor] = []  # kept alive so that storage keys stay unique
        self._transformed = {_storage_key(t) for t in transformed}
        self._live = live
        self._current = ""
        self._exhausted = False
        self.copies: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in probes}
        self.fills: list[Fill] = []
        self.reasons: dict[str, str] = {}
        self.opaque: list[torch.Tensor] = []

    def feed(self, specs: Iterable[TensorSpec]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the probes, remembering which one the loader is working on."""
        for spec in specs:
            self._current = spec.name
            yield spec.name, self._probes[spec.name]
        self._exhausted = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        written = _written_argument(func, args, kwargs)
        if written is not None and not written.is_meta:
            self._write(func, written, args, kwargs)
            return written
        sources = self._owners(args, kwargs)
        if not sources:
            return func(*args, **kwargs)
        if written is not None and func not in _METADATA_ONLY:
            self._loader_only(sources, f"the loader changes it in place ({func})")
            return written
        if func is torch.ops.aten._to_copy.default:
            kwargs = {**kwargs, "device": torch.device("meta")}  # a probe has no data to move anywhere
        if func is torch.ops.aten._local_scalar_dense.default:
            self._loader_only(sources, "the loader reads its value")
            return 0
        result = func(*args, **kwargs)
        for tensor in _tensors((result,), {}):
            if _storage_key(tensor) not in self._owner:
                self._loader_only(sources, f"the loader computes on it ({func})")
                self._derived.append(tensor)
                self._owner[_storage_key(tensor)] = next(iter(sources))
        return result

    def _write(self, func: Any, target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in _FILLS:
            self._fill(target, args[1] if len(args) > 1 else 0)
            return
        source = args[1] if len(args) > 1 else kwargs.get("src")
        name = self._owner.get(_storage_key(source)) if isinstance(source, torch.Tensor) else None
        if func is torch.ops.aten.copy_.default and name is not None and source is not None:
            self.copies[name].append((target, source))
            if target.shape != source.shape:
                self._loader_only({name}, f"the loader broadcasts {tuple(source.shape)} to {tuple(target.shape)}")
            if _storage_key(target) in self._transformed:
                self._loader_only({name}, "the engine repacks this parameter after loading")
            if self._live is not None and target.untyped_storage().data_ptr() not in self._live:
                self._loader_only({name}, "the loader assembles it in a buffer of its own")
            if source.dtype != self._probes[name].dtype and not self._same_bits(name, source, target):
                self._loader_only({name}, f"the loader reads it as {source.dtype}")
            if any(t.is_neg() or t.is_conj() for t in (source, target)):
                self._loader_only({name}, "the loader copies it through a negated or conjugated view")
        else:
            # Once the loader has all names, a write from no probe can belong to any of them.
            unknown = set(self._probes) if self._exhausted else {self._current}
            self._loader_only(self._owners(args, kwargs) or unknown, f"the loader writes through {func}")
            self.opaque.append(target)

    def _same_bits(self, name: str, source: torch.Tensor, target: torch.Tensor) -> bool:
        """Whether a copy from the tensor under another dtype moves its elements bit by bit, each on its own."""
        return source.dtype == target.dtype and source.dtype.itemsize == self._probes[name].dtype.itemsize

    def _fill(self, target: torch.Tensor, value: float) -> None:
        overwritten = {name for name, copies in self.copies.items() for copied, _ in copies if _overlap(copied, target)}
        self._loader_only(overwritten, "the loader overwrites a part of it afterwards")
        if overwritten or self._current in self.reasons:
            self.opaque.append(target)
        else:
            self.fills.append(Fill(target, value))

    def _owners(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
        return {self._owner[k] for k in map(_storage_key, _tensors(args, kwargs)) if k in self._owner}

    def _loader_only(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.reasons.setdefault(name, reason)

    def _loader_only_where_shared(self) -> None:
        """Whatever is written twice, in whole or in part: which write wins is the loader's business.

        A tensor that is copied twice to the same places is no such case, as the writes are one piece. Two pieces of one
        tensor that meet are: changes that go on from what is in memory would be applied twice where they do.
        """
        writes: set[tuple[Box, str, Box | None]]
        writes = {(_memory(target), "", None) for target in self.opaque if target.numel()}
        writes |= {
            (_memory(target), name, _box_or_none(source, target))
            for name, copies in self.copies.items()
            for target, source in copies
            if target.numel()
        }
        ordered = sorted(writes, key=lambda write: write[:2])
        for number, (region, name, _) in enumerate(ordered):
            for other, other_name, _ in ordered[number + 1 :]:
                if other.src_offset >= region.src_offset + region.span:
                    break
                names = {name, other_name} - {""}
                if names - self.reasons.keys() and intersect_normal(region, other):
                    self._loader_only(names, f"the loader writes {sorted(names)} to the same place")

    def layout(self, specs: tuple[TensorSpec, ...]) -> LayoutMap:
        self._loader_only_where_shared()
        storages: list[torch.Tensor] = []
        index: dict[tuple[int, torch.dtype], int] = {}
        tensors = []
        for spec in specs:
            copies = self.copies[spec.name]
            # A copy between views under another dtype (fp8 as uint8, say) stores the tensor's own bits.
            own = spec.torch_dtype
            dtypes = {target.dtype if source.dtype == own else own for target, source in copies}
            pieces: list[Piece] = []
            reason = self.reasons.get(spec.name, "")
            if len(dtypes) > 1:
                reason = reason or f"it is stored in several dtypes: {sorted(map(str, dtypes))}"
            if not dtypes <= _TRAVELLING:
                reason = reason or f"it is stored in a dtype that cannot travel: {sorted(map(str, dtypes))}"
            if not reason:
                try:
                    for target, source in copies:
                        if source.numel() == 0:
                            continue
                        box = _box(source, target)
                        bits_dtype = as_bits(torch.empty(0, dtype=target.dtype)).dtype
                        key = (_storage_key(target), bits_dtype)
                        if key not in index:
                            index[key] = len(storages)
                            storages.append(flat_bits(target, bits_dtype))
                        piece = Piece.of(index[key], box)
                        if piece not in pieces:  # a loader may copy the same part twice
                            pieces.append(piece)
                except ValueError as error:
                    reason = str(error)
            if reason:
                self.opaque.extend(target for target, _ in copies)
                tensors.append(TensorLayout(spec.name, spec.dtype, "loader", (), reason))
            elif pieces:
                dtype = dtype_name(next(iter(dtypes)), spec.name)
                tensors.append(TensorLayout(spec.name, dtype, "mapped", tuple(pieces)))
            else:
                tensors.append(TensorLayout(spec.name, spec.dtype, "unused", (), "the engine's loader ignores it"))
        opaque = _unique(self.opaque)
        beside = [t.untyped_storage() for t in (*opaque, *(fill.view for fill in self.fills))]
        served = {s.data_ptr(): s.nbytes() for s in beside if self._live is not None and s.data_ptr() in self._live}
        pointers = {storage.data_ptr() for storage in storages}
        held = {pointer: storage for pointer, storage in (self._live or {}).items() if pointer in pointers}
        return LayoutMap(specs, tuple(tensors), storages, self.fills, opaque, held, served)


def _box(source: torch.Tensor, target: torch.Tensor) -> Box:
    box = normalise(
        Box(
            int(source.storage_offset()),
            int(target.storage_offset()),
            tuple(source.shape),
            tuple(source.stride()),
            tuple(target.stride()),
        )
    )
    if len(box.sizes) > MAX_RANK:
        raise ValueError(f"it takes a {len(box.sizes)}-dimensional map, the kernels take {MAX_RANK}")
    return box


def _box_or_none(source: torch.Tensor, target: torch.Tensor) -> Box | None:
    try:
        return _box(source, target)
    except ValueError:
        return None


def _memory(tensor: torch.Tensor) -> Box:
    """Which bytes of memory a tensor has, as a normalised box that maps them to themselves.

    By address, as two storages may be one memory. All between the first and the last where elements share a place.
    """
    first, width = tensor.data_ptr(), tensor.element_size()
    dims = [(size, width * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    sizes, strides = zip(*dims, (width, 1), strict=True)
    try:
        return normalise(Box(first, first, sizes, strides, strides))
    except ValueError:
        span = width + sum((size - 1) * stride for size, stride in dims)
        return Box(first, first, (span,), (1,), (1,))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory of two views meets (from first to last byte, so interleaved views count as meeting)."""
    if a.numel() == 0 or b.numel() == 0:
        return False

    def span(t: torch.Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    (a_first, a_end), (b_first, b_end) = span(a), span(b)
    return a_first < b_end and b_first < a_end


def _written_argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    schema = func._schema
    if not schema.is_mutable:
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                return value
    return None


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(tuple(value), {})


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _unique(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    seen: dict[tuple[int, int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in tensors:
        seen.setdefault((_storage_key(tensor), int(tensor.storage_offset()), tuple(tensor.shape)), tensor)
    return list(seen.values())
