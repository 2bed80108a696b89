"""Put regular sets together again that were found in parts."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.core.weights.plan.lattice import Dims, Lattice, Point, nested, simplified


class _Line(NamedTuple):
    """A set seen as one pattern repeated along a line."""

    start: Point
    size: int
    vector: Point
    """Zero for a set seen as a single pattern, which fits into a line of any direction."""
    set_number: int


_NONE: Point = (0, 0, 0)


def coalesce(parts: list[Lattice]) -> list[Lattice]:
    """Merge disjoint sets where one continues the regular pattern of another, until no two do.

    Returns:
        Simplified sets in ascending order of their first element. Greedy, hence few rather than provably fewest.
    """
    sets = sorted((point, simplified(dims)) for point, dims in parts)
    while len(sets) > 1:
        merged = _pass(sets)
        if len(merged) == len(sets):
            break
        sets = merged
    return sets


def _pass(sets: list[Lattice]) -> list[Lattice]:
    """Join lines of equal pattern end to end; every set takes part in one line at most."""
    lines: dict[Dims, list[_Line]] = {}
    for index, (point, dims) in enumerate(sets):
        lines.setdefault(dims, []).append(_Line(point, 1, _NONE, index))
        for j, (size, *vector) in enumerate(dims):
            others = dims[:j] + dims[j + 1 :]
            lines.setdefault(others, []).append(_Line(point, size, (vector[0], vector[1], vector[2]), index))
    used: set[int] = set()
    result: list[Lattice] = []
    for pattern, members in lines.items():
        if len(members) > 1:
            result += _joined(pattern, members, used)
    return sorted(result + [lattice for index, lattice in enumerate(sets) if index not in used])


def _joined(pattern: Dims, members: list[_Line], used: set[int]) -> list[Lattice]:
    """The lines of one pattern that continue each other, joined; their sets are added to `used`."""
    members = sorted(members)
    starts: dict[Point, list[_Line]] = {}
    for line in members:
        starts.setdefault(line.start, []).append(line)
    result: list[Lattice] = []
    for number, line in enumerate(members):
        if line.set_number in used:
            continue
        taken, (start, size, vector, _), dims = [line.set_number], line, pattern
        following = iter(members[number + 1 :] if vector == _NONE else ())
        while True:
            if vector == _NONE:
                mate = next(
                    (m for m in following if m.set_number not in used and m.set_number != line.set_number), None
                )
                if mate is None:
                    break
                ahead = (mate.start[0] - start[0], mate.start[1] - start[1], mate.start[2] - start[2])
                if mate.vector not in (_NONE, ahead):
                    mate = None
            else:
                ahead = vector
                end = (start[0] + size * vector[0], start[1] + size * vector[1], start[2] + size * vector[2])
                mate = next(
                    (m for m in starts.get(end, ()) if m.set_number not in used and m.vector in (_NONE, vector)), None
                )
            longer = _line(pattern, size + mate.size, ahead) if mate else None
            if mate is None or longer is None:
                break
            taken.append(mate.set_number)
            size, vector, dims = size + mate.size, ahead, longer
        if len(taken) > 1:
            used.update(taken)
            result.append((start, simplified(dims)))
    return result


def _line(pattern: Dims, size: int, vector: Point) -> Dims | None:
    """The dimensions of a pattern repeated along a vector, or None where that is not a regular set."""
    if min(vector) < 0:
        return None
    dims = tuple(sorted((*pattern, (size, *vector)), key=lambda dim: -dim[1]))
    return dims if nested(dims) else None
