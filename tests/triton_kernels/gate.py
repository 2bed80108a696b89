"""A script (without TRITON_INTERPRET): compile every kernel for GPUs that are not there, print one JSON line each.

A case says how a kernel is specialised the way a launch would: pointers aligned, strides of 1 known.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from slipstream.triton_kernels.extract import gpu as extract
from slipstream.triton_kernels.fingerprint import gpu as fingerprint
from slipstream.triton_kernels.scatter import gpu as scatter

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


class Case(NamedTuple):
    name: str
    kernel: Any
    warps: int
    pointers: dict[str, str]
    constants: dict[str, Any]
    dense: tuple[str, ...] = ()  # pointers that are read densely and without a mask: their loads must be vectorised


def cases() -> list[Case]:
    """Every kernel, at the element widths that matter to it."""
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
        if width in ("i16", "i64"):
            pointers = data | {"blocks": "i64", "counts": "i32", "ends": "i64", "positions": "i64", "values": width}
            name = f"full_block {label}"
            found.append(Case(name, extract.full_block_kernel, extract.WARPS, pointers, block | kind, dense))
            pointers, constants = {"storage": width, "partial": "i64"}, fixed | kind
            constants |= {"tiles": 1 if tail else fingerprint.TILES}
            name, dense = f"fingerprint {label}", () if tail else ("storage",)
            found.append(Case(name, fingerprint.box_kernel, fingerprint.WARPS, pointers, constants, dense))
    pointers = {"counts": "i32", "ends": "i64", "slot_offsets": "i16", "slot_values": "i16"}
    pointers |= {"positions": "i64", "values": "i16"}
    constants = {"block_size": extract.BLOCK, "tile": extract.PACK_TILE} | room
    found.append(Case("pack i16", extract.pack_kernel, extract.PACK_WARPS, pointers, constants))
    pointers, constants = {"positions": "i64", "counts": "i32"}, {"tile": scatter.TILE, "dims": 6}
    found.append(Case("count 6-d", scatter.count_kernel, scatter.WARPS, pointers, constants))
    for width, dims in (("i16", 1), ("i16", 6), ("i64", 6)):
        pointers = {"storage": width, "positions": "i64", "values": width, "counts": "i32", "ends": "i64"}
        pointers |= {"dst_index": "i64", "old_values": width, "partial": "i64"}
        constants = {"tile": scatter.TILE, "dims": dims}
        found.append(Case(f"write {width} {dims}-d", scatter.write_kernel, scatter.WARPS, pointers, constants))
    return found


def build(case: Case, target: GPUTarget) -> Any:
    """Compile a case for a target."""
    names = case.kernel.arg_names
    signature = {
        name: "constexpr" if name in case.constants else f"*{case.pointers[name]}" if name in case.pointers else "i64"
        for name in names
    }
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in case.pointers}
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=target, options={"num_warps": case.warps})


def measure(case: Case, label: str) -> dict[str, Any]:
    """Registers, spilled bytes, shared memory and global loads of a case on a target."""
    compiled = build(case, TARGETS[label])
    row: dict[str, Any] = {"kernel": case.name, "target": label, "dense": len(case.dense)}
    if label.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        registers, spilled = (
            int(re.findall(rf"\.{key}:\s+(\d+)", text)[0]) for key in ("vgpr_count", "private_segment_fixed_size")
        )
        loads = re.findall(r"\b((?:global|buffer)_load_\w+)", text)
        wide = [load for load in loads if re.search(r"dword(x[234])?$|_b(32|64|96|128)$", load)]
    else:
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(compiled.asm["cubin"])
            tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
            command = [str(tool), "--dump-resource-usage", str(cubin)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
        registers, spilled = found["REG"], found["STACK"] + found["LOCAL"]
        loads = re.findall(r"\b(ld\.global[\w.:]*)", compiled.asm["ptx"])
        wide = [load for load in loads if re.search(r"\.v[248]\b", load)]
    narrow = sorted(set(loads) - set(wide))
    return row | {
        "registers": registers,
        "spilled": spilled,
        "shared": compiled.metadata.shared,
        "wide": len(wide),
        "narrow": len(loads) - len(wide),
        "narrow_kinds": narrow,
    }


def main() -> None:
    """Print a row for every case and target."""
    for case in cases():
        for label in TARGETS:
            print(json.dumps({"triton": triton.__version__} | measure(case, label)), flush=True)


if __name__ == "__main__":
    main()
