"""What the compile gate compiles: every kernel, specialised the way a launch would, at the widths that matter to it."""

from __future__ import annotations

from typing import Any, NamedTuple

from slipstream.triton_kernels import copies_gpu
from slipstream.triton_kernels.cast_extract import gpu as cast
from slipstream.triton_kernels.class_codec import classes_gpu, decode_gpu, directory_gpu, encode_gpu, vectors_gpu
from slipstream.triton_kernels.class_codec.classes import BLOCK
from slipstream.triton_kernels.elias_fano import gpu as elias_fano
from slipstream.triton_kernels.extract import gpu as extract
from slipstream.triton_kernels.fingerprint import gpu as fingerprint
from slipstream.triton_kernels.scatter import gpu as scatter


class Case(NamedTuple):
    name: str
    kernel: Any
    warps: int
    pointers: dict[str, str]
    constants: dict[str, Any]
    dense: tuple[str, ...] = ()  # pointers that are read densely and without a mask: their loads must be vectorised
    gathers: int = 0  # loads of a kernel with dense ones that cannot be wide: single numbers, scattered ones


def _elementary() -> list[Case]:
    block = {"block_size": extract.BLOCK, "tile": extract.TILE}
    room = {"room": extract.BLOCK // extract.SLOT_SHARE}
    fixed = {"tile": fingerprint.TILE, "align": 16, "src_step": 1, "dst_step": 1}
    found = []
    for width, tail in (("i8", False), ("i16", False), ("i32", False), ("i64", False), ("i16", True)):
        label, kind = f"{width} tail" if tail else width, {"tail": tail}
        data = {"old": width, "new": width}
        slots = {"counts": "i32", "slot_offsets": "i16", "slot_values": width}
        dense: tuple[str, ...] = () if tail else ("old", "new")
        found.append(
            Case(f"scan {label}", extract.scan_kernel, extract.WARPS, data | slots, block | room | kind, dense)
        )
        if width in ("i8", "i16", "i64"):
            pointers = data | {"blocks": "i64", "counts": "i32", "ends": "i64", "positions": "i64", "values": width}
            name = f"full_block {label}"
            found.append(Case(name, extract.full_block_kernel, extract.WARPS, pointers, block | kind, dense, 3))
            pointers, constants = {"storage": width, "partial": "i64"}, fixed | kind
            constants |= {"tiles": 1 if tail else fingerprint.TILES}
            name, dense = f"fingerprint {label}", () if tail else ("storage",)
            found.append(Case(name, fingerprint.box_kernel, fingerprint.WARPS, pointers, constants, dense))
    for width in ("i8", "i16"):
        pointers = {"counts": "i32", "ends": "i64", "slot_offsets": "i16", "slot_values": width}
        pointers |= {"positions": "i64", "values": width}
        constants = {"block_size": extract.BLOCK, "tile": extract.PACK_TILE} | room
        found.append(Case(f"pack {width}", extract.pack_kernel, extract.PACK_WARPS, pointers, constants))
    pointers, constants = {"positions": "i64", "counts": "i32"}, {"tile": scatter.TILE, "dims": 6}
    found.append(Case("count 6-d", scatter.count_kernel, scatter.WARPS, pointers, constants))
    pointers = pointers | {"ends": "i64", "taken": "i64", "mapped": "i64"}
    found.append(Case("select 6-d", scatter.select_kernel, scatter.WARPS, pointers, constants))
    for width in ("i8", "i16", "i64"):
        pointers = {"positions": "i64", "old": width, "new": width, "partial": "i64"}
        constants = {"tile": fingerprint.TILE}
        found.append(Case(f"changes {width}", fingerprint.change_kernel, fingerprint.WARPS, pointers, constants))
    for width, dims in (("i8", 6), ("i16", 1), ("i16", 6), ("i64", 6)):
        pointers = {"storage": width, "positions": "i64", "values": width, "counts": "i32", "ends": "i64"}
        pointers |= {"dst_index": "i64", "old_values": width, "partial": "i64"}
        constants = {"tile": scatter.TILE, "dims": dims}
        found.append(Case(f"write {width} {dims}-d", scatter.write_kernel, scatter.WARPS, pointers, constants))
    return found


def _class_codec() -> list[Case]:
    """Eight classes, of a part of fp8, bf16 or fp32; the dense kernels also with one and four classes."""
    wide = {"before", "index", "bases", "targets", "starts", "outs", "totals", "sums", "sizes", "offsets", "begins"}
    wide |= {"segments", "numbers", "widths", "firsts", "lows", "low_sums", "length_sums", "residual_sums", "changes"}
    wide |= {"planes", "orders", "bits", "positions", "found", "unary_bytes", "counts"}
    narrow = {"modes", "inverted", "ends", "gaps", "places", "lengths", "residuals", "ranks", "sorted_ranks", "error"}
    narrow |= {"changed", "bitmap", "slots", "words"}
    pointers = dict.fromkeys(wide, "i64") | dict.fromkeys(narrow, "i32") | {"data": "u8", "out": "u8"}
    shape = {"block_size": BLOCK, "chunk": classes_gpu.CHUNK, "parts": BLOCK // classes_gpu.CHUNK}
    found = []

    def add(name: str, kernel: Any, warps: int, tile: int, width: str = "i16", **settings: Any) -> None:
        elements = {"old": width, "values": width, "sorted_values": width, "steps": "i64" if width == "i32" else "i32"}
        known = pointers | elements | settings.get("kinds", {})
        constants = shape | {"word": int(width[1:]), "tile": tile, "classes": 8, "tail": False} | settings
        fixed = {parameter.name: constants[parameter.name] for parameter in kernel.params if parameter.is_constexpr}
        of_kernel = {key: value for key, value in known.items() if key in kernel.arg_names}
        dense = ("old",) if "gathers" in settings else ()
        found.append(Case(f"class {name}", kernel, warps, of_kernel, fixed, dense, settings.get("gathers", 0)))

    counts = {"kinds": {"counts": "i32"}}
    for width in ("i8", "i16", "i32"):
        for classes in (4, 8):
            dense = (classes_gpu.WARPS, classes_gpu.TILE, width)
            label = f"{width} {classes}"
            add(f"histogram {label}", classes_gpu.class_histogram_kernel, *dense, classes=classes, gathers=1, **counts)
            add(f"rank {label}", classes_gpu.rank_kernel, *dense, classes=classes, gathers=10, **counts)
            add(f"locate {label}", classes_gpu.locate_kernel, *dense, classes=classes, gathers=12)
    dense = (classes_gpu.WARPS, classes_gpu.TILE)
    add("histogram tail", classes_gpu.class_histogram_kernel, *dense, tail=True, **counts)
    add("rank tail", classes_gpu.rank_kernel, *dense, tail=True, **counts)
    add("locate tail", classes_gpu.locate_kernel, *dense, tail=True)
    add("locate level 1", classes_gpu.locate_kernel, *dense, classes=1)
    add("directory", directory_gpu.directory_kernel, directory_gpu.WARPS, directory_gpu.TILE)
    add("header in", directory_gpu.header_kernel, directory_gpu.LANE_WARPS, directory_gpu.LANES)
    add("vectors", vectors_gpu.vector_kernel, vectors_gpu.WARPS, vectors_gpu.LANES)
    tile, few, lanes = (
        (encode_gpu.WARPS, encode_gpu.TILE),
        (encode_gpu.CHANGE_WARPS, encode_gpu.CHANGES),
        (encode_gpu.LANE_WARPS, encode_gpu.LANES),
    )
    add("terminators", decode_gpu.terminator_kernel, *tile)
    add("places", decode_gpu.place_kernel, *tile)
    add("chunks", decode_gpu.chunk_kernel, *lanes)
    add("mark", encode_gpu.mark_kernel, *few)
    add("sums", encode_gpu.sum_kernel, *lanes)
    add("gaps", encode_gpu.gap_kernel, *tile)
    add("unary", encode_gpu.unary_kernel, *tile)
    add("choose", encode_gpu.choose_kernel, *lanes)
    add("header out", encode_gpu.header_kernel, *lanes)
    add("pack gaps", encode_gpu.pack_gaps_kernel, *tile)
    add("sizes", encode_gpu.sizes_kernel, *lanes)
    for width in ("i8", "i16", "i32"):
        add(f"steps {width}", decode_gpu.step_kernel, *tile, width)
        for classes in (1, 8):
            add(f"apply {width} {classes}", decode_gpu.apply_kernel, *few, width, classes=classes)
            add(f"order {width} {classes}", encode_gpu.order_kernel, *few, width, classes=classes)
        add(f"pack changes {width}", encode_gpu.pack_changes_kernel, *tile, width)
        add(f"copy {width}", copies_gpu.copy_kernel, *tile, width, copied=2)
        add(f"overwrite {width}", copies_gpu.overwrite_kernel, *few, width, copied=2)
    add("copy i64", copies_gpu.copy_kernel, *tile, "i64", copied=2)
    add("overwrite i64", copies_gpu.overwrite_kernel, *few, "i64", copied=2)
    return found


def _elias_fano() -> list[Case]:
    wide = {"starts", "index", "lows", "sizes", "offsets", "counts", "before", "positions", "found"}
    pointers = dict.fromkeys(wide, "i64") | {"modes": "i32", "words": "i32", "error": "i32", "data": "u8"}
    shape = {"block_size": elias_fano.Cut().block, "tile": elias_fano.TILE}
    lanes = {"tile": elias_fano.LANES}
    found = []
    for name, kernel, warps, width, other in (
        ("plan", elias_fano.plan_kernel, elias_fano.LANE_WARPS, "i16", lanes),
        ("write i8", elias_fano.write_kernel, elias_fano.WARPS, "i8", {}),
        ("write i16", elias_fano.write_kernel, elias_fano.WARPS, "i16", {}),
        ("write i64", elias_fano.write_kernel, elias_fano.WARPS, "i64", {}),
        ("read i8", elias_fano.read_kernel, elias_fano.WARPS, "i8", {}),
        ("read i16", elias_fano.read_kernel, elias_fano.WARPS, "i16", {}),
        ("read i64", elias_fano.read_kernel, elias_fano.WARPS, "i64", {}),
    ):
        constants = shape | {"word": int(width[1:])} | other
        fixed = {parameter.name: constants[parameter.name] for parameter in kernel.params if parameter.is_constexpr}
        known = {key: value for key, value in (pointers | {"values": width}).items() if key in kernel.arg_names}
        found.append(Case(f"elias-fano {name}", kernel, warps, known, fixed))
    return found


def _cast() -> list[Case]:
    slots = dict.fromkeys(("slot_offsets", "slot_values", "slot_old", "values", "old_values"), "i16")
    pointers = slots | {"master": "i32", "weights": "i16", "counts": "i32", "ends": "i64", "positions": "i64"}
    pointers |= {"blocks": "i64"}
    shape = {"block_size": cast.BLOCK, "room": cast.BLOCK // cast.SLOT_SHARE}
    found = []
    for name, kernel, warps, tile, gathers in (
        ("scan", cast.cast_kernel, cast.WARPS, cast.TILE, 0),
        ("full_block", cast.full_block_kernel, cast.WARPS, cast.TILE, 3),
        ("pack", cast.pack_kernel, cast.PACK_WARPS, cast.PACK_TILE, 0),
    ):
        known = {key: value for key, value in pointers.items() if key in kernel.arg_names}
        for half in (False, True)[: 1 if name == "pack" else 2]:
            for tail in (False, True)[: 1 if name == "pack" else 2]:
                constants = shape | {"tile": tile, "half": half, "tail": tail}
                fixed = {p.name: constants[p.name] for p in kernel.params if p.is_constexpr}
                dense = () if tail or name == "pack" else ("master", "weights")
                label = f"cast {name} {'fp16' if half else 'bf16'}{' tail' * tail}"
                found.append(Case(label, kernel, warps, known, fixed, dense, gathers))
    return found


def cases() -> list[Case]:
    """Every kernel."""
    return [*_elementary(), *_class_codec(), *_elias_fano(), *_cast()]
