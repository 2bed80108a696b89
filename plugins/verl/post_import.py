"""Run a function right after a module has been imported for the first time.

verl imports its plugins on every ``import verl``, in every Ray process. A plugin must therefore stay light (no
training engine, no vLLM) and must not import verl modules that are still being built, yet it has to reach modules
that only some of those processes will ever load. :func:`after_import` covers that: it changes nothing until the module
is really imported, and then runs before the importer sees the module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["after_import"]

Callback = Callable[[ModuleType], None]


class _CallbackLoader(Loader):
    """Delegates to the real loader, then runs the callbacks waiting for the module."""

    def __init__(self, finder: _PostImportFinder, loader: Loader) -> None:
        self._finder = finder
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader: `inspect`, `pkgutil` and pickling look at it.
        name = module.__name__
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            name = module.__spec__.name
            module.__spec__.loader = self._loader
        with self._finder.executing(name):
            self._loader.exec_module(module)
            self._finder.run(name, sys.modules.get(name, module))


class _Executing:
    """Context that marks one module as being executed by a :class:`_CallbackLoader`."""

    def __init__(self, active: set[str], name: str) -> None:
        self._active = active
        self._name = name

    def __enter__(self) -> None:
        self._active.add(self._name)

    def __exit__(self, *exc: object) -> None:
        self._active.discard(self._name)


class _PostImportFinder(MetaPathFinder):
    """A finder that finds nothing itself: it wraps the loader of the modules somebody waits for."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._active: set[str] = set()
        self._lock = threading.RLock()
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._callbacks or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname
        try:
            for finder in sys.meta_path:
                if finder is self:
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _CallbackLoader(self, spec.loader)
                    return spec
            return None
        finally:
            self._searching.name = None

    def executing(self, name: str) -> _Executing:
        return _Executing(self._active, name)

    def run(self, name: str, module: ModuleType) -> None:
        """Run what waits for `name`; a callback that fails stays registered, since the import fails with it."""
        with self._lock:
            while callbacks := self._callbacks.get(name):
                callbacks[0](module)
                callbacks.pop(0)
            self._callbacks.pop(name, None)

    def add(self, name: str, callback: Callback) -> None:
        with self._lock:
            module = sys.modules.get(name)
            if module is None or name in self._active:
                self._callbacks.setdefault(name, []).append(callback)
                return
        spec = getattr(module, "__spec__", None)
        if getattr(spec, "_initializing", False):
            raise RuntimeError(
                f"after_import({name!r}) was called while {name} was half imported, so nothing can tell when it is "
                "complete; call it before the import starts"
            )
        callback(module)

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)


_finder = _PostImportFinder()


def after_import(module_name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` right after `module_name` is first imported, or at once if it already is.

    Several callbacks for one module run in the order they were added. An exception of a callback makes the import
    itself fail, so a patch that no longer fits is loud. The module is not imported by this call.

    Args:
        module_name: Full dotted name.
        callback: Receives the module; its result is ignored.

    Raises:
        RuntimeError: The module is half imported by somebody who started before this call.
    """
    _finder.install()
    _finder.add(module_name, callback)
