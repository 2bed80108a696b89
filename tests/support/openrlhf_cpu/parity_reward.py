"""A reward that tells the responses of an untrained model apart."""

from __future__ import annotations


def reward_func(queries, prompts, labels):
    """See OpenRLHF's `--reward.remote_url FILE.py`: the share of even characters in the response."""
    response = queries[0][len(prompts[0]) :]
    score = sum(ord(character) % 2 == 0 for character in response) / max(1, len(response))
    return {"rewards": score, "scores": score, "extra_logs": {}}
