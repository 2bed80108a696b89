"""The CPU test bed inside real verl and real vLLM modules, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")

_ENV = {
    "VERL_USE_EXTERNAL_MODULES": "slipstream.plugins.verl.cpu",
    "VERL_PLATFORM": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def in_process(code: str) -> Any:
    """Run `code` in a process with the test bed active and return what it prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **_ENV}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_verl_activates_it_and_loads_nothing_heavy() -> None:
    loaded, device, backend, ipc = in_process(
        "import json, sys, verl\n"
        "from verl.plugin.platform import get_platform\n"
        "p = get_platform()\n"
        "heavy = [m for m in ('vllm', 'verl.workers.engine', 'verl.experimental.agent_loop') if m in sys.modules]\n"
        "print(json.dumps([heavy, p.device_name, p.communication_backend_name(), p.is_ipc_supported()]))"
    )
    assert (loaded, device, backend, ipc) == ([], "cpu", "gloo", False)


def test_fsdp_engine_is_found_for_the_cpu_and_the_group_has_one_backend() -> None:
    name, world, loops = in_process(
        "import json, os, verl, torch\n"
        "from verl.workers.engine import EngineRegistry\n"
        "cls = EngineRegistry.get_engine_cls('language_model', 'fsdp2')\n"
        "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0')\n"
        "from verl.utils import distributed\n"
        "distributed.initialize_global_process_group_ray()\n"
        "from verl.experimental.agent_loop.agent_loop import _agent_loop_registry\n"
        "import slipstream.plugins.verl.cpu.agent_loop\n"
        "print(json.dumps([cls.__name__, torch.distributed.get_world_size(), list(_agent_loop_registry)]))"
    )
    assert name == "FSDPEngineWithLMHead"
    assert world == 1
    assert "seeded_single_turn_agent" in loops


def test_sample_seeds_differ_and_depend_on_nothing_else() -> None:
    seeds = in_process(
        "import json\n"
        "from slipstream.plugins.verl.cpu.agent_loop import sample_seed\n"
        "print(json.dumps([sample_seed(a, b, c, d) for a in (1, 2) for b in (1, 2) for c in (0, 1) for d in (0, 1)]))"
    )
    assert len(set(seeds)) == len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[0] == 344087564459423046, "another value would make older runs unrepeatable"


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_weights_stay_live() -> None:
    kept, again, dense, sparse, conv = in_process(
        "import json, torch, verl, sys\n"
        "assert 'vllm' not in sys.modules\n"
        "import vllm.model_executor.layers.utils as utils\n"
        "from slipstream.plugins.vllm.cpu_packing import keep_weights_unpacked\n"
        "hooked = utils.dispatch_cpu_unquantized_gemm.__name__\n"
        "again = keep_weights_unpacked()\n"
        "layer = torch.nn.Linear(64, 64, bias=False)\n"
        "utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)\n"
        "x = torch.randn(3, 64)\n"
        "with torch.no_grad():\n"
        "    layer.weight.copy_(torch.randn(64, 64))\n"
        "    dense = torch.equal(utils.cpu_unquantized_gemm(layer, x, layer.weight), x @ layer.weight.T)\n"
        "    layer.weight.view(-1)[5] = 100.0\n"
        "    sparse = torch.equal(utils.cpu_unquantized_gemm(layer, x, layer.weight), x @ layer.weight.T)\n"
        "conv = torch.nn.Conv1d(8, 8, 4, groups=8)\n"
        "utils.dispatch_cpu_unquantized_gemm(conv, remove_weight=False)\n"
        "print(json.dumps([hooked, again, dense, sparse, list(conv.weight.shape)]))"
    )
    assert kept == "_use_live_weight"
    assert again
    assert dense
    assert sparse
    assert conv == [8, 1, 4]


def test_another_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType, SimpleNamespace

    from slipstream.plugins.vllm.cpu_packing import keep_weights_unpacked

    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    utils = ModuleType("utils")
    with pytest.raises(RuntimeError, match="has no dispatch_cpu_unquantized_gemm"):
        keep_weights_unpacked(utils)
    utils.dispatch_cpu_unquantized_gemm = lambda layer: None  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="unknown vLLM"):
        keep_weights_unpacked(utils)
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)  # type: ignore[attr-defined]
    assert keep_weights_unpacked(utils) is False
