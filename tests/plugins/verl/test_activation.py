"""Switching on and staying out of the way, on the real verl, each case in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence

import pytest

from slipstream.core.cli import main

REPORT = """
    import json, sys
    import verl
    light = sorted(m for m in ("torch.distributed.fsdp", "vllm", "numba", "zmq", "hydra") if m in sys.modules)
    import verl.workers.rollout.replica as replica, verl.workers.rollout.base as base
    import verl.checkpoint_engine as engines, verl.utils.config, verl.trainer.constants_ppo
    from verl.trainer.ppo.v1 import trainer_base
    print(json.dumps({
        "loader": replica.RolloutReplicaRegistry._registry["vllm"].__module__,
        "adapter": base._ROLLOUT_REGISTRY[("vllm", "async")],
        "engine": "slipstream" in engines.CheckpointEngineRegistry._registry,
        "update": engines.CheckpointEngineManager.update_weights.__wrapped__.__module__,
        "consume": trainer_base.PPOTrainer._consume_sync_metrics.__code__.co_filename.rsplit("/", 1)[-1],
        "our modules": sorted(m for m in sys.modules if m.startswith("slipstream.")),
    }))
"""


def run(code: str, check: bool = True, arguments: Sequence[str] = (), **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("SLIPSTREAM_NODE", "TRITON_INTERPRET")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**clean, "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "slipstream.plugins.verl.cpu", **env},
        cwd="/",
        capture_output=True,
        text=True,
        check=check,
        timeout=240,
    )


def report(**env: str) -> dict:
    return json.loads(run(REPORT, **env).stdout.strip().splitlines()[-1])


def node(**weight_sync: object) -> str:
    return json.dumps({"weight_sync": weight_sync})


ROUTER = json.dumps({"router": {"mode": "cache_aware"}})


@pytest.mark.parametrize("env", [{}, {"SLIPSTREAM_NODE": node(mode="native")}], ids=["no override", "native"])
def test_without_the_override_verl_keeps_its_own_classes(env):
    found = report(**env)
    assert found["loader"] == "verl.workers.rollout.replica"
    assert found["adapter"] == "verl.workers.rollout.vllm_rollout.ServerAdapter"
    assert found["engine"] is False
    assert found["consume"] == "trainer_base.py"
    assert not [m for m in found["our modules"] if ".weights" in m or "triton" in m], "nothing of ours is loaded"


def test_with_the_node_our_classes_are_in_place():
    found = report(SLIPSTREAM_NODE=node(mode="delta"))
    assert found["loader"] == "slipstream.plugins.verl.activation"
    assert found["adapter"] == "slipstream.plugins.verl.vllm_rollout.SlipstreamServerAdapter"
    assert found["engine"] is True
    assert found["consume"] == "metrics.py"


def test_the_router_alone_leaves_weight_sync_to_verl():
    found = report(SLIPSTREAM_NODE=ROUTER)
    assert found["loader"] == "slipstream.plugins.verl.activation"
    assert found["adapter"] == "verl.workers.rollout.vllm_rollout.ServerAdapter"
    assert found["engine"] is False
    assert found["consume"] == "manager.py"


def test_the_router_is_in_the_replica_the_manager_the_client_and_the_agent_loop():
    code = """
        import json
        from types import SimpleNamespace
        from omegaconf import OmegaConf
        from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
        from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerManager
        rollout = {"name": "vllm", "nnodes": 1, "n_gpus_per_node": 1, "disaggregation": {"enabled": False}}
        rollout["router_config_path"] = None
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
        manager = LLMServerManager(config)
        manager.global_load_balancer = None
        try:
            LLMServerManager(config, load_balancer_cls=dict)
        except Exception as error:
            refused = str(error)
        cells = [cell.cell_contents for cell in manager.rollout_replica_class.__init__.__closure__]
        server = next(each for each in cells if each.__name__ == "SlipstreamHttpServer")
        print(json.dumps({
            "path": config.actor_rollout_ref.rollout.router_config_path,
            "clients": [type(manager.get_client()).__name__,
                        type(manager.get_client(client_cls=FullyAsyncLLMServerClient, only_hybrid=True)).__name__],
            "loop": AgentLoopWorker._run_agent_loop.__code__.co_filename.rsplit("/", 1)[-1],
            "server": [base.__name__ for base in server.__mro__],
            "refused": refused,
        }))
    """
    settings = json.dumps({"router": {"mode": "cache_aware"}, "weight_sync": {"mode": "delta"}})
    found = json.loads(run(code, SLIPSTREAM_NODE=settings).stdout.strip().splitlines()[-1])
    assert found["path"].endswith("routing/router.yaml")
    assert found["clients"] == ["RoutedClient", "RoutedAsyncClient"]
    assert found["loop"] == "samples.py"
    assert found["server"][1:6] == ["SyncedServer", "ExtendedServer", "RoutedServer", "RoutedEngine", "vLLMHttpServer"]
    assert "brings a load balancer of its own (dict)" in found["refused"]


def test_the_drafter_alone_leaves_the_sync_to_verl():
    found = report(SLIPSTREAM_NODE=json.dumps({"drafter": {"mode": "suffix"}}))
    assert found["loader"] == "slipstream.plugins.verl.activation"
    assert found["adapter"] == "verl.workers.rollout.vllm_rollout.ServerAdapter"
    assert found["engine"] is False
    assert found["consume"] == "drafting.py"


def test_placement_stands_between_the_stages_of_every_trainer_and_gives_the_run_a_queue_of_its_own():
    code = """
        import json
        from verl.trainer.ppo.v1 import get_trainer_cls
        from transfer_queue import interface
        trainers = [get_trainer_cls(name) for name in ("sync", "colocate_async")]
        from slipstream.plugins.verl.placement.queues import run_namespace
        print(json.dumps({
            "names": [each.__name__ for each in trainers],
            "stages": [each._update_actor.__code__.co_filename.rsplit("/", 1)[-1] for each in trainers],
            "namespace": interface.ray._namespace,
            "expected": run_namespace(),
        }))
    """
    node = json.dumps({"placement": {"mode": "graph"}})
    found = json.loads(run(code, SLIPSTREAM_NODE=node, SLIPSTREAM_RUN_NONCE="17").stdout.strip().splitlines()[-1])
    assert found["names"] == ["PlacedPPOTrainerSync", "PlacedPPOTrainerColocateAsync"]
    assert found["stages"] == ["trainer.py", "trainer.py"]
    assert found["namespace"] == found["expected"] == "transfer_queue_17"
    assert report(SLIPSTREAM_NODE=node, SLIPSTREAM_RUN_NONCE="17")["loader"] == "verl.workers.rollout.replica"


LOAD_REPLICA = """
        from verl.workers.rollout.replica import RolloutReplicaRegistry
        RolloutReplicaRegistry.get("vllm")
    """


@pytest.mark.parametrize(
    ("module", "owner", "name", "version"),
    [
        ("verl.workers.rollout.vllm_rollout.vllm_async_server", "vLLMHttpServer", "_resolve_sleep_level", "0.9.1"),
        ("vllm.model_executor.model_loader.utils", "", "process_weights_after_loading", "0.29.0"),
        ("vllm.v1.worker.worker_base", "WorkerWrapperBase", "init_worker", "0.29.0"),
    ],
)
def test_a_renamed_seam_stops_the_run_where_the_replica_is_loaded(module, owner, name, version):
    code = f"""
        import importlib
        module = importlib.import_module({module!r})
        owner = getattr(module, {owner!r}) if {owner!r} else module
        setattr(owner, "renamed", owner.__dict__[{name!r}])
        delattr(owner, {name!r})
        {LOAD_REPLICA.strip()}
    """
    result = run(code, check=False, SLIPSTREAM_NODE=node(mode="delta"))
    assert result.returncode != 0
    for part in ("SeamError", name, version, "slipstream/weight_sync=native"):
        assert part in result.stderr


PATCHED = [
    ("verl.workers.rollout.base", "_ROLLOUT_REGISTRY"),
    ("verl.workers.rollout.replica", "RolloutReplicaRegistry.register"),
    ("verl.checkpoint_engine.base", "CheckpointEngineManager.update_weights"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._consume_sync_metrics"),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.init_model"),
]

# The name goes when the module has been executed and before our callback looks at it.
WITHOUT = """
    import sys, importlib
    from slipstream.plugins.verl.post_import import after_import
    import verl
    from slipstream.plugins.verl import activation, driver
    for patched in (activation, driver):
        def without(module, install=patched.install):
            if module.__name__ == sys.argv[1]:
                *path, name = sys.argv[2].split(".")
                delattr(getattr(module, path[0]) if path else module, name)
            install(module)
        patched.install = without
    importlib.import_module(sys.argv[1])
    print("imported")
