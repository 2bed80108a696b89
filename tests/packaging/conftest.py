"""Build and install slipstream away from the checkout: what a user gets, not what lies here."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCE_TOPS = ("core", "plugins", "triton_kernels", "hydra_plugins")
BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Layout:
    """The mapping of pyproject.toml between folders and import names."""

    packages: tuple[str, ...]
    package_dir: dict[str, str]

    def folder(self, package: str) -> Path:
        for prefix in sorted(self.package_dir, key=len, reverse=True):
            if package == prefix or package.startswith(prefix + "."):
                return ROOT / self.package_dir[prefix] / package[len(prefix) + 1 :].replace(".", "/")
        raise AssertionError(f"{package} lies under no entry of package-dir")

    def wheel_path(self, file: Path) -> str:
        """Where a file of the checkout belongs in the wheel."""
        for prefix, folder in self.package_dir.items():
            if file.is_relative_to(ROOT / folder):
                return f"{prefix.replace('.', '/')}/{file.relative_to(ROOT / folder).as_posix()}"
        raise AssertionError(f"{file} lies under no entry of package-dir")


def tree_files(suffix: str) -> list[Path]:
    return sorted(file for top in SOURCE_TOPS for file in (ROOT / top).rglob(f"*{suffix}"))


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def layout(pyproject: dict[str, Any]) -> Layout:
    table = pyproject["tool"]["setuptools"]
    return Layout(tuple(table["packages"]), table["package-dir"])


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_sources(target: Path) -> Path:
    """The checkout without what earlier builds left in it: a stale `build/` ends up in wheels."""
    target.mkdir()
    for top in SOURCE_TOPS:
        shutil.copytree(ROOT / top, target / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, target / name)
    return target


def pip(python: str | Path, *arguments: str | Path, cwd: Path) -> str:
    return run(python, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


@dataclass(frozen=True)
class Installed:
    """A fresh environment with slipstream in it, asked through its own interpreter from a neutral folder."""

    python: Path
    cwd: Path
    home: Path  # the folder slipstream's modules must come from

    def ask(self, code: str) -> Any:
        return json.loads(run(self.python, "-c", code, cwd=self.cwd).splitlines()[-1])


def fresh_layer(folder: Path) -> Path:
    """An environment layered on the cached packages the way `make env` layers `.venv`."""
    base_site = Path(str(importlib.metadata.distribution("verl").locate_file(""))).resolve()
    make = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from checkout import layer"
    make += "; layer(Path(sys.argv[2]), Path(sys.argv[3]).parents[2], Path(sys.argv[3]))"
    run(sys.executable, "-c", make, ROOT / "env", folder, base_site, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp, copy_sources(tmp / "src"), cwd=tmp)
    (built,) = tmp.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp)!r})"
    run(sys.executable, "-c", code, cwd=copy_sources(tmp / "src"))
    (built,) = tmp.glob("*.tar.gz")
    return built


@pytest.fixture(scope="session")
def sdist_wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from nothing but the source distribution."""
    tmp = tmp_path_factory.mktemp("from-sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp, filter="data")
    (source,) = (path for path in tmp.iterdir() if path.is_dir())
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp, source, cwd=tmp)
    (built,) = tmp.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel_install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    tmp = tmp_path_factory.mktemp("wheel-install")
    python = fresh_layer(tmp / "venv")
    pip(python, "install", "--no-deps", "--no-index", wheel, cwd=tmp)
    (site,) = (tmp / "venv").glob("lib/python*/site-packages")
    return Installed(python, tmp, site)


@pytest.fixture(scope="session")
def editable_install(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    tmp = tmp_path_factory.mktemp("editable-install")
    python = fresh_layer(tmp / "venv")
    source = copy_sources(tmp / "src")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--config-settings", "editable_mode=strict")
    pip(python, "install", *options, "--editable", source, cwd=tmp)
    return Installed(python, tmp, source / "build")


@pytest.fixture(scope="session")
def readme_install(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The first command of the README, in a clone."""
    block = (ROOT / "README.md").read_text().partition("### verl")[2].split("```")[1]
    command, *_ = (line.partition("#")[0].split() for line in block.splitlines() if line.startswith("pip "))
    tmp = tmp_path_factory.mktemp("readme-install")
    python = fresh_layer(tmp / "venv")
    offline = ("--no-index", "--no-build-isolation")  # what it needs is in the layer
    pip(python, *command[1:], *offline, cwd=copy_sources(tmp / "src"))
    (site,) = (tmp / "venv").glob("lib/python*/site-packages")
    return Installed(python, tmp, site)


@pytest.fixture(params=["wheel_install", "editable_install", "readme_install"])
def installed(request: pytest.FixtureRequest) -> Installed:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
