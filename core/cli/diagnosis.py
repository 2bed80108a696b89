"""What ``slipstream doctor`` finds out, as data."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.core.config import parse_config
from slipstream.core.hooks import Engine, Framework, plugins
from slipstream.core.seams import SeamResult, check, installed_version, remedy


@dataclass(frozen=True)
class AdapterDiagnosis:
    """The seam table of one adapter in this environment."""

    kind: str
    """``framework`` or ``engine``."""

    name: str
    """The adapter's name."""

    version: str | None
    """Installed version of what it adapts, or None."""

    results: tuple[SeamResult, ...]
    """The rows of the seam table; empty when it is not installed."""

    remedy: str | None
    """What to do about broken rows, or None when there are none."""

    @property
    def broken(self) -> bool:
        """Whether a seam of an installed framework or engine is broken."""
        return self.remedy is not None


@dataclass(frozen=True)
class Diagnosis:
    """The whole report."""

    hydra_problem: str | None
    """Why ``+slipstream=sync`` would not work on a Hydra command line, or None when it works."""

    adapters: tuple[AdapterDiagnosis, ...]
    """Frameworks first, then engines."""

    @property
    def healthy(self) -> bool:
        """Whether everything that is installed can be used."""
        return self.hydra_problem is None and not any(adapter.broken for adapter in self.adapters)


def diagnose() -> Diagnosis:
    """Check Hydra's discovery and the seams of each registered adapter; imports what it checks."""
    known = plugins()
    frameworks = [_diagnose("framework", adapter) for adapter in known.frameworks().values()]
    engines = [_diagnose("engine", adapter) for adapter in known.engines().values()]
    return Diagnosis(_hydra_problem(), (*frameworks, *engines))


def _diagnose(kind: str, adapter: Framework | Engine) -> AdapterDiagnosis:
    version = installed_version(adapter.distribution)
    if version is None:
        return AdapterDiagnosis(kind, adapter.name, None, (), None)
    table = adapter.seams()
    results = tuple(check(table))
    broken = [result for result in results if result.broken]
    return AdapterDiagnosis(kind, adapter.name, version, results, remedy(table, broken) if broken else None)


def _hydra_problem() -> str | None:
    """Compose the override that users type: discovery can fail without any error."""
    from slipstream.core.cli.compose import compose_config, node_of

    try:
        parse_config(node_of(compose_config(["+slipstream=sync"])))
    except Exception as error:
        return f"{error}"
    return None
