"""The arbiter between the stages of verl's trainers: what holds leases when, config checks, and two real runs."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from metric_names import undescribed
from omegaconf import OmegaConf
from real_runs import measure

from slipstream.core.config import ConfigError, PlacementConfig, SlipstreamConfig, parse_config
from slipstream.core.graph import Arbiter, StageSeconds, SubStageGraph
from slipstream.core.telemetry import EventLog, LeasedStage
from slipstream.core.telemetry.records import record_of
from slipstream.core.telemetry.report.spans import lease_spans
from slipstream.plugins.verl.placement import trainer as placement
from slipstream.plugins.verl.placement.overlap import FinishedGroups
from slipstream.plugins.verl.placement.queues import own_queue
from slipstream.plugins.verl.placement.records import StepRecords
from slipstream.plugins.verl.requirements import check


class FakeClient:
    """The arbiter itself, without Ray."""

    def __init__(self, arbiter: Arbiter) -> None:
        self.arbiter = arbiter

    def ask(self, request: Any, patience_seconds: float = 0.0) -> Any:
        lease = self.arbiter.ask(request, 0.0)
        assert lease is not None, f"{request.kind} would have to wait"
        return lease

    def wait_ready(self, seconds: float) -> bool:
        return True

    def release(self, lease: Any, workers: Any = None) -> None:
        self.arbiter.release(lease.id, 0.0)

    def withdraw(self, pipeline: str) -> None:
        self.arbiter.withdraw(pipeline, 0.0)


class ToyTrainer:
    """The hooks and stages of verl's `PPOTrainer`, in its order."""

    def __init__(self, config: Any) -> None:
        self.config, self.global_steps, self.total_training_steps, self.seen = config, 0, 2, []
        self.resource_pool_manager = SimpleNamespace(create_resource_pool=lambda: None, resource_pool_dict={})

    def note(self, what: str) -> None:
        leases = self.slipstream_placement._holder._client.arbiter.leases
        self.seen.append((what, *sorted(lease.request.kind for lease in leases)))

    def init(self) -> None:
        self._init_resource_pool_mgr()
        self.resource_pool_manager.create_resource_pool()
        self.note("workers start")
        self.on_init_end()

    def _init_resource_pool_mgr(self) -> None: ...

    def on_init_end(self) -> None:
        self.note("sync")

    def fit(self, agent_loop_manager: Any) -> None:
        for self.global_steps in (1, 2):
            self.metrics = {}
            self.on_step_begin()
            self.note("generate")
            self.on_sample_end()
            batch = SimpleNamespace(tags=[{"response_len": 3}, {"response_len": 9, "is_padding": False}])
            batch = self._balance_batch(batch, metrics=self.metrics)
            batch = self._compute_old_log_prob(batch, metrics=self.metrics)
            self.note("advantage")
            self._update_actor(batch, metrics=self.metrics)
            self.on_step_end()
            self.metrics |= self._consume_sync_metrics()

    def on_step_begin(self) -> None: ...

    def on_sample_end(self) -> None:
        self.note("sleep")

    def _balance_batch(self, batch: Any, metrics: Any) -> Any:
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: Any) -> Any:
        self.note("old_log_prob")
        return batch

    def _update_actor(self, batch: Any, metrics: Any) -> Any:
        self.note("update_actor")
        if self.config.get("fail"):
            raise RuntimeError("out of memory")
        return batch

    _compute_reward_colocate = _compute_ref_log_prob = _compute_values = _update_critic = _update_actor
    _save_checkpoint = _update_actor

    def on_step_end(self) -> None:
        self.note("sync")

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return {"verl": 1}


@pytest.fixture
def toy(monkeypatch, tmp_path):
    arbiter = Arbiter(None)
    monkeypatch.setattr(placement, "start_arbiter", lambda **options: arbiter)
    monkeypatch.setattr(placement, "ArbiterClient", lambda actor, **options: FakeClient(actor))
    monkeypatch.setattr(placement, "devices_of", lambda pools, device: [("node", "0"), ("node", "1")])

    def make(**more: Any) -> tuple[Any, Arbiter]:
        config = OmegaConf.create(
            {
                "trainer": {"project_name": "p", "experiment_name": "e", "device": "cpu"},
                "actor_rollout_ref": {"rollout": {"gpu_memory_utilization": 0.5}},
                **more,
            }
        )
        slipstream = SlipstreamConfig(placement=PlacementConfig(mode="graph"), events=str(tmp_path / "events"))
        return placement.placed(ToyTrainer, slipstream)(config), arbiter

    return make


