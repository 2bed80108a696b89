"""The checkout's own `.venv`: a thin environment on top of the cached packages, with slipstream installed in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from package_cache import InstallError, PackageCache, exclusive

SOURCES = ("core", "plugins", "triton_kernels", "hydra_plugins")


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


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.state = self.venv / "slipstream-state.json"

    def fingerprint(self) -> str:
        """Changes when a file comes or goes (strict editable installs link files one by one) or pyproject changes."""
        digest = hashlib.sha256((self.root / "pyproject.toml").read_bytes())
        names = [
            os.path.join(folder, name)
            for top in SOURCES
            for folder, _, files in os.walk(self.root / top)
            for name in files
            if not name.endswith(".pyc")
        ]
        digest.update("\n".join(sorted(names)).encode())
        return digest.hexdigest()

    def ensure(self, cache: PackageCache) -> bool:
        """Bring `.venv` up to date. True if anything had to be done."""
        base = [str(cache.site_packages), sys.version, str(self.venv)]
        with exclusive(self.root / "pyproject.toml"):
            try:
                state = json.loads(self.state.read_text())
            except (OSError, ValueError):
                state = {}
            tree = self.fingerprint()
            if state.get("base") != base:
                print("env: making .venv")
                layer(self.venv, cache.env, cache.site_packages)
            elif state.get("tree") == tree:
                return False
            paths = os.pathsep.join(str(folder) for folder in cache.triton_dirs.values())
            (self.venv / "triton-paths").write_text(paths + "\n")
            self._link_for_types(cache.env)
            self._install()
            self.state.write_text(json.dumps({"base": base, "tree": tree}))
        return True

    def _link_for_types(self, base_env: Path) -> None:
        """A tree shaped like the import paths, for mypy: it does not know package-dir mappings."""
        base = self.venv / "base"
        base.unlink(missing_ok=True)
        base.symlink_to(base_env)
        tree = self.venv / "typing"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "slipstream").mkdir(parents=True)
        for top in SOURCES:
            parent = tree if top == "hydra_plugins" else tree / "slipstream"
            (parent / top).symlink_to(self.root / top)

    def _install(self) -> None:
        print("env: installing slipstream from this checkout (a few seconds)", flush=True)
        command = [str(self.venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--disable-pip-version-check", "--no-input"]
        # Strict: the default editable mode serves packages through an import hook that Hydra cannot list, and then
        # `+slipstream=...` silently adds a plain string instead of the config group.
        command += ["--config-settings", "editable_mode=strict", "--editable", str(self.root)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        # Metadata that the build leaves in the checkout would register every entry point a second time.
        for leftover in self.root.glob("*.egg-info"):
            shutil.rmtree(leftover)
        if done.returncode:
            raise InstallError(f"slipstream itself did not install:\n{done.stdout}")
