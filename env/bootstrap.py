"""Set up everything `make` needs on a bare machine: Python 3.11, a C compiler and pip's registry.

Layers, so that several checkouts share the large part and never fight over the small one:

1. `<cache>/envs/<hash>`: every package of `cpu.lock`, keyed by the lock and the interpreter (`package_cache.py`);
2. `<cache>/triton-<version>`: one folder for each line of `triton.lock`, put on PYTHONPATH by kernel tests only;
3. `.venv` in the checkout: an almost empty environment on top of 1 that holds slipstream itself (`checkout.py`).

`bootstrap.py openrlhf` makes `.venv-openrlhf`: the same, with the packages of `openrlhf.lock` between 1 and 3, for a
framework whose dependencies clash with verl's. Only what differs from `cpu.lock` is in such an overlay's lock.

The cache is `$SLIPSTREAM_CACHE`, or `slipstream` under `$XDG_CACHE_HOME` or `~/.cache`. When nothing changed a run
takes a fraction of a second. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = (3, 11)
OVERLAYS = ("openrlhf", "sglang")


def cache_root() -> Path:
    own = os.environ.get("SLIPSTREAM_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "slipstream"


def main(names: list[str]) -> int:
    """Make `.venv`, then `.venv-<name>` for each overlay named."""
    unknown = [name for name in names if name not in OVERLAYS]
    if unknown:
        print(f"env: unknown overlay {unknown[0]!r}; there are: {', '.join(OVERLAYS)}", file=sys.stderr)
        return 2
    if sys.version_info[:2] != PYTHON:
        print(
            f"env: this is Python {sys.version.split()[0]} ({sys.executable}); the test environment is locked for "
            f"Python {PYTHON[0]}.{PYTHON[1]}.\n"
            "     Install it and run `make env PYTHON=/path/to/python3.11`.",
            file=sys.stderr,
        )
        return 2
    from checkout import Checkout
    from package_cache import InstallError, PackageCache

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    base = PackageCache(cache_root(), HERE / "cpu.lock", triton_lock=HERE / "triton.lock")
    caches = {"": base} | {name: PackageCache(cache_root(), HERE / f"{name}.lock", base=base) for name in names}
    try:
        fresh = [(cache.ensure() | Checkout(HERE.parent, name).ensure(cache)) for name, cache in caches.items()]
    except InstallError as error:
        print(f"\nenv: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nenv: interrupted; run `make env` again, it goes on where it stopped", file=sys.stderr)
        return 130
    if any(fresh):
        print(f"env: ready in {time.monotonic() - started:.0f} s: .venv on {base.env}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
