"""Which version of a distribution is installed, and whether an adapter was written for it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet


def installed_version(names: str | tuple[str, ...]) -> str | None:
    """Return the version of the first installed distribution of `names`, or None when there is none."""
    for name in (names,) if isinstance(names, str) else names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def installed_versions(names: Iterable[str | tuple[str, ...]]) -> dict[str, str]:
    """Return the versions of those of `names` that are installed; alternatives go by the first name."""
    found = {name if isinstance(name, str) else name[0]: installed_version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


def accepts(specifier: str, installed: str) -> bool:
    """Return whether `installed` satisfies `specifier`; pre-releases and local builds such as ``+cpu`` count."""
    return SpecifierSet(specifier).contains(installed, prereleases=True)
