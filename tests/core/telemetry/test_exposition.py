"""Metrics over HTTP, scraped while steps go by; their names against the code and the page that lists them."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from slipstream.core.config import SLIPSTREAM_NODE, ConfigError, parse_config
from slipstream.core.rollout.measures import StepMeasures
from slipstream.core.telemetry import check_prometheus, expose, exposition
from slipstream.core.telemetry.exposition import Exposition
from slipstream.core.telemetry.metrics import METRICS, PREFIX, metric_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value of every sample, read with Prometheus' own parser."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.type == "gauge" and family.documentation for family in families)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


@pytest.fixture
def served():
    exposition = Exposition(0)
    yield exposition
    exposition.close()


def test_each_step_is_what_the_next_scrape_reads(served: Exposition):
    none: frozenset[tuple[str, str]] = frozenset()
    assert scrape(served.port) == {}
    for step in range(1, 4):
        metrics = {
            "slipstream/weight_sync/payload_mbytes": 0.5 * step,
            "slipstream/router/replica_0/running": 3,
            "slipstream/router/replica_1/running": 4.5,
            "slipstream/placement/update_actor_seconds": 2.0,
            "critic/score/mean": 0.5,
            "slipstream/weight_sync/seconds": float("nan"),
        }
        served.update(step, metrics)
        assert scrape(served.port) == {
            ("slipstream_step", none): step,
            ("slipstream_weight_sync_payload_mbytes", none): 0.5 * step,
            ("slipstream_router_replica_running", frozenset({("replica", "0")})): 3,
            ("slipstream_router_replica_running", frozenset({("replica", "1")})): 4.5,
            ("slipstream_placement_seconds", frozenset({("stage", "update_actor")})): 2,
        }
    served.update(4, {"slipstream/weight_sync/seconds": 0.25})
    found = scrape(served.port)
    assert (found["slipstream_step", none], found["slipstream_weight_sync_seconds", none]) == (4, 0.25)
    assert found["slipstream_weight_sync_payload_mbytes", none] == 1.5, "of the last step that had it"


def test_a_port_that_is_taken_does_not_stop_the_run(monkeypatch, caplog):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        node = {"prometheus_port": taken.getsockname()[1]}
        monkeypatch.setenv(SLIPSTREAM_NODE, json.dumps(node))
        exposition._exposition.cache_clear()
        expose(1, {"slipstream/weight_sync/seconds": 1.0})
        expose(2, {"slipstream/weight_sync/seconds": 1.0})
    exposition._exposition.cache_clear()
    assert [record.message.partition(": ")[0] for record in caplog.records] == [
        f"slipstream.prometheus_port={node['prometheus_port']}"
    ]


def test_the_library_is_asked_for_before_anything_starts(monkeypatch):
    check_prometheus()
    monkeypatch.setattr(exposition, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="expected the package prometheus_client, found none"):
        check_prometheus()
    with pytest.raises(ConfigError, match="expected a port from 1 to 65535, got 70000"):
        parse_config({"prometheus_port": 70000})


def test_the_names_are_those_of_the_code():
    """The trackers of all frameworks get what these functions return. Placement: `tests/plugins/verl`."""
    from slipstream.core.weights.publishing import sync_metrics
    from slipstream.core.weights.update import SyncReport

    numbers = {name: 1 for name in SyncReport.__dataclass_fields__ if name != "layers"}
    measures = StepMeasures()
    measures.joined("a")
    measures.answered("a", 10, 5, 3, 0)
    produced = {*sync_metrics(SyncReport(**numbers)), *(f"{PREFIX}router/{name}" for name in measures.take())}
    described = {metric_of(name) and metric_of(name)[0].name for name in produced}
    with_a_chain = {"weight_sync/chain_wait_seconds", "weight_sync/chain_failures"}
    of_the_policy = {f"router/{name}" for name in ("parked", "return_moves", "migrations", "evacuated", "replicas")}
    expected = {each.name for each in METRICS if each.name.startswith(("weight_sync/", "router/"))}
    assert described == expected - with_a_chain - of_the_policy


def test_every_name_is_one_metric():
    assert metric_of("slipstream/placement/rollout_wait_seconds")[1] == {}
    assert metric_of("slipstream/placement/update_actor_seconds")[1] == {"stage": "update_actor"}
    assert metric_of("slipstream/weight_sync/secnds") is None
    exposed = Counter(each.exposed for each in METRICS)
    assert max(exposed.values()) == 1
    assert all(re.fullmatch("[a-z_]+", name) for name in exposed)


def test_the_page_lists_every_metric():
    rows = re.findall(r"^\| `(slipstream/[^`]+)` \| `([^`]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(PREFIX + each.name, shown(each.exposed, each.name), each.meaning) for each in METRICS]


def shown(exposed: str, name: str) -> str:
    labels = re.findall(r"<(\w+)>", name)
    return exposed + ("{" + ",".join(labels) + "}" if labels else "")
