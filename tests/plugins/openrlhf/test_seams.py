"""The seams against the installed OpenRLHF and vLLM, and whose methods a Ray worker runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from slipstream.core.config import ConfigError, parse_config
from slipstream.core.seams import check
from slipstream.plugins.openrlhf.requirements import check as check_requirements
from slipstream.plugins.openrlhf.seams import seam_table

IN_WORKER = """
import inspect, json, sys
import ray
from slipstream.core.config import parse_config
if "active" in sys.argv:
    from slipstream.plugins.openrlhf.activation import activate, carry
    config = parse_config({"weight_sync": {"mode": "delta"}})
    activate(config)
    carry(config)
from openrlhf.trainer.ray import ppo_actor, vllm_engine
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, object_store_memory=10**8)
actor = ppo_actor.PolicyModelActor.options(num_gpus=0).remote(1, 0, None, None)

def look(self, names):
    import os
    found = {name: inspect.unwrap(getattr(type(self), name)).__module__ for name in names if hasattr(type(self), name)}
    # An inherited method: does it see what is patched in this process?
    import types
    from openrlhf.trainer.ray import ppo_actor
    seen = []
    ppo_actor.offload_deepspeed_states = seen.append
    self.actor = types.SimpleNamespace(model="seen here")
    try:
        self.offload_states()
    except Exception:
        pass  # the driver's copy of the function, without a model
    return {**found, "inherited": "".join(seen)}, "SLIPSTREAM_NODE" in os.environ

names = ["init_model_from_pretrained", "broadcast_to_vllm", "slipstream_sync_metrics"]
found, node = ray.get(actor.__ray_call__.remote(look, names))
actors = {
    "engine": vllm_engine.RolloutRayActor,
    "trainer": ppo_trainer.PPOTrainer,
    "async": ppo_trainer_async.TrainingActor,
}
classes = {name: [c.__module__ for c in a.__ray_metadata__.modified_class.__mro__] for name, a in actors.items()}
print("FOUND " + json.dumps([found, node, classes]))
"""


def test_every_seam_fits_the_installed_version():
    results = check(seam_table())
    assert [result for result in results if result.broken] == []
    assert len(results) > 15


def _in_worker(*arguments: str):
    done = subprocess.run([sys.executable, "-c", IN_WORKER, *arguments], capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr
    return json.loads(lines[0].removeprefix("FOUND "))


@pytest.mark.timeout(900)
def test_the_worker_runs_our_methods():
    """Ray pickles actor classes by value: what is patched in the wrong place is silently not what runs."""
    found, has_node, classes = _in_worker("active")
    ours = "slipstream.plugins.openrlhf.policy"
    assert found == {
        "init_model_from_pretrained": ours,
        "broadcast_to_vllm": ours,
        "slipstream_sync_metrics": ours,
        "inherited": "seen here",
    }
    assert has_node
    assert "slipstream.plugins.openrlhf.engine_actor" in classes["engine"]
    for name in ("trainer", "async"):
        assert "slipstream.plugins.openrlhf.trainer" in classes[name]


@pytest.mark.timeout(900)
def test_without_slipstream_the_worker_runs_none_of_them():
    found, has_node, classes = _in_worker()
    assert found["broadcast_to_vllm"] == "openrlhf.trainer.ray.ppo_actor"
    assert "slipstream_sync_metrics" not in found
    assert found["inherited"] == "", "Ray pickles OpenRLHF's own actor by value"
    assert not has_node
    assert not any("slipstream" in module for mro in classes.values() for module in mro)


def _arguments(**changed):
    values = {"engines": 1, "lora": 0, "quantised": False, "images": 0, "determinism": False} | changed
    return SimpleNamespace(
        vllm=SimpleNamespace(num_engines=values["engines"]),
        ds=SimpleNamespace(lora=SimpleNamespace(rank=values["lora"]), load_in_4bit=values["quantised"]),
        data=SimpleNamespace(max_images_per_prompt=values["images"]),
        train=SimpleNamespace(full_determinism_enable=values["determinism"]),
    )


ROUTED = {"router": {"mode": "cache_aware"}, "weight_sync": {"mode": "native"}}


@pytest.mark.parametrize(
    ("changed", "node", "message"),
    [
        ({"engines": None}, {}, "--vllm.num_engines of 1 or more, got 0"),
        ({"lora": 8}, {}, "--ds.lora.rank 0 in this version, got 8"),
        ({"quantised": True}, {}, "--ds.load_in_4bit"),
        ({"images": 2}, {}, "--data.max_images_per_prompt 0 in this version, got 2"),
        ({"images": 2}, ROUTED, "router cache_aware needs --data.max_images_per_prompt 0 in this version, got 2"),
        ({"engines": 0}, ROUTED, "router cache_aware needs --vllm.num_engines of 1 or more"),
        ({"determinism": True}, ROUTED, "so --train.full_determinism_enable cannot hold"),
        ({}, {"placement": {"mode": "graph"}}, "--slipstream.placement graph: not available"),
        (
            {"engines": 0},
            {"drafter": {"mode": "suffix"}, "weight_sync": {"mode": "native"}},
            "drafter suffix needs --vllm.num",
        ),
    ],
)
def test_what_this_version_cannot_serve_is_refused(changed, node, message):
    config = parse_config({"weight_sync": {"mode": "delta"}, **node})
    with pytest.raises(ConfigError, match=message):
        check_requirements(_arguments(**changed), config)
    check_requirements(_arguments(**changed), parse_config({"weight_sync": {"mode": "native"}}))


def test_the_policy_overrides_methods_that_exist():
    from openrlhf.trainer.ray import ppo_actor

    from slipstream.plugins.openrlhf.policy import SlipstreamPolicyActor, SyncedTrainer

    for ours in (SyncedTrainer, SlipstreamPolicyActor):
        base = ours.__mro__[1]
        for name in ("broadcast_to_vllm", "_init_vllm_sync_group", "init_model_from_pretrained"):
            if name in vars(ours):
                assert inspect.isfunction(vars(base)[name])
    assert issubclass(SyncedTrainer, ppo_actor.ActorPPOTrainer)
