"""Which version of a distribution is installed, and whether an adapter was written for it."""

from __future__ import annotations

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


def accepts(specifier: str, installed: str) -> bool:
    """Return whether `installed` satisfies `specifier`; pre-releases and local builds such as ``+cpu`` count."""
    return SpecifierSet(specifier).contains(installed, prereleases=True)
