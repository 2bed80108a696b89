"""``slipstream profile`` measures this machine, and ``plan`` uses what it found."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from slipstream.core.cli import main
from slipstream.core.graph import DecodeCost, GraphError, read_workload
from slipstream.core.graph.compiled.model import GANG, SYNC, TRAIN
from slipstream.core.graph.interference import LOADS
from slipstream.core.graph.profile import Measured, Pair, Profile, fit_decode, read_profile

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "example-workload.yaml"


def test_costs_are_fitted_to_the_whole_machine_only():
    alone = [Measured("decode", rows, 1.0, 0.008 + rows * 0.000125) for rows in (1, 4, 16, 64, 256)]
    alone += [Measured("decode", 64, 0.5, 9.9), Measured("prefill", 200, 1.0, 0.02)]
    cost = fit_decode(alone)
    assert (cost.iteration, cost.per_request, cost.prefill) == pytest.approx((0.008, 0.000125, 0.0001))


PROFILE = Profile(
    "machine",
    "device",
    (),
    (
        Pair("train", 128, "decode", 1, 0.2),
        Pair("decode", 1, "train", 128, 0.4),
        Pair("train", 128, "decode", 512, 0.8),
        Pair("decode", 512, "train", 128, 0.9),
        Pair("sync", 0, "train", 128, 0.05),
    ),
    DecodeCost(0.008, 0.008 / 64, 0.0),
)


def test_a_decode_class_has_the_nearest_measurement():
    table = PROFILE.slowdowns()
    assert table[GANG + TRAIN, 0] == 0.2  # u = 0.015
    assert table[GANG + TRAIN, len(LOADS) - 1] == 0.8  # u = 0.89
    assert (table[0, GANG + TRAIN], table[len(LOADS) - 1, GANG + TRAIN]) == (0.4, 0.9)
    assert table[GANG + SYNC, GANG + TRAIN] == 0.05
    assert np.isnan(table[GANG + TRAIN, GANG + SYNC])


def test_a_workload_takes_what_was_measured_and_keeps_the_rest(tmp_path):
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(PROFILE))
    assumed = read_workload(EXAMPLE)
    found = read_profile(file).applied(assumed)
    assert found.rates[GANG + TRAIN, 0] == pytest.approx(1 / 1.2)
    assert found.rates[GANG, 0] == assumed.rates[GANG, 0]
    file.write_text("{}")
    with pytest.raises(GraphError, match="slipstream profile --out FILE"):
        read_profile(file)


@pytest.mark.engine
def test_this_machine_is_measured(tmp_path, capsys):
    """Times on a busy machine prove little: more rows take longer."""
    file = tmp_path / "profile.json"
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--seconds", "0.02", "--width", "128", "--json", "--out", str(file)])
    assert not ended.value.code
    found = read_profile(file)
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
    seconds = {(each.work, each.rows): each.seconds for each in found.alone if each.share == 1.0}
    assert seconds["decode", 256] > seconds["decode", 1] > 0
    assert seconds["train", 128] > seconds["log-prob", 256] / 2
    assert {(pair.work, pair.beside) for pair in found.pairs} >= {("train", "decode"), ("decode", "train")}
    assert found.decode.iteration > 0
    assert not np.isnan(found.slowdowns()[: len(LOADS), GANG : GANG + 3]).any()
