"""ArcticInference's suffix cache without CUDA, built once into the shared package cache.

Its wheel asks for a CUDA torch that nothing here needs; so it is built from its source distribution without build
isolation, in an environment of its own that sees the test environment's packages while it builds.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VERSION: Final = "0.3.0"
BUILD_REQUIREMENTS: Final = ("nanobind==2.9.2", "cmake", "ninja", "wheel", "setuptools", "grpcio-tools", "numpy")


def suffix_decoding_cache() -> Callable[..., Any]:
    """Return the class, building it on first use (about 3 minutes, needs a C++20 compiler and pip's registry).

    :raises RuntimeError: with the end of the build's output.
    """
    environment = _cache_root() / f"arctic-inference-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not (environment / "complete").exists():
        _build(environment)
    sys.path.append(str(site))
    try:
        module = importlib.import_module("arctic_inference.suffix_decoding")
    finally:
        sys.path.remove(str(site))
    made: Callable[..., Any] = module.SuffixDecodingCache
    return made


def _cache_root() -> Path:
    """The cache that `make env` uses."""
    own = os.environ.get("SLIPSTREAM_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "slipstream"
    return base.expanduser().resolve()


def _build(environment: Path) -> None:
    print(f"building arctic-inference {VERSION} without CUDA (once, about 3 minutes)", flush=True)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    build_environment = {
        **os.environ,
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("site-packages")),
        "CMAKE_ARGS": f"-DPython_EXECUTABLE={python}",
        "MAX_JOBS": "2",
    }
    _run([sys.executable, "-m", "venv", "--clear", str(environment)], dict(os.environ))
    _run([*pip, *BUILD_REQUIREMENTS], dict(os.environ))
    _run([*pip, "--no-build-isolation", "--no-deps", f"arctic-inference=={VERSION}"], build_environment)
    (environment / "complete").touch()


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} ... failed:\n{done.stdout[-2000:]}")
