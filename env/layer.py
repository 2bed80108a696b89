"""Virtual environments on top of each other, so that the large part is installed once and shared."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from pathlib import Path


def layer(target: Path, base_env: Path, base_site: Path) -> Path:
    """Make a virtual environment that sees every package of another one. Returns its interpreter.

    A `.pth` file adds the other site-packages folder after the new one's own, so what is installed here comes first,
    importlib.metadata finds the distributions of both, and `sys.executable` (which Ray gives its workers) stays here.
    """
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=False, symlinks=True)
    python = target / "bin" / "python"
    own_site = target / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # addsitedir, not a plain path: it also reads the .pth files that the cached packages brought.
    (own_site / "_layer.pth").write_text(f"import site; site.addsitedir({str(base_site)!r})\n")
    _copy_scripts(base_env / "bin", target / "bin")
    return python


def _copy_scripts(source: Path, target: Path) -> None:
    """Give the layer the base's commands: Python scripts run by the layer's interpreter, binaries as links."""
    theirs = str(source).encode()
    for script in source.iterdir():
        mine = target / script.name
        if mine.exists() or mine.is_symlink() or not script.is_file() or not os.access(script, os.X_OK):
            continue
        with script.open("rb") as handle:
            is_text = handle.read(2) == b"#!"
        if not is_text:
            mine.symlink_to(script)
            continue
        mine.write_bytes(script.read_bytes().replace(theirs, str(target).encode(), 1))
        mine.chmod(0o755)
