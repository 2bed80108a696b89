"""One SGLang tensor-parallel worker as weight sync sees it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from slipstream.core.weights import SyncError
from slipstream.core.weights.engine import ModuleEngine, keeps_parameters, layer_state

_PLAIN_METHODS = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
"""SGLang layer methods that leave weights in checkpoint form after loading, unless they pack for AMX."""

_UNKNOWN = re.compile(r"(\S+) not found in params_dict")
"""How SGLang's models speak of a tensor that they drop."""


class SglangEngine(ModuleEngine):
    """Implements `slipstream.core.weights.engine.Engine` over the model of a live SGLang worker.

    SGLang prepares weights twice around an update: opening a weight-update session brings packed ones back into the
    form that a loader takes, closing it packs them again. So there is nothing to finish while the session is open.
    """

    def __init__(self, model: Any, in_session: bool) -> None:
        """Hold `model`.

        Args:
            model: of SGLang's model runner.
            in_session: whether updates happen inside a weight-update session; False before SGLang 0.5.21.
        """
        self._held = model
        self._in_session = in_session

    @property
    def model(self) -> Any:
        """The worker's model."""
        return self._held

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        """The model's own loader, but a tensor that it does not know is an error: SGLang logs it and goes on.

        Raises:
            SyncError: naming those tensors; the others are written.
        """
        with _unknown_tensors(self.model) as unknown:
            result = super().load_weights(weights)
        if unknown:
            raise SyncError(
                f"{type(self.model).__name__} has no place for {', '.join(sorted(unknown)[:5])}; is the engine's model "
                "the one that is trained?"
            )
        return result

    def finish_loading(self) -> None:
        """Rebuild what SGLang derives from loaded weights, where the end of the session does not."""
        if not self._in_session:
            from sglang.srt.model_loader.loader import DefaultModelLoader

            DefaultModelLoader.postprocess_weights(self.model, self.device)

    def derived(self) -> list[MutableMapping[str, Any]]:
        """Attributes, parameters and buffers of every layer with post-load processing."""
        return layer_state(layer for layer in self.model.modules() if self._is_transformed(layer))

    def transformed(self) -> list[torch.Tensor]:
        """Parameters of layers whose post-load processing may change values or memory layout.

        Raises:
            SyncError: weights are packed for AMX, which SGLang itself cannot load anew.
        """
        for name, module in self.model.named_modules():
            if getattr(module, "use_intel_amx_backend", False):
                raise SyncError(
                    f"SGLang packed the weights of {name} for AMX and cannot take them back, so this engine takes no "
                    "updates; use a GPU, or slipstream/weight_sync=native with load_format from disk"
                )
        transformed = (m for m in self.model.modules() if self._is_transformed(m) or not _keeps_experts(m))
        return [parameter for module in transformed for parameter in module.parameters()]

    def _is_transformed(self, module: torch.nn.Module) -> bool:
        method = getattr(module, "quant_method", None)
        if method is None:
            # A step of the model itself (absorbed copies of latent attention) may read any weight.
            return module is self.model and hasattr(module, "post_load_weights")
        return type(method).__name__ not in _PLAIN_METHODS and not _has_plain_experts(module)


class _Listener(logging.Handler):
    """Collects the names in SGLang's warnings about tensors that a loader does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if found := _UNKNOWN.search(record.getMessage()):
            self.names.add(found.group(1))


@contextmanager
def _unknown_tensors(model: torch.nn.Module) -> Iterator[set[str]]:
    """Names that the loader warns about while the context is open; a tied head is known under another name."""
    listener, speaker = _Listener(), logging.getLogger(type(model).__module__)
    level, propagate = speaker.level, speaker.propagate
    speaker.addHandler(listener)
    speaker.setLevel(logging.WARNING)
    speaker.propagate = False
    unknown: set[str] = set()
    try:
        yield unknown
    finally:
        speaker.removeHandler(listener)
        speaker.setLevel(level)
        speaker.propagate = propagate
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    unknown |= listener.names - ({"lm_head.weight"} if tied else set())


def _has_plain_experts(module: torch.nn.Module) -> bool:
    return type(getattr(module, "quant_method", None)).__name__ == "UnquantizedFusedMoEMethod"


def _keeps_experts(module: torch.nn.Module) -> bool:
    """Whether SGLang's preparation leaves the experts of this layer alone; layers without experts are not looked at."""
    method: Any = getattr(module, "quant_method", None)
    return not _has_plain_experts(module) or keeps_parameters(module, method.process_weights_after_loading)
