"""What the server adapter does around a sync: cached prefixes belong to the old weights."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.core.config import RUN_NONCE, SLIPSTREAM_NODE, parse_config, to_json
from slipstream.core.weights import SyncTimeoutError
from slipstream.core.weights.transports import bind, run_endpoints
from slipstream.plugins.verl.rollout import RemoteUpdate
from slipstream.plugins.verl.vllm_rollout import SlipstreamServerAdapter


@pytest.fixture(autouse=True)
def node(monkeypatch):
    settings = {"weight_sync": {"mode": "delta", "timeout_seconds": 0.2}}
    monkeypatch.setenv(SLIPSTREAM_NODE, to_json(parse_config(settings)))


class Server:
    """Records remote calls, as Ray's actor handle takes them."""

    def __init__(self, failing: str = "", silent: str = "") -> None:
        self.calls: list[tuple[str, dict]] = []
        self._failing, self._silent = failing, silent

    def __getattr__(self, name: str):
        async def call(*args, **kwargs):
            self.calls.append((name, kwargs))
            if name == self._failing:
                raise RuntimeError("the engine says no")
            if name == self._silent:
                await asyncio.Event().wait()

        return SimpleNamespace(remote=call)


def adapter(server: Server) -> SlipstreamServerAdapter:
    made = SlipstreamServerAdapter.__new__(SlipstreamServerAdapter)
    made.server_handle, made._has_server = server, True
    made._ensure_server_handle = lambda: True
    return made


def test_the_prefix_cache_is_dropped_after_the_workers_hold_the_new_weights():
    server = Server()
    update = RemoteUpdate(["tcp://a:1", "tcp://b:2"], 7.0)
    asyncio.run(adapter(server).update_weights(update, global_steps=3))
    assert [name for name, _ in server.calls] == ["slipstream_sync", "clear_kv_cache", "set_global_steps"]
    assert server.calls[0][1] == {"endpoints": ["tcp://a:1", "tcp://b:2"], "timeout": 7.0}


def test_a_failed_sync_is_raised_and_does_not_count_as_a_step():
    server = Server(failing="slipstream_sync")
    with pytest.raises(RuntimeError, match="the engine says no"):
        asyncio.run(adapter(server).update_weights(RemoteUpdate(["tcp://a:1"], 7.0), global_steps=3))
    assert [name for name, _ in server.calls] == ["slipstream_sync"]


def test_an_engine_that_never_answers_afterwards_is_an_error():
    server = Server(silent="clear_kv_cache")
    with pytest.raises(SyncTimeoutError, match=r"clear_kv_cache did not return within 0\.2 s"):
        asyncio.run(adapter(server).update_weights(RemoteUpdate(["tcp://a:1"], 7.0), global_steps=3))
    assert [name for name, _ in server.calls] == ["slipstream_sync", "clear_kv_cache"], "no step is stamped"


def test_a_folder_too_long_for_a_socket_is_passed_over(monkeypatch, tmp_path):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv(RUN_NONCE, uuid.uuid4().hex)
    path = run_endpoints.run_socket("0-0")
    try:
        bind("zeromq", f"ipc://{path}", True, 1.0).close()
    finally:
        Path(path).unlink(missing_ok=True)


def test_sockets_of_two_runs_differ_and_those_of_killed_runs_go(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def path(run: str) -> str:
        monkeypatch.setenv(RUN_NONCE, run * 16)
        run_endpoints._swept.clear()  # each run is a process of its own
        return run_endpoints.run_socket("0-0")

    def leave(path: str, age: float) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        os.utime(path, (time.time() - age,) * 2)

    live, killed, young = path("ab"), path("cd"), path("ef")
    assert len({live, killed, young}) == 3
    end = bind("zeromq", f"ipc://{live}", True, 1.0)
    os.utime(live, (0, 0))
    leave(killed, 3600)
    leave(young, 0)
    foreign, link, far = (tmp_path / name for name in ("slipstream-notes.sock", "slipstream-link.sock", "elsewhere"))
    foreign.write_text("no socket")
    leave(str(far), 3600)
    link.symlink_to(far)
    for file in (foreign, link):
        os.utime(file, (0, 0), follow_symlinks=False)
    path("12")
    assert set(tmp_path.iterdir()) == {Path(live), Path(young), foreign, link, far}, "nothing but sockets of ours"
    end.close()
