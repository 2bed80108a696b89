"""The sources parse on every Python that pyproject promises; they are run and type-checked on 3.11 only."""

from __future__ import annotations

import ast

import pytest

from .conftest import ROOT, tree_files

VERSIONS = [(3, 10), (3, 11), (3, 12)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: ".".join(map(str, version)))
def test_sources_parse(version: tuple[int, int]) -> None:
    broken = {}
    for file in tree_files(".py"):
        try:
            ast.parse(file.read_text(), str(file.relative_to(ROOT)), feature_version=version)
        except SyntaxError as error:
            broken[str(file.relative_to(ROOT))] = str(error)
    assert broken == {}


def test_promised_versions_are_the_tested_ones(pyproject: dict[str, dict[str, object]]) -> None:
    classifiers = pyproject["project"]["classifiers"]
    assert isinstance(classifiers, list)
    promised = {line.rsplit(" ", 1)[1] for line in classifiers if "Python :: 3." in line}
    assert promised == {f"{major}.{minor}" for major, minor in VERSIONS}