"""


ROUTER_SEAMS = [
    ("verl.workers.rollout.llm_server", "LLMServerManager.get_client"),
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker._run_agent_loop"),
]


@pytest.mark.parametrize(("module", "name"), ROUTER_SEAMS, ids=[name for _, name in ROUTER_SEAMS])
def test_a_patch_point_of_the_router_that_is_gone_is_named(module, name):
    result = run(WITHOUT, False, [module, name], SLIPSTREAM_NODE=ROUTER)
    assert result.returncode != 0
    for part in ("SeamError", f"{module}:{name}", "0.9.1", "slipstream/router=native"):
        assert part in result.stderr


@pytest.mark.parametrize(("module", "name"), PATCHED, ids=[name for _, name in PATCHED])
def test_a_patch_point_that_is_gone_is_named_where_it_is_imported(module, name):
    result = run(WITHOUT, False, [module, name], SLIPSTREAM_NODE=node(mode="delta"))
    assert result.returncode != 0
    for part in ("SeamError", f"{module}:{name}", "0.9.1", "slipstream/weight_sync=native"):
        assert part in result.stderr
    lenient = run(WITHOUT, False, [module, name], SLIPSTREAM_NODE=node(mode="delta", strict_seams=False))
    assert "imported" in lenient.stdout, lenient.stderr
    assert f"{module}:{name}" in lenient.stderr, "named in a warning"


@pytest.mark.parametrize(
    ("module", "name"),
    [("verl.utils.config", "validate_config"), ("verl.trainer.constants_ppo", "get_ppo_ray_runtime_env")],
)
def test_a_verl_without_our_driver_seams_is_left_alone_without_the_override(module, name):
    assert "imported" in run(WITHOUT, arguments=[module, name]).stdout


def test_a_broken_node_is_not_swallowed_by_verl():
    result = run("import verl.workers.rollout.replica", check=False, SLIPSTREAM_NODE=node(mod="delta"))
    assert result.returncode != 0
    assert "did you mean 'mode'" in result.stderr


DRIVER = """
    import json, sys
    from hydra import compose, initialize_config_module
    import verl
    from omegaconf import open_dict
    from verl.utils.config import validate_config
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    results = []
    for overrides in json.loads(sys.argv[1]):
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides)
        if "undiscovered" in config:  # what Hydra makes of +slipstream=sync when it does not know the group
            with open_dict(config):
                config.slipstream = config.undiscovered
        try:
            validate_config(config=config, use_reference_policy=False, use_critic=False)
            results.append(["ok", get_ppo_ray_runtime_env(config)["env_vars"].get("SLIPSTREAM_NODE", "absent")])
        except Exception as error:
            results.append([type(error).__name__, str(error)])
    print(json.dumps(results))
