"""The exact referee: optimal schedules of small instances by CP-SAT (OR-Tools), slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model
from small_graphs import GANGS, Instance

from slipstream.core.graph.compiled.model import GANG
from slipstream.core.graph.substages import StageKind, SubStage


@dataclass(frozen=True)
class Solved:
    """What the solver found."""

    slots: int
    """The best schedule; a lower bound where it is not proven."""
    proven: bool


def solve(instance: Instance, horizon: int, seconds: float = 10.0) -> Solved:
    """Return the fewest slots in which everything can end.

    Every node may run in any set of slots once those before it have done their work (a hundred a slot alone, less
    beside something else); at most one rollout and one gang stage, or two gang stages, share a worker, where memory
    allows it.

    Args:
        horizon: slots that are enough, from a heuristic.
        seconds: limit of the search.
    """
    model = cp_model.CpModel()
    slots = range(horizon)
    rate = (100 * instance.rates).round().astype(int)
    items: list[tuple[int, SubStage]] = [(p, node) for p, graph in enumerate(instance.graphs) for node in graph.nodes]
    runs = {(p, node.id, t): model.new_bool_var("") for p, node in items for t in slots}
    work = {(p, node.id, t): model.new_int_var(0, 100, "") for p, node in items for t in slots}
    end = model.new_int_var(0, horizon, "")
    for p, node in items:
        for t in slots:
            model.add(work[p, node.id, t] <= 100 * runs[p, node.id, t])
            model.add(end >= t + 1).only_enforce_if(runs[p, node.id, t])
        model.add(sum(work[p, node.id, t] for t in slots) >= round(100 * node.seconds))
    for p, graph in enumerate(instance.graphs):
        for before, after in graph.edges:
            needed = round(100 * graph.nodes[before].seconds)
            for t in slots:
                model.add(sum(work[p, before, s] for s in range(t)) >= needed).only_enforce_if(runs[p, after, t])
    kinds = {
        (p, node.id): node.load if node.kind is StageKind.DECODE else GANG + GANGS.index(node.kind) for p, node in items
    }
    for i, (p, one) in enumerate(items):
        for q, other in items[i + 1 :]:
            if p == q or not set(one.workers) & set(other.workers):
                continue  # nodes of one pipeline that share a worker follow one another
            a, b = kinds[p, one.id], kinds[q, other.id]
            memory = instance.floors[p][a >= GANG] + instance.floors[q][b >= GANG]
            together = (
                memory <= 1.0
                and (a >= GANG or b >= GANG)
                and not (a >= GANG and b >= GANG and rate[a, b] + rate[b, a] < 120)
            )
            for t in slots:
                x, y = runs[p, one.id, t], runs[q, other.id, t]
                if not together:
                    model.add_bool_or(~x, ~y)
                    continue
                model.add(work[p, one.id, t] <= int(rate[a, b])).only_enforce_if(y)
                model.add(work[q, other.id, t] <= int(rate[b, a])).only_enforce_if(x)
    for worker in range(instance.workers):
        on_worker = [(p, node) for p, node in items if worker in node.workers]
        for t in slots:
            model.add(sum(runs[p, node.id, t] for p, node in on_worker) <= 2)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status == cp_model.OPTIMAL:
        return Solved(round(solver.objective_value), proven=True)
    if status in (cp_model.FEASIBLE, cp_model.UNKNOWN):
        return Solved(round(solver.best_objective_bound), proven=False)
    raise RuntimeError(f"expected a schedule within {horizon} slots, the solver says {solver.status_name(status)}")
