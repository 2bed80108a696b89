"""What trainer and agent loops of a verl run do for the drafters, without engines."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
from metric_names import missing, undescribed

from slipstream.plugins.verl.drafting import group_of, in_groups
from slipstream.plugins.vllm.drafter import GROUP
from slipstream.plugins.vllm.drafting import drafter_metrics

MESSAGES = [{"role": "user", "content": "1 + 1"}]


def test_a_group_is_the_prompt_in_every_epoch_and_the_uid_where_it_is_no_text():
    first, later = ({"raw_prompt": np.array(MESSAGES, dtype=object), "uid": uid} for uid in ("a", "b"))
    assert group_of(first) == group_of(later)
    assert group_of(first) != group_of({"raw_prompt": [{"role": "user", "content": "1 + 2"}], "uid": "a"})
    assert group_of({"raw_prompt": [{"role": "user", "content": object()}], "uid": "a"}) == "a"
    assert group_of({}) is None


def test_requests_of_a_sample_carry_its_group_and_the_callers_dict_is_left_alone():
    seen = {}

    async def loop(self, sampling_params, trajectory, **kwargs):
        seen.update(sampling_params)

    given = {"temperature": 1.0, "extra_args": {"theirs": 1}}
    asyncio.run(in_groups(loop)(None, given, {}, agent_name="x", raw_prompt=MESSAGES, uid="a"))
    assert seen == {"temperature": 1.0, "extra_args": {"theirs": 1, GROUP: group_of({"raw_prompt": MESSAGES})}}
    assert given == {"temperature": 1.0, "extra_args": {"theirs": 1}}


def test_metrics_are_those_of_the_step():
    before = Counter(steps=10, steps_off=10, verified=5, accepted=5, emitted=10, row_steps=10, drafted=6)
    totals = Counter(before)
    totals.update(
        steps=4, steps_off=1, verified=20, accepted=15, emitted=55, row_steps=40, drafted=21, fed=3, drafting=1
    )
    totals.update(history_tokens=200, drafting_seconds=0.5)
    found = drafter_metrics(totals, before, replicas=2)
    assert not missing("drafter", found)
    assert not undescribed(f"slipstream/drafter/{name}" for name in found)
    expected = {"acceptance": 0.75, "tokens_per_step": 55 / 40, "drafted": 21, "verified": 20, "seconds": 0.5, "fed": 3}
    assert found.items() >= expected.items()
    assert (found["off_share"], found["drafting"], found["history_tokens"]) == (0.25, 0.5, 100)
    assert drafter_metrics(totals, totals, replicas=2)["acceptance"] == 0.0
