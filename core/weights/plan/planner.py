"""The transfer plan: who sends which elements to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slipstream.core.weights.errors import SyncError
from slipstream.core.weights.layout import Piece
from slipstream.core.weights.plan.routes import Gap, Held, Route, routes
from slipstream.core.weights.plan.transfer import Destination, Transfer, TransferPlan
from slipstream.triton_kernels import Box, normalise

Senders = Mapping[int, Mapping[str, Sequence[Box]]]
"""By trainer rank and tensor: checkpoint index to index in the rank's flat local shard (see `shards`)."""
Receivers = Mapping[str, Mapping[str, Sequence[Piece]]]
"""By engine worker and tensor: `TensorLayout.pieces`."""


def plan(senders: Senders, receivers: Receivers, widths: Mapping[str, int] | None = None) -> TransferPlan:
    """Cover every element that receivers hold by exactly one transfer to each of them.

    Where several senders hold the same elements, the one with the least to send so far takes them, the largest parts
    first, after the parts that only one sender holds. Every process that gets the same arguments, whatever the order
    of their keys, computes the same plan.

    Args:
        senders: what each trainer rank holds. Ranks may hold the same elements; unneeded tensors are ignored.
        receivers: what each engine worker holds, of the tensors to transfer.
        widths: bytes an element of each tensor, for the balance; 1 where absent.

    Raises:
        SyncError: a receiver holds elements that no sender does; the message names tensor, receiver and elements.
        ValueError: a box does not invert (see `normalise`).
    """
    ranks = sorted(senders)
    tensors = _routed(senders, receivers)
    chosen, load = _balanced(tensors, ranks, widths or {})
    transfers = []
    for number, (name, ways, ends) in enumerate(tensors):
        for at, route in enumerate(ways):
            sender, send = route.senders[chosen.get((number, at), 0)]
            destinations = tuple([Destination(*ends[index], box) for index, box in route.destinations])
            transfers.append(Transfer(name, ranks[sender], route.region, send, destinations))
    return TransferPlan(tuple(transfers), load)


class _Routed(NamedTuple):
    """The ways of one tensor."""

    name: str
    routes: list[Route]
    ends: list[tuple[str, int]]
    """What a route's destination index stands for: receiver and storage."""


def _routed(senders: Senders, receivers: Receivers) -> list[_Routed]:
    """The routes of every needed tensor, by name; worked out once for tensors that are held alike, as layers are."""
    ranks, workers = sorted(senders), sorted(receivers)
    forms: dict[Box, Box] = {}
    known: dict[tuple[Held, Held], list[Route]] = {}

    def normal(box: Box) -> Box:
        form = forms.get(box)
        if form is None:
            form = forms[box] = normalise(box)
        return form

    result = []
    for name in sorted({name for worker in workers for name, pieces in receivers[worker].items() if pieces}):
        pieces = [(i, piece) for i, worker in enumerate(workers) for piece in receivers[worker].get(name, ())]
        holds = tuple([(i, normal(box)) for i, rank in enumerate(ranks) for box in senders[rank].get(name, ())])
        needs = tuple([(i, normal(Box(*piece.box))) for i, piece in pieces])
        found = known.get((holds, needs))
        if found is None:
            try:
                found = known[holds, needs] = routes(holds, needs)
            except Gap as gap:
                raise SyncError(
                    f"no trainer rank holds {gap.missing} elements of {name} that engine worker "
                    f"{workers[gap.receiver]} needs, between flat indices {gap.first} and {gap.last}; the shard maps "
                    "of the trainer are incomplete. Use slipstream/weight_sync=native for this model."
                ) from None
        result.append(_Routed(name, found, [(workers[i], piece.storage) for i, piece in pieces]))
    return result


def _balanced(
    tensors: list[_Routed], ranks: list[int], widths: Mapping[str, int]
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Choose a sender where there are several.

    Returns:
        The choice, as an index into `Route.senders`, by (tensor number, route number); and the bytes each rank sends.
    """
    load = [0] * len(ranks)
    open_choices: list[tuple[int, int, int]] = []  # -bytes, tensor number, route number
    for number, (name, ways, ends) in enumerate(tensors):
        for at, route in enumerate(ways):
            copies = len({ends[index][0] for index, _ in route.destinations})
            cost = widths.get(name, 1) * route.region.numel * copies
            if len(route.senders) == 1:
                load[route.senders[0][0]] += cost
            else:
                open_choices.append((-cost, number, at))
    chosen: dict[tuple[int, int], int] = {}
    for cost, number, at in sorted(open_choices):
        able = tensors[number].routes[at].senders
        _, choice = min((load[sender], c) for c, (sender, _) in enumerate(able))
        chosen[number, at] = choice
        load[able[choice][0]] -= cost
    return chosen, dict(zip(ranks, load, strict=True))
