"""OpenRLHF's reward file of the demo's task."""

from __future__ import annotations

from slipstream.plugins.verl.demo import task


def reward_func(queries, prompts, labels):
    """See OpenRLHF's `--reward.remote_url FILE.py`."""
    query, prompt, label = queries[0], prompts[0], labels[0]
    response = query[len(prompt) :].partition("<|im_end|>")[0]
    score = task.score(response, label)
    return {"rewards": score, "scores": score, "extra_logs": {}}