"""
BASE = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.model.path=/nowhere",
]
ACCEPTED = {
    "no override": [],
    "sync": ["+slipstream=sync", "slipstream.weight_sync.audit_every=3"],
    "full": ["+slipstream=full"],
    "rollout": ["+slipstream=rollout", "slipstream.router.move_seconds=0"],
    "sync and the router": ["+slipstream=sync", "slipstream/router=cache_aware"],
    "the router alone": ["+slipstream/router=cache_aware"],
    "the drafter beside the sync": ["+slipstream=sync", "slipstream/drafter=suffix"],
    "a transport and a chain": [
        "+slipstream=sync",
        "slipstream.weight_sync.transport=shared_memory",
        "slipstream.weight_sync.chain=chain",
    ],
    "merged adapters behind a standalone engine": [
        *("+slipstream=sync", "actor_rollout_ref.model.lora_rank=8", "trainer.v1.trainer_mode=separate_async"),
        "++actor_rollout_ref.model.lora.merge=true",
    ],
    "SGLang": ["+slipstream=sync", "actor_rollout_ref.rollout.name=sglang"],
    "SGLang and everything": ["+slipstream=full", "actor_rollout_ref.rollout.name=sglang"],
    "SGLang and merged adapters": [
        *("+slipstream=sync", "actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.model.lora_rank=8"),
        "++actor_rollout_ref.model.lora.merge=true",
    ],
    "a log in a folder to be made": ["+slipstream=sync", "slipstream.events=nowhere/run.jsonl"],
}
REFUSED = {
    "a typo": (["+slipstream=sync", "+slipstream.weight_sync.audit_evry=1"], "did you mean 'audit_every'"),
    "another engine": (
        ["+slipstream=sync", "actor_rollout_ref.rollout.name=trtllm"],
        "rollout.name=vllm or sglang in this version, got trtllm",
    ),
    "adapters in SGLang": (
        ["+slipstream=sync", "actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.model.lora_rank=8"],
        "rollout.name=sglang and LoRA needs actor_rollout_ref.model.lora.merge=true",
    ),
    "quantised SGLang": (
        ["+slipstream=sync", "actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.quantization=fp8"],
        "needs actor_rollout_ref.rollout.quantization=null, got fp8",
    ),
    "SGLang with a draft model": (
        [
            *("+slipstream=sync", "actor_rollout_ref.rollout.name=sglang"),
            *("actor_rollout_ref.model.mtp.enable=true", "actor_rollout_ref.model.mtp.enable_rollout=true"),
        ],
        "mtp.enable_rollout=false",
    ),
    "data parallel engine": (["+slipstream=sync", "actor_rollout_ref.rollout.data_parallel_size=2"], "more replicas"),
    "pipeline parallel engine": (
        ["+slipstream=sync", "actor_rollout_ref.rollout.pipeline_model_parallel_size=2"],
        "pipeline_model_parallel_size=1",
    ),
    "disaggregation": (["+slipstream=sync", "actor_rollout_ref.rollout.disaggregation.enabled=true"], "disaggregation"),
    "adapters behind a standalone engine": (
        ["+slipstream=sync", "actor_rollout_ref.model.lora_rank=8", "trainer.v1.trainer_mode=separate_async"],
        "add ++actor_rollout_ref.model.lora.merge=true",
    ),
    "another backend": (["+slipstream=sync", "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl"], "got nccl"),
    "native by value": (["+slipstream=sync", "slipstream.weight_sync.mode=native"], "choose the group"),
    "the router and another engine": (
        ["+slipstream/router=cache_aware", "actor_rollout_ref.rollout.name=trtllm"],
        "router.mode=cache_aware needs actor_rollout_ref.rollout.name=vllm or sglang",
    ),
    "the router and a data parallel engine": (
        ["+slipstream/router=cache_aware", "actor_rollout_ref.rollout.data_parallel_size=2"],
        "more replicas instead or add slipstream/router=native",
    ),
    "the router and disaggregation": (
        ["+slipstream/router=cache_aware", "actor_rollout_ref.rollout.disaggregation.enabled=true"],
        "disaggregation.enabled=false",
    ),
    "the router and requests of one name": (
        ["+slipstream/router=cache_aware", "actor_rollout_ref.rollout.full_determinism=true"],
        "full_determinism=false",
    ),
    "two routers": (
        ["+slipstream/router=cache_aware", "actor_rollout_ref.rollout.router_config_path=other.yaml"],
        "got other.yaml; there is one router",
    ),
    "drafts of another engine": (["+slipstream=rollout", "actor_rollout_ref.rollout.name=trtllm"], "drafter=off"),
    "drafts across stages": (
        ["+slipstream=rollout", "actor_rollout_ref.rollout.pipeline_model_parallel_size=2"],
        "pipeline_model_parallel_size=1",
    ),
    "two drafters": (
        ["+slipstream=rollout", "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={method:ngram}"],
        "an engine has one drafter",
    ),
    "two drafters in SGLang": (
        [
            *("+slipstream=rollout", "actor_rollout_ref.rollout.name=sglang"),
            "+actor_rollout_ref.rollout.engine_kwargs.sglang.speculative_algorithm=NGRAM",
        ],
        "engine_kwargs.sglang.speculative_algorithm=null, got NGRAM: an engine has one drafter",
    ),
    "drafts and asynchronous scheduling": (
        ["+slipstream=rollout", "+actor_rollout_ref.rollout.engine_kwargs.vllm.async_scheduling=true"],
        "no drafts of a proposer class",
    ),
    "a level that is not there": (["+slipstream=sync", "slipstream.weight_sync.level=3"], "one of auto, 0, 1, 2"),
    "an unknown transport": (["+slipstream=sync", "slipstream.weight_sync.transport=shm"], "torch_distributed, zeromq"),
    "an unknown file system": (["+slipstream=sync", "slipstream.weight_sync.chain=nosuchfs://a/b"], "nosuchfs"),
    "a setting alone": (["+slipstream.weight_sync.audit_every=10"], "add +slipstream=sync"),
    "the event log alone": (["+slipstream.events=run.jsonl"], "add +slipstream=sync"),
    "a mode alone": (["+slipstream.weight_sync.mode=delta"], "add +slipstream=sync"),
    "a log that cannot be": (["+slipstream=sync", "slipstream.events=/dev/null/x.jsonl"], "/dev/null is not a folder"),
    "an undiscovered group": (["+undiscovered=sync"], "editable_mode=strict"),
}


@pytest.fixture(scope="module")
def driven() -> dict[str, list[str]]:
    """What verl's driver functions say to every command line, from one process that really imports verl."""
    lines = {**ACCEPTED, **{name: overrides for name, (overrides, _) in REFUSED.items()}}
    result = run(DRIVER, arguments=[json.dumps([[*BASE, *overrides] for overrides in lines.values()])])
    return dict(zip(lines, json.loads(result.stdout.splitlines()[-1]), strict=True))


