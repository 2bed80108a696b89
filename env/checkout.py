"""The checkout's own `.venv`: a thin environment on top of the cached packages, with slipstream installed in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from layer import layer
from package_cache import InstallError, PackageCache, exclusive

SOURCES = ("core", "plugins", "triton_kernels", "hydra_plugins")


class Checkout:
    """The `.venv` of a checkout, or the `.venv-<overlay>` that tests one more framework."""

    def __init__(self, root: Path, overlay: str = "") -> None:
        self.root = root
        self.venv = root / (f".venv-{overlay}" if overlay else ".venv")
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
                print(f"env: making {self.venv.name}")
                layer(self.venv, cache.env, cache.site_packages)
            elif state.get("tree") == tree:
                return False
            if cache.triton_dirs:
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
