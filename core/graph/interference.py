"""How much two kinds of load slow each other down on one worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slipstream.core.graph.compiled.model import DECODE_EDGES, GANG, KINDS, LOGPROB, SYNC, TRAIN, Floats

LOADS: Final = tuple((low + high) / 2 for low, high in zip((0.0, *DECODE_EDGES), (*DECODE_EDGES, 1.0), strict=True))
"""The load u in the middle of each decode class."""


@dataclass(frozen=True)
class Interference:
    """Extra time a second of work takes beside another kind: 0.3 means 1.3 times as long.

    The defaults are assumptions; no GPU was measured. They say that compute suffers 0.12 + 0.6 u beside decode of
    load u, decode 0.30 + 0.6 u beside compute, a weight sync and what it meets 0.05 either way, and that two of a
    kind get half each. A pure tail and a train step then progress at 0.89 and 0.77; published: 1.26x mean for
    prefill beside decode (Bullet, arXiv 2504.19516), 1.16x to 1.48x for RL stages (JigsawRL, arXiv 2604.23838).
    """

    compute_beside_decode: tuple[float, float] = (0.12, 0.60)
    """Constant, and per unit of load."""

    decode_beside_compute: tuple[float, float] = (0.30, 0.60)
    """Constant, and per unit of load."""

    sync: float = 0.05
    """Of a sync, and beside one."""

    scale: float = 1.0
    """Everything times this, but for two of a kind; 2 is twice as much interference."""

    measured: Floats | None = field(default=None, compare=False)
    """float64[KINDS, KINDS], extra time as measured; not-a-number where nothing was measured."""

    def rates(self) -> Floats:
        """Return float64[KINDS, KINDS]: progress a second of the first kind beside the second.

        Where sharing gets less done than taking turns, both get half.
        """
        extra = np.full((KINDS, KINDS), np.nan)
        for compute in (GANG + LOGPROB, GANG + TRAIN):
            for kind, load in enumerate(LOADS):
                extra[compute, kind] = self.compute_beside_decode[0] + self.compute_beside_decode[1] * load
                extra[kind, compute] = self.decode_beside_compute[0] + self.decode_beside_compute[1] * load
        extra[GANG + SYNC, :] = self.sync
        extra[:, GANG + SYNC] = self.sync
        extra[GANG + SYNC, GANG + SYNC] = np.nan
        extra = np.where(np.isnan(extra), 1.0, self.scale * extra)
        if self.measured is not None:
            extra = np.where(np.isnan(self.measured), extra, self.measured)
        rates = 1.0 / (1.0 + extra)
        return np.where(rates + rates.T < 1.0, 0.5, rates)
