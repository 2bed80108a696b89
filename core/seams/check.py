"""Checks a seam table against the installed code."""

from __future__ import annotations

import logging
from collections.abc import Collection

from slipstream.core.seams.resolve import NotFoundError, parameters_of, resolve, without_receiver
from slipstream.core.seams.result import SeamResult, SeamStatus
from slipstream.core.seams.table import Seam, SeamTable
from slipstream.core.seams.versions import accepts, installed_version

_logger = logging.getLogger("slipstream")


class SeamError(RuntimeError):
    """A seam that an enabled feature needs does not fit; the message says how to switch the feature off."""


def check(
    table: SeamTable, features: Collection[str] | None = None, modules: Collection[str] | None = None
) -> list[SeamResult]:
    """Check the version and each seam of `table`; modules are imported when their seam's turn comes.

    :param features: only the seams of these features; None is all of them.
    :param modules: only the seams in these modules; None is all of them.
    :returns: the row about the version first, then one row a seam. When the distribution is not installed, only the
        first row.
    """
    version = _check_version(table)
    if version.status is SeamStatus.NOT_INSTALLED:
        return [version]
    chosen = (
        seam
        for seam in table.seams
        if (features is None or seam.feature in features)
        and (modules is None or seam.target.partition(":")[0] in modules)
    )
    return [version, *map(_check_seam, chosen)]


def require(
    table: SeamTable, features: Collection[str], modules: Collection[str] | None = None, strict: bool = True
) -> list[SeamResult]:
    """Check the seams of `features` and raise when one is broken; an untested version is logged as a warning.

    :param modules: only the seams in these modules; None is all of them.
    :param strict: False logs what is broken as a warning and goes on.
    :returns: what `check` returns.
    :raises SeamError: naming each broken seam, expected, found, the installed version and the option that does
        without the feature.
    """
    results = check(table, features, modules)
    broken = [result for result in results if result.broken]
    if broken and strict:
        raise SeamError(_explain(table, features, broken))
    if broken:
        _logger.warning("%s", _explain(table, features, broken))
    if results[0].status is SeamStatus.UNTESTED_VERSION:
        _logger.warning(
            "slipstream plugin %r is written for %s %s, installed is %s; its seams still fit",
            table.owner,
            results[0].target,
            results[0].expected,
            results[0].found,
        )
    return results


def remedy(table: SeamTable, broken: Collection[SeamResult], features: Collection[str] = ()) -> str:
    """Return the versions to install instead and the options that do without what is broken.

    :param broken: broken rows of the table.
    :param features: the features in question when no broken row names one.
    """
    affected = {result.feature for result in broken if result.feature} or set(features)
    options = " ".join(sorted(table.off_option(feature) for feature in affected))
    return f"Install {' / '.join(table.names())} {table.versions}, or switch the feature off with {options}"


def _check_version(table: SeamTable) -> SeamResult:
    expected = f"{table.versions} (run against {', '.join(table.tested) or 'none'})"
    installed = installed_version(table.distribution)
    if installed is None:
        status, found = SeamStatus.NOT_INSTALLED, "not installed"
    elif installed in table.tested or accepts(table.versions, installed):
        status, found = SeamStatus.OK, installed
    else:
        status, found = SeamStatus.UNTESTED_VERSION, installed
    return SeamResult(" / ".join(table.names()), "", status, expected, found, "version")


def _check_seam(seam: Seam) -> SeamResult:
    expected = seam.signature or "present"
    try:
        attribute = resolve(seam.target)
    except NotFoundError as error:
        return SeamResult(seam.target, seam.feature, SeamStatus.MISSING, expected, str(error), seam.note)
    if seam.signature is None:
        return SeamResult(seam.target, seam.feature, SeamStatus.OK, expected, "present", seam.note)
    names = parameters_of(attribute)
    found = "no signature" if names is None else f"({', '.join(names)})"
    fits = names is not None and _fits(seam.signature, names)
    status = SeamStatus.OK if fits else SeamStatus.SIGNATURE_CHANGED
    return SeamResult(seam.target, seam.feature, status, expected, found, seam.note)


def _fits(signature: str, names: tuple[str, ...]) -> bool:
    stated = [part.strip() for part in signature.strip("() ").split(",") if part.strip()]
    is_open = bool(stated) and stated[-1] == "..."
    expected = without_receiver(stated[:-1] if is_open else stated)
    return names[: len(expected)] == expected if is_open else names == expected


def _explain(table: SeamTable, features: Collection[str], broken: list[SeamResult]) -> str:
    names = " / ".join(table.names())
    installed = installed_version(table.distribution)
    lines = [f"slipstream plugin {table.owner!r} does not fit the installed {names} {installed or '(not installed)'}:"]
    for result in broken:
        feature = f" [{result.feature}]" if result.feature else ""
        lines.append(f"  {result.target}{feature}: {result.status.value}")
        lines.append(f"    expected {result.expected}")
        lines.append(f"    found    {result.found}")
    lines.append(remedy(table, broken, features))
    return "\n".join(lines)
