"""Lets SGLang start on a CPU in tests: put this folder on PYTHONPATH, so that every process the engine starts runs it.

torchvision's wheels declare the schemas of two operators in a library that needs CUDA, and the package cannot be
imported without them. SGLang imports it and calls neither. The environment also has vLLM, for verl's tests; users of
SGLang do not, so it is hidden.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[Any] = []


class _Repairs(MetaPathFinder):
    """Declares the operators when torchvision is about to be imported; finds nothing itself."""

    _declared = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> None:
        if name == "torchvision" and not self._declared:
            self._declared = True
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for schema in _SCHEMAS:
                library.define(schema)
            _kept.append(library)
        if name == "vllm":
            raise ModuleNotFoundError("vllm is hidden from tests of SGLang", name=name)


sys.meta_path.insert(0, _Repairs())
