"""Time `plan` for a 70B-like dense model and a 128-expert MoE. Shapes only: no weights, no GPU, no network.

Run: .venv/bin/python benchmarks/transfer_plan/plan_large_models.py
Writes benchmarks/results/transfer_plan.json.
"""

from __future__ import annotations

import datetime
import json
import resource
import time
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from slipstream.core.weights.layout import Piece
from slipstream.core.weights.plan import Cut, Receivers, Senders, flat_shard, plan, sharded
from slipstream.triton_kernels import Box

RESULT = Path(__file__).resolve().parents[1] / "results" / "transfer_plan.json"
Shape = tuple[int, ...]
HIDDEN, FFN, VOCAB, HEADS, GROUPS, HEAD_DIM, LAYERS = 8192, 28672, 128256, 64, 8, 128, 80
EXPERTS, EXPERT_FFN, EXPERT_HIDDEN, MOE_LAYERS = 128, 768, 2048, 48


def pieces(boxes: list[Box], storage: int, at: int) -> list[Piece]:
    """Boxes as an engine records them, `at` elements into a fused storage."""
    return [Piece(storage, (*box._replace(dst_offset=box.dst_offset + at),)) for box in boxes]


def dense_shapes() -> dict[str, Shape]:
    """723 tensors, 70.6e9 elements."""
    shapes: dict[str, Shape] = {"embed": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"{layer}.q": (HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.k": (GROUPS * HEAD_DIM, HIDDEN),
            f"{layer}.v": (GROUPS * HEAD_DIM, HIDDEN),
            f"{layer}.o": (HIDDEN, HEADS * HEAD_DIM),
            f"{layer}.gate": (FFN, HIDDEN),
            f"{layer}.up": (FFN, HIDDEN),
            f"{layer}.down": (HIDDEN, FFN),
            f"{layer}.norm1": (HIDDEN,),
            f"{layer}.norm2": (HIDDEN,),
        }
    return shapes


def dense_engines(shapes: dict[str, Shape], tp: int, replicas: int) -> Receivers:
    """vLLM's layout: fused QKV and gate_up, row-parallel o and down, replicated norms."""
    fused = {"k": HEADS * HEAD_DIM, "v": (HEADS + GROUPS) * HEAD_DIM, "up": FFN}
    engines: dict[str, dict[str, list[Piece]]] = {}
    for worker in range(tp * replicas):
        held, storage = engines.setdefault(f"replica{worker // tp}-tp{worker % tp}", {}), -1
        for name, shape in shapes.items():
            kind = name.rpartition(".")[2]
            dims = [] if "norm" in kind else [1] if kind in ("o", "down") else [0]
            storage += kind not in fused
            boxes = sharded(shape, [Cut(dim, tp, worker % tp) for dim in dims])
            held[name] = pieces(boxes, storage, fused.get(kind, 0) // tp * HIDDEN)
    return engines


def expert_names() -> Iterator[tuple[int, int, str, Shape]]:
    """18,432 tensors of (layer, expert, kind, shape)."""
    matrix = {"gate": (EXPERT_FFN, EXPERT_HIDDEN), "up": (EXPERT_FFN, EXPERT_HIDDEN)}
    for layer in range(MOE_LAYERS):
        for expert in range(EXPERTS):
            for kind, shape in {**matrix, "down": (EXPERT_HIDDEN, EXPERT_FFN)}.items():
                yield layer, expert, kind, shape


def expert_trainers(ep: int) -> Senders:
    """Whole experts, EXPERTS / ep a rank."""
    ranks: dict[int, dict[str, list[Box]]] = {rank: {} for rank in range(ep)}
    for layer, expert, kind, shape in expert_names():
        ranks[expert * ep // EXPERTS][f"{layer}.{expert}.{kind}"] = sharded(shape)
    return ranks


def expert_engines(ep: int, tp: int) -> Receivers:
    """vLLM's stacked w13 and w2: EXPERTS / ep experts a worker, each cut in tp parts."""
    engines: dict[str, dict[str, list[Piece]]] = {}
    for worker in range(ep * tp):
        held = engines.setdefault(f"worker{worker}", {})
        for layer, expert, kind, shape in expert_names():
            if expert * ep // EXPERTS == worker // tp:
                boxes = sharded(shape, [Cut(1 if kind == "down" else 0, tp, worker % tp)])
                matrix, slot = prod(shape) // tp, expert % (EXPERTS // ep)
                at = slot * matrix if kind == "down" else (2 * slot + (kind == "up")) * matrix
                held[f"{layer}.{expert}.{kind}"] = pieces(boxes, 2 * layer + (kind == "down"), at)
    return engines


def report(label: str, maps: Callable[[], tuple[Senders, Receivers]]) -> dict[str, Any]:
    """Plan once, print, and return the row."""
    senders, receivers = maps()
    wall, cpu = time.perf_counter(), time.process_time()
    made = plan(senders, receivers)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    start = time.perf_counter()
    digest = made.digest
    hashed = time.perf_counter() - start
    loads = list(made.load.values())
    destinations = sum(len(t.destinations) for t in made.transfers)
    highest = max(loads) * len(loads) / sum(loads)
    print(
        f"{label}: {wall:.2f} s ({cpu:.2f} s CPU); {len(made.transfers)} transfers, "
        f"{destinations} destinations; "
        f"highest load {highest:.4f} x mean; "
        f"digest {digest[:8]} in {hashed:.2f} s; peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB",
        flush=True,
    )
    return {
        "case": label,
        "transfers": len(made.transfers),
        "destinations": destinations,
        "CPU seconds": round(cpu, 3),
        "highest load over mean": round(highest, 5),
    }


def main() -> None:
    """Print one line for each case and write the result file."""
    shapes = dense_shapes()
    numels = {name: prod(shape) for name, shape in shapes.items()}
    length = -(-sum(numels.values()) // 64)
    engines = dense_engines(shapes, tp=8, replicas=4)
    fsdp2 = {rank: {n: sharded(s, [Cut(0, 64, rank)]) for n, s in shapes.items()} for rank in range(64)}
    hsdp = {rank: {n: sharded(s, [Cut(0, 8, rank % 8)]) for n, s in shapes.items()} for rank in range(64)}
    flat = {rank: flat_shard(numels, rank * length, (rank + 1) * length) for rank in range(64)}
    rows = [
        report("dense, FSDP2 64 -> TP 8 x 4", lambda: (fsdp2, engines)),
        report("dense, HSDP 8 x 8 -> TP 8 x 4", lambda: (hsdp, engines)),
        report("dense, one flat parameter over 64 -> TP 8 x 4", lambda: (flat, engines)),
        report("128 experts x 48 layers, EP 8 -> EP 8", lambda: (expert_trainers(8), expert_engines(8, 1))),
        report("128 experts x 48 layers, EP 8 -> TP 8", lambda: (expert_trainers(8), expert_engines(1, 8))),
        report("128 experts x 48 layers, EP 8 -> EP 2 x TP 4", lambda: (expert_trainers(8), expert_engines(2, 4))),
    ]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"date": datetime.date.today().isoformat(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
