"""docs/settings.md against the schema."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from slipstream.core.config import SlipstreamConfig
from slipstream.core.config.fields import annotations_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def settings(schema: Any = SlipstreamConfig) -> Iterator[tuple[str, str, str]]:
    """Path, default and accepted values of each setting, as the page writes them."""
    for field in dataclasses.fields(schema):
        annotation = annotations_of(schema)[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from settings(annotation)
            continue
        default = field.default if isinstance(field.default, str) else json.dumps(field.default)
        if get_origin(annotation) is Literal:
            values = ", ".join(map(str, get_args(annotation)))
        elif annotation is bool:
            values = "true, false"
        else:
            values = field.metadata.get("expected", "a path").partition(" (")[0]
        yield f"{schema.node_path}.{field.name}", default, values


def test_the_page_lists_every_setting_with_its_default_and_values():
    rows = re.findall(r"^\| `(slipstream\.[\w.]+)` \| `([^`]+)` \| ([^|]+) \| \S", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(settings())