def test_a_lease_is_held_exactly_where_a_stage_needs_it(toy, tmp_path):
    trainer, arbiter = toy()
    trainer.init()
    trainer.fit(None)
    step = [("old_log_prob", "old_log_prob"), ("advantage",), ("update_actor", "update_actor"), ("sync", "rollout")]
    assert trainer.seen == [
        ("workers start", "start"),
        ("sync", "rollout"),
        *[("generate", "rollout"), ("sleep", "rollout"), *step] * 2,
    ]
    assert arbiter.leases == ()
    assert arbiter.waiting == ()
    assert trainer.metrics["verl"] == 1
    assert trainer.metrics["slipstream/placement/granted"] == 3
    assert trainer.metrics["slipstream/placement/update_actor_seconds"] >= 0
    assert "slipstream/placement/prediction_error" in trainer.metrics
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    stages = [event["stage"] for event in events if event["kind"] == "stage"]
    assert stages[:5] == ["start", "update_weights", "rollout", "old_log_prob", "update_actor"]
    spans = lease_spans([record for event in events if isinstance(record := record_of(event), LeasedStage)])
    assert [span.group for span in spans if "waits" not in span.name] == stages
    assert min(span.start for span in spans) == pytest.approx(0.0, abs=1e-3)
    graph = SubStageGraph.from_json(next(e["graph"] for e in events if e["kind"] == "sub_stages").encode())
    assert len({worker for node in graph.nodes for worker in node.workers}) == 2


def test_a_stage_within_a_rollouts_lease_does_not_wait_for_itself(toy):
    """verl's validation computes rewards on the trainer's GPUs before the rollout's lease has ended."""
    trainer, arbiter = toy()
    trainer.init()
    trainer._slipstream_sync(lambda: None)
    trainer._compute_reward_colocate(SimpleNamespace(tags=[]), {})
    assert [lease.request.kind for lease in arbiter.leases] == ["rollout"]
    trainer.slipstream_placement.close()


def test_a_run_that_fails_gives_everything_back(toy):
    trainer, arbiter = toy(fail=True)
    trainer.init()
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit(None)
    assert arbiter.leases == ()


def test_a_trainer_that_asks_nobody_is_warned_about_once(toy, caplog):
    trainer, _ = toy()
    trainer._consume_sync_metrics()
    trainer._consume_sync_metrics()
    assert [record.levelname for record in caplog.records if "no stage of this step" in record.message] == ["WARNING"]


def test_the_sub_stages_of_a_step_take_the_time_that_was_measured():
    records = StepRecords("p", [("n", "0"), ("n", "1")], EventLog(None))
    for _ in range(2):
        records.lengths([{"response_len": length} for length in (10, 20, 30, 40)])
        records.stage("rollout", 1, 0.0, 8.0, 0.0)
        records.stage("old_log_prob", 1, 0.0, 1.0, 0.0)
        records.stage("update_actor", 1, 0.0, 2.0, 0.0)
        records.stage("update_weights", 1, 0.0, 0.5, 0.0)
        if not records.history._errors:
            graph = records.graph(1, 8.0, StageSeconds(1.0, 2.0, 0.5))
            assert graph.critical_path() == pytest.approx(11.5)
        metrics = records.end_step(1)
    assert metrics["prediction_error"] == 0.0, "two equal steps"
    assert not undescribed(f"slipstream/placement/{name}" for name in metrics)
    assert records.remaining(3) == pytest.approx(3 * 11.5)


