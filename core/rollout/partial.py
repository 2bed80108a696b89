"""Responses made of several attempts: what is left to generate, and tokens, logprobs and weight versions in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """What one attempt produced."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...] | None
    """One per token, under the weights that generated it: a number, or the engine's record; None when they were not
    asked for."""

    weight_version: int
    finish_reason: str | None = None
    """None for an aborted attempt."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of a response that came from one weight version."""

    start: int
    end: int
    weight_version: int


@dataclass(frozen=True, slots=True)
class Stitched:
    """A whole response."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...] | None
    versions: tuple[Span, ...]
    """Cover all tokens in order; neighbours differ."""

    finish_reason: str | None
    attempts: int


def continuation(
    prompt_ids: Sequence[int], parts: Sequence[Part], max_new_tokens: int, context_limit: int | None = None
) -> tuple[list[int], int]:
    """Return prompt and token budget of the next attempt: what was generated counts against the budget (slime #2260).

    :param max_new_tokens: of the whole response.
    :param context_limit: of the engine, prompt included.
    :returns: prompt with everything generated so far, and the tokens that may still come; 0 when it is complete.
    """
    done = [token for part in parts for token in part.token_ids]
    if len(done) > max_new_tokens:
        raise ValueError(
            f"expected at most {max_new_tokens} tokens so far, got {len(done)}; an attempt overran its budget"
        )
    prompt = [*prompt_ids, *done]
    left = max_new_tokens - len(done)
    if context_limit is not None:
        left = min(left, max(context_limit - len(prompt), 0))
    return prompt, left


def stitch(parts: Sequence[Part]) -> Stitched:
    """Join the attempts of one request in order.

    :raises ValueError: when there is none, when an attempt before the last one finished, or when logprobs are missing
        for some attempts or do not match their tokens.
    """
    if not parts:
        raise ValueError("expected at least one attempt, got none")
    early = [index for index, part in enumerate(parts[:-1]) if part.finish_reason is not None]
    if early:
        raise ValueError(
            f"attempt {early[0]} had finished ({parts[early[0]].finish_reason}), yet others follow; drop them"
        )
    with_logprobs = [part.logprobs is not None for part in parts if part.token_ids]
    if any(with_logprobs) and not all(with_logprobs):
        raise ValueError("some attempts have logprobs and some have none; ask for them in every attempt or in none")
    spans: list[Span] = []
    at = 0
    for index, part in enumerate(parts):
        if part.logprobs is not None and len(part.logprobs) != len(part.token_ids):
            raise ValueError(
                f"attempt {index}: expected {len(part.token_ids)} logprobs, "
                f"got {len(part.logprobs)}; the stream is malformed"
            )
        end = at + len(part.token_ids)
        if end > at and spans and spans[-1].weight_version == part.weight_version:
            spans[-1] = Span(spans[-1].start, end, part.weight_version)
        elif end > at:
            spans.append(Span(at, end, part.weight_version))
        at = end
    tokens = tuple(token for part in parts for token in part.token_ids)
    logprobs = tuple(value for part in parts for value in part.logprobs or ()) if any(with_logprobs) else None
    return Stitched(tokens, logprobs, tuple(spans), parts[-1].finish_reason, len(parts))
