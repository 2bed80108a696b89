"""A script (without TRITON_INTERPRET): compile every kernel for GPUs that are not there, print one JSON line each.

gate.py [PREFIX]      only kernels whose name starts so
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from gate_cases import Case, cases
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


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
    return triton.compile(source, target=target, options={"num_warps": case.warps * 32 // target.warp_size})


def measure(case: Case, label: str) -> dict[str, Any]:
    """Registers, spilled bytes, shared memory and global loads of a case on a target."""
    compiled = build(case, TARGETS[label])
    # What a thread loads at once: 8 bytes at least, or 4 elements where they are bytes (then single numbers count too).
    bytewise = any(case.pointers[name] == "i8" for name in case.dense)
    row: dict[str, Any] = {"kernel": case.name, "target": label, "dense": len(case.dense), "gathers": case.gathers}
    if label.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        registers, spilled = (
            int(re.findall(rf"\.{key}:\s+(\d+)", text)[0]) for key in ("vgpr_count", "private_segment_fixed_size")
        )
        loads = re.findall(r"\b((?:global|buffer)_load_\w+)", text)
        wide = [load for load in loads if re.search(r"dwordx[234]$|_b(64|96|128)$" + r"|dword$|_b32$" * bytewise, load)]
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
        wide = [load for load in loads if re.search(r"\.v[248]\b" + r"|b32$|b64$" * bytewise, load)]
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
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    for case in (case for case in cases() if case.name.startswith(prefix)):
        for label in TARGETS:
            print(json.dumps({"triton": triton.__version__} | measure(case, label)), flush=True)


if __name__ == "__main__":
    main()
