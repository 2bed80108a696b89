"""Schedules of tiny graphs against every possible one, enumerated slot by slot in plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import small_graphs
from small_graphs import GANGS, Instance

from slipstream.core.graph.compiled.model import GANG
from slipstream.core.graph.schedulers import GREEDY_RULE, ROUND_ROBIN_RULE, Beam, LookAhead
from slipstream.core.graph.substages import StageKind


def fewest_slots(instance: Instance) -> int:
    """Breadth-first search over the work done of every node, in hundredths of a slot."""
    rate = np.round(100 * instance.rates).astype(int)
    nodes = [(p, node) for p, graph in enumerate(instance.graphs) for node in graph.nodes]
    kinds = [node.load if node.kind is StageKind.DECODE else GANG + GANGS.index(node.kind) for _, node in nodes]
    places = {(p, node.id): i for i, (p, node) in enumerate(nodes)}
    before = [[places[p, a] for a, b in instance.graphs[p].edges if b == node.id] for p, node in nodes]
    total = tuple(round(100 * node.seconds) for _, node in nodes)

    def may_share(i: int, j: int) -> bool:
        (p, _), (q, _) = nodes[i], nodes[j]
        a, b = kinds[i], kinds[j]
        if p == q or instance.floors[p][a >= GANG] + instance.floors[q][b >= GANG] > 1.0:
            return False
        if a >= GANG and b >= GANG:
            return bool(rate[a, b] + rate[b, a] >= 120)
        return a >= GANG or b >= GANG

    def speeds(running: tuple[int, ...]) -> dict[int, int] | None:
        found = dict.fromkeys(running, 100)
        for worker in range(instance.workers):
            here = [i for i in running if worker in nodes[i][1].workers]
            if len(here) > 2 or (len(here) == 2 and not may_share(*here)):
                return None
            if len(here) == 2:
                for i, j in (here, here[::-1]):
                    found[i] = min(found[i], int(rate[kinds[i], kinds[j]]))
        return found

    def dominates(more: tuple[int, ...], less: tuple[int, ...]) -> bool:
        return all(x <= y for x, y in zip(less, more, strict=True))

    front = {tuple(0 for _ in nodes)}
    for slot in itertools.count():
        if total in front:
            return slot
        following = set()
        for done in front:
            ready = [i for i in range(len(nodes)) if done[i] < total[i] and all(done[j] == total[j] for j in before[i])]
            for size in range(1, len(ready) + 1):
                for running in itertools.combinations(ready, size):
                    found = speeds(running)
                    if found is not None:
                        following.add(tuple(min(total[i], d + found.get(i, 0)) for i, d in enumerate(done)))
        front = {a for a in following if not any(a != b and dominates(b, a) for b in following)}
    raise AssertionError


def test_no_scheduler_beats_the_enumeration_and_the_look_ahead_is_close():
    tiny = [each for each in map(small_graphs.draw, range(60)) if each.nodes <= 7][:12]
    gaps = []
    for instance in tiny:
        best = fewest_slots(instance)
        found = {
            scheduler: small_graphs.run(instance, scheduler)
            for scheduler in (ROUND_ROBIN_RULE, GREEDY_RULE, Beam(4, 3), LookAhead(0.0), LookAhead(0.0, 4, 3))
        }
        assert min(found.values()) >= best
        assert max(found.values()) <= small_graphs.serial_slots(instance) + sum(len(g.nodes) for g in instance.graphs)
        gaps.append(found[LookAhead(0.0, 4, 3)] / best - 1.0)
    assert len(gaps) >= 8
    assert np.mean(gaps) <= 0.02
