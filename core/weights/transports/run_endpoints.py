"""Addresses of a run's ends: sockets that no other run on the node shares, or this node's own network address."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import stat
import tempfile
import time

from slipstream.core.config import RUN_NONCE

_SOCKETS = "slipstream-"
_LONGEST_PATH = 100
"""Bytes; Unix takes 107, and `{local_rank}` in a name may grow."""
_OPENING_SECONDS = 60.0
_swept: set[str] = set()


def run_socket(name: str) -> str:
    """Path of a socket of this run; the first call removes those that dead runs left."""
    import ray

    # Ray's job ids start anew in every cluster, so two runs on one node may share them: hence the run id.
    run = os.environ.get(RUN_NONCE, "")[:12] or ray.get_runtime_context().get_job_id()
    file = f"{_SOCKETS}{run}-{name}.sock"
    folder = tempfile.gettempdir()
    if len(os.fsencode(os.path.join(folder, file))) > _LONGEST_PATH:
        folder = "/tmp"  # the folders of batch systems are often longer than a socket's path may be
    if folder not in _swept:
        _swept.add(folder)
        remove_stale_sockets(os.path.join(glob.escape(folder), f"{_SOCKETS}*.sock"))
    return os.path.join(folder, file)


def remove_stale_sockets(pattern: str) -> None:
    """Remove the sockets that earlier runs left on this node: Ray kills its workers, so none removes its own.

    Args:
        pattern: of their paths. What is no socket stays, so do those that somebody listens on, and those of the last
            minute: one that is being opened refuses connections as well.
    """
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:  # another user's, or just removed
            found = os.lstat(path)
            if stat.S_ISSOCK(found.st_mode) and time.time() - found.st_mtime > _OPENING_SECONDS:
                probe.settimeout(1.0)
                try:
                    probe.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)


def node_address() -> str:
    """A TCP address of this node, the port left to the system."""
    import ray

    host = str(ray.util.get_node_ip_address()).strip("[]")  # type: ignore[no-untyped-call]
    return f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"