def test_the_driver_carries_the_node_to_rays_processes(driven):
    outcome, sent = driven["sync"]
    assert outcome == "ok"
    assert json.loads(sent)["weight_sync"]["mode"] == "delta"
    assert json.loads(sent)["weight_sync"]["audit_every"] == 3
    modes = {
        name: json.loads(driven[name][1]) for name in ("full", "rollout", "sync and the router", "the router alone")
    }
    assert {name: node["weight_sync"]["mode"] for name, node in modes.items()} == {
        "full": "delta",
        "rollout": "native",
        "sync and the router": "delta",
        "the router alone": "native",
    }
    assert {node["router"]["mode"] for node in modes.values()} == {"cache_aware"}
    assert modes["rollout"]["router"]["move_seconds"] == 0


def test_relative_paths_count_from_where_the_run_was_started(driven):
    assert json.loads(driven["a transport and a chain"][1])["weight_sync"]["chain"] == "/chain"
    assert json.loads(driven["a log in a folder to be made"][1])["events"] == "/nowhere/run.jsonl"


def test_the_driver_sends_nothing_without_the_override(driven):
    assert driven["no override"] == ["ok", "absent"]


@pytest.mark.parametrize(("name", "message"), [(name, message) for name, (_, message) in REFUSED.items()], ids=REFUSED)
def test_the_driver_refuses_what_this_version_cannot_do(driven, name, message):
    error, text = driven[name]
    assert error == "ConfigError"
    assert message in text


@pytest.fixture
def config(capsys):
    """Run `slipstream config` here and return its exit status, output and errors."""

    def config(*overrides: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["config", *overrides])
        return ended.value.code, *capsys.readouterr()

    return config


@pytest.mark.parametrize("name", [name for name in REFUSED if "undiscovered" not in name])
def test_the_config_command_refuses_it_with_the_same_message(driven, config, name):
    status, _, errors = config(*REFUSED[name][0])
    assert status == 1
    assert f"error: {driven[name][1]}\n" in errors


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_config_command_accepts_what_the_driver_accepts(config, name):
    status, output, _ = config(*ACCEPTED[name])
    assert status == 0
    assert ("mode: delta" in output or "mode: cache_aware" in output) == bool(ACCEPTED[name])


def test_the_config_command_checks_without_importing_verl_or_ray():
    code = """
        import atexit, sys
        from slipstream.core.cli import main
        atexit.register(lambda: print(sorted({"verl", "ray"} & set(sys.modules))))
        main(["config", "+slipstream=sync"])
    """
    assert run(code).stdout.splitlines()[-1] == "[]"
