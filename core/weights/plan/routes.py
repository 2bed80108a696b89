"""The ways the elements of one tensor can go: every part that receivers need, with every sender that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slipstream.core.weights.plan.atoms import Index, atoms, meeting
from slipstream.core.weights.plan.difference import difference
from slipstream.core.weights.plan.intersect import intersect_normal
from slipstream.triton_kernels import Box, normalise

Held = Sequence[tuple[int, Box]]
"""(number of the sender or receiver, normalised box), one for each box it has of the tensor."""


class Route(NamedTuple):
    """Elements that travel together: one regular set on the checkpoint's, every sender's and every receiver's side."""

    region: Box
    """Checkpoint index to wire index."""
    senders: tuple[tuple[int, Box], ...]
    """Who can send it: (number, local index to wire index), ascending, each number once."""
    destinations: tuple[tuple[int, Box], ...]
    """Who needs it: (index into `needs`, wire index to storage index), ascending."""


class Gap(Exception):  # noqa: N818  # turned into the user's error by `plan`, which knows the names
    """A receiver needs elements that no sender holds."""

    def __init__(self, receiver: int, first: int, last: int, missing: int) -> None:
        super().__init__(receiver, first, last, missing)
        self.receiver, self.first, self.last, self.missing = receiver, first, last, missing


def routes(holds: Held, needs: Held) -> list[Route]:
    """Every needed part of a tensor, in ascending order of its first element.

    Parts that several receivers need alike are one route. Within one receiver an element is in one route only,
    however often the receiver holds it.

    Raises:
        Gap: some needed element is in no box of `holds`.
    """
    supply = Index.of(atoms([box for _, box in holds]))
    demands: dict[Box, list[int]] = {}
    for receiver in sorted({receiver for receiver, _ in needs}):
        own = [index for index, (number, _) in enumerate(needs) if number == receiver]
        for atom in atoms([needs[index][1] for index in own]):
            demands.setdefault(atom.region, []).extend(own[index] for index in atom.boxes)
    result: list[Route] = []
    for region, wanted in sorted(demands.items()):
        covered = 0
        for atom in meeting(region, supply):
            for overlap in intersect_normal(atom.region, region):
                covered += overlap.numel
                sources = [holds[index] for index in atom.boxes]
                result += _regular(overlap.region, sources, [(index, needs[index][1]) for index in wanted])
        if covered != region.numel:
            raise _gap(needs[wanted[0]][0], region, supply)
    return _grouped(result)


def _regular(region: Box, sources: Held, destinations: Held) -> Iterator[Route]:
    """Cut a region until it is one regular set in the coordinates of everyone involved (it nearly always is)."""
    wire = normalise(region)
    send = {box: intersect_normal(box, wire) for _, box in sources}
    receive = {box: intersect_normal(wire, box) for _, box in destinations}
    for parts in (*send.values(), *receive.values()):
        if len(parts) > 1:
            for part in parts:
                yield from _regular(part.region, sources, destinations)
            return
    senders: dict[int, Box] = {}
    for number, box in sources:
        senders.setdefault(number, normalise(send[box][0].sender_to_receiver))
    ends = tuple(sorted((index, normalise(receive[box][0].sender_to_receiver)) for index, box in destinations))
    yield Route(wire, tuple(sorted(senders.items())), ends)


def _grouped(found: list[Route]) -> list[Route]:
    """Routes of the same elements from the same senders, for several receivers, as one."""
    groups: dict[tuple[Box, tuple[tuple[int, Box], ...]], list[tuple[int, Box]]] = {}
    for route in found:
        groups.setdefault((route.region, route.senders), []).extend(route.destinations)
    return [Route(region, senders, tuple(sorted(ends))) for (region, senders), ends in sorted(groups.items())]


def _gap(receiver: int, region: Box, supply: Index) -> Gap:
    rest = [region]
    for atom in meeting(region, supply):
        rest = [left for box in rest for left in difference(box, atom.region)]
    first = min(box.src_offset for box in rest)
    last = max(box.src_offset + normalise(box).span - 1 for box in rest)
    return Gap(receiver, first, last, sum(box.numel for box in rest))