def test_every_run_has_a_transfer_queue_of_its_own(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_RUN_NONCE", "abc")
    called = []
    interface = SimpleNamespace(
        ray=SimpleNamespace(get_actor=lambda *a, **k: called.append((a, k)), get=lambda ref: ref),
        TransferQueueController=SimpleNamespace(options=lambda **k: called.append(((), k))),
    )
    own_queue(interface)
    interface.ray.get_actor("TransferQueueController", namespace="transfer_queue")
    interface.ray.get_actor("somebody", namespace="else")
    interface.TransferQueueController.options(name="TransferQueueController", namespace="transfer_queue")
    assert interface.ray.get(3) == 3
    assert [kwargs["namespace"] for _, kwargs in called] == ["transfer_queue_abc", "else", "transfer_queue_abc"]


def test_finished_groups_are_computed_in_whole_micro_batches_and_once():
    """Nothing is dropped: what overlap leaves, the stage computes."""
    computed: list[list[str]] = []
    may = [True]

    def compute(keys: list[str], tags: list[dict[str, Any]]) -> bool:
        if may[0]:
            computed.append(keys)
        return may[0]

    groups = FinishedGroups(4, compute)
    partition: dict[str, dict[str, Any]] = {f"{uid}_{session}_0": {} for uid in "abc" for session in (10, 2, 1)}
    groups.look(["a"], partition)
    assert computed == [], "three rows are no micro-batch"
    may[0] = False
    groups.look(["b", "a"], partition)
    assert groups.done == set(), "somebody else has the trainer's devices"
    may[0] = True
    groups.look(["b", "a"], partition)
    assert computed == [["b_1_0", "b_2_0", "b_10_0", "a_1_0"]], "in the order of the batch"
    groups.look(["b", "a"], partition)
    assert len(computed) == 1
    keys = [*partition, "a_3_0", "b_3_0", "c_3_0"]
    left = groups.left(keys)
    assert [keys[place] for place in left] == [key for key in keys if key not in computed[0]]
    assert groups.left(keys) == list(range(12)), "the next rollout starts anew"
    groups.look(["b", "a"], partition)
    assert groups.left(list(partition)) == list(range(9)), "what is left must be whole micro-batches, too"


OFFLOAD = (
    "actor_rollout_ref.actor.fsdp_config.param_offload=true",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
)


def verl_config(*overrides: str) -> Any:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["+slipstream=placement", *overrides])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), "actor.fsdp_config.param_offload=true actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"),
        (OFFLOAD[:1], "needs actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"),
        ((*OFFLOAD, "actor_rollout_ref.rollout.free_cache_engine=false"), "free_cache_engine=true"),
        ((*OFFLOAD, "trainer.v1.trainer_mode=separate_async"), "sync or colocate_async"),
        ((*OFFLOAD, "trainer.use_v1=false"), "trainer.use_v1=true"),
        (
            (*OFFLOAD, "slipstream.placement.overlap=true", "algorithm.rollout_correction.bypass_mode=true"),
            "bypass_mode=false",
        ),
    ],
)
def test_what_cannot_share_a_gpu_is_refused(overrides, expected):
    config = verl_config(*overrides)
    with pytest.raises(ConfigError) as raised:
        check(config, parse_config(config.slipstream))
    assert expected in str(raised.value)


@pytest.mark.parametrize("overrides", [OFFLOAD, ("trainer.device=cpu",)])
def test_what_can_share_a_gpu_is_accepted(overrides):
    config = verl_config(*overrides)
    check(config, parse_config(config.slipstream))


@pytest.mark.run
@pytest.mark.timeout(1500)
def test_two_runs_on_one_gpu_compute_what_they_compute_alone(tmp_path):
    """fp32, seeded: one after the other on one Ray cluster, then both at once on one slot each of its only GPU."""
    outcome = measure(tmp_path, steps=3, tool_seconds=1.5)
    assert outcome.different == ()
    assert len({stage.pipeline for stage in outcome.leased}) == 2
    spans = {
        lane: sorted((s.began, s.began + s.seconds, s.pipeline) for s in outcome.leased if lanes(s.stage) == lane)
        for lane in ("rollout", "gang")
    }
    for lane, found in spans.items():
        for (_, end, _), (began, _, _) in itertools.pairwise(found):
            assert began >= end - 0.05, f"two {lane} stages at a time"
    beside = [
        1
        for began, end, pipeline in spans["rollout"]
        for other_began, other_end, other in spans["gang"]
        if pipeline != other and max(began, other_began) < min(end, other_end)
    ]
    assert beside, "one generated while the other one computed"
    assert outcome.ratio > 1.0, f"one after the other {outcome.serial:.0f} s, at once {outcome.shared:.0f} s"


def lanes(stage: str) -> str:
    return "rollout" if stage in ("rollout", "update_weights") else "gang"
