"""The post-import hook: order, timing, failures, and what importers may observe."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from slipstream.plugins.verl.post_import import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `late` with two modules, importable and not yet imported."""
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "one.py").write_text("value = 1\ndef f():\n    return value\n")
    (folder / "two.py").write_text("from late.one import value\nseen = value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name == "late" or name.startswith("late.")]:
        del sys.modules[name]


def test_callback_runs_before_the_importer_sees_the_module(package: Path) -> None:
    def patch(module: ModuleType) -> None:
        module.value = 5  # type: ignore[attr-defined]

    after_import("late.one", patch)
    assert "late" not in sys.modules, "registering must not import anything"
    two = importlib.import_module("late.two")
    assert two.seen == 5


def test_already_imported_runs_at_once(package: Path) -> None:
    importlib.import_module("late.one")
    seen: list[str] = []
    after_import("late.one", lambda module: seen.append(module.__name__))
    assert seen == ["late.one"]


def test_callbacks_run_once_and_in_order(package: Path) -> None:
    seen: list[int] = []
    after_import("late.one", lambda module: seen.append(1))
    after_import("late.one", lambda module: seen.append(2))
    module = importlib.import_module("late.one")
    importlib.reload(module)
    assert seen == [1, 2]


def test_module_keeps_its_loader_and_source(package: Path) -> None:
    after_import("late.one", lambda module: None)
    module = importlib.import_module("late.one")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "return value" in inspect.getsource(module.f)


def test_failing_callback_fails_the_import_every_time(package: Path) -> None:
    calls: list[int] = []

    def fail_once(module: ModuleType) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no longer fits")

    after_import("late.one", fail_once)
    with pytest.raises(ValueError, match="no longer fits"):
        importlib.import_module("late.one")
    assert "late.one" not in sys.modules
    importlib.import_module("late.one")
    assert len(calls) == 2


def test_callback_may_wait_for_another_module(package: Path) -> None:
    seen: list[str] = []
    after_import("late.one", lambda one: after_import("late.two", lambda two: seen.append(two.__name__)))
    importlib.import_module("late.one")
    assert seen == []
    importlib.import_module("late.two")
    assert seen == ["late.two"]


def test_half_imported_module_is_refused(package: Path) -> None:
    (package / "half.py").write_text(
        "from slipstream.plugins.verl.post_import import after_import\nafter_import('late.half', print)\n"
    )
    with pytest.raises(RuntimeError, match="half imported"):
        importlib.import_module("late.half")


def test_missing_module_still_raises_import_error(package: Path) -> None:
    after_import("late.nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("late.nowhere")
