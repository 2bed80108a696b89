"""Responses of several attempts. Numbers in brackets are threads in which users met the fault."""

from __future__ import annotations

import pytest

from slipstream.core.rollout import Part, Span, continuation, stitch


def part(tokens: int, version: int = 1, reason: str | None = None, start: int = 0) -> Part:
    ids = tuple(range(start, start + tokens))
    return Part(ids, tuple(-0.5 * each for each in ids), version, reason)


def test_a_resumed_request_asks_for_what_is_left():
    """[slime #2260] 19,202 tokens of prompt, limit 40,960: the full budget of 24,576 again would be refused."""
    done = Part(tuple(range(5000)), None, 1)
    prompt, left = continuation(range(19_202), [done], 24_576, 40_960)
    assert len(prompt) == 24_202
    assert prompt[-5000:] == list(range(5000))
    assert left == 40_960 - 24_202 < 24_576 - 5000
    assert continuation([1], [part(10)], 10)[1] == 0
    with pytest.raises(ValueError, match="overran"):
        continuation([1], [part(11)], 10)


def test_tokens_logprobs_and_versions_are_stitched():
    """[slime #2272] What was observed before an abort is kept."""
    whole = stitch([part(3, 1), part(0, 1), part(2, 1, start=3), part(4, 2, "stop", start=5)])
    assert whole.token_ids == tuple(range(9))
    assert whole.logprobs == tuple(-0.5 * each for each in range(9))
    assert whole.versions == (Span(0, 5, 1), Span(5, 9, 2))
    assert whole.finish_reason == "stop"
    assert whole.attempts == 4


def test_an_abort_before_the_first_token_is_an_empty_part():
    """[SkyRL #537] Waiting requests come back with no tokens."""
    only = stitch([Part((), None, 1)])
    assert only.token_ids == ()
    assert only.logprobs is None
    assert only.versions == ()
    whole = stitch([Part((), None, 1), part(2, 2, "length")])
    assert whole.logprobs == (0.0, -0.5)
    assert whole.versions == (Span(0, 2, 2),)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one"),
        ([part(1, reason="stop"), part(1)], "had finished"),
        ([part(1), Part((2,), None, 1)], "logprobs"),
        ([Part((1, 2), (0.0,), 1)], "expected 2 logprobs, got 1"),
    ],
)
def test_malformed_attempts_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        stitch(parts)
