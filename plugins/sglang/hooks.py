"""What slipstream hooks into SGLang's processes, through SGLang's own plugin mechanism.

SGLang runs `register` in every process of every engine (entry point group `sglang.srt.plugins`) and applies the hooks
afterwards. In an engine that slipstream sends no command they pass every call through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from slipstream.plugins.sglang import drafter, worker
from slipstream.plugins.sglang.messages import COMMAND, CORPUS, LOADER, DrafterMessage, Outcome, encode_answer

_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def register() -> None:
    """Entry point: SGLang logs what this raises and goes on, so a worker that lacks the hooks refuses commands."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in (
        (f"{_UPDATER}.update_weights_from_tensor", from_tensor),
        (f"{_UPDATER}.load_weights_from_distributed", from_distributed),
        (f"{_UPDATER}.update_weights_from_disk", _another("update_weights_from_disk")),
        (f"{_UPDATER}.update_weights_from_ipc", _another("update_weights_from_ipc")),
        (f"{_MANAGER}.release_memory_occupation", released),
        (f"{_MANAGER}.resume_memory_occupation", resumed),
        (f"{_MANAGER}.check_weights", checked),
        ("sglang.srt.managers.scheduler.Scheduler.add_external_corpus", told),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
    worker.watched = True
    drafter.register_algorithm()


def from_tensor(
    original: Callable[..., tuple[bool, str]], updater: Any, named_tensors: Any, load_format: str | None = None
) -> tuple[bool, str]:
    """Around `WeightUpdater.update_weights_from_tensor`: answer for the loader, which SGLang takes no result of."""
    model = updater.get_model()
    if load_format != LOADER:
        _lose(model, "SGLang ran update_weights_from_tensor")
        return original(updater, named_tensors=named_tensors, load_format=load_format)
    worker.outcomes.pop(model, None)
    try:
        success, message = original(updater, named_tensors=named_tensors, load_format=load_format)
    except Exception as error:  # would end the scheduler
        success, message = False, f"{type(error).__name__}: {error}"
    outcome = worker.outcomes.pop(model, None)
    if outcome is None:
        outcome = Outcome(None, message if not success else "the custom weight loader did not run")
    return encode_answer(worker.gathered(outcome))


def from_distributed(original: Callable[..., tuple[bool, str]], updater: Any, named_tensors: Any) -> tuple[bool, str]:
    """Around `WeightUpdater.load_weights_from_distributed`: a command may come by broadcast as well."""
    model = updater.get_model()
    if [name for name, _ in named_tensors] != [COMMAND]:
        _lose(model, "SGLang ran update_weights_from_distributed")
        return original(updater, named_tensors)
    worker.load(model, named_tensors)
    return encode_answer(worker.gathered(worker.outcomes.pop(model)))


def released(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around `release_memory_occupation`: weights that are not kept in host memory are lost."""
    if _concerns_weights(request.tags):
        from sglang.srt.runtime_context import get_exec

        model = manager.tp_worker.model_runner.model
        if not get_exec().features.enable_weights_cpu_backup:
            _lose(model, "release_memory_occupation without enable_weights_cpu_backup")
        _set_asleep(model, True)
    return original(manager, request)


def resumed(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around `resume_memory_occupation`."""
    result = original(manager, request)
    if _concerns_weights(request.tags):
        _set_asleep(manager.tp_worker.model_runner.model, False)
    return result


def checked(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around `check_weights`: one of its actions writes."""
    if request.action == "reset_tensors":
        _lose(manager.tp_worker.model_runner.model, "SGLang ran check_weights(reset_tensors)")
    return original(manager, request)


def told(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Around `Scheduler.add_external_corpus`, which no algorithm but SGLang's n-grams serves: a message to ours."""
    if request.corpus_id != CORPUS:
        return original(scheduler, request)
    from sglang.srt.managers.io_struct import AddExternalCorpusReqOutput

    try:
        message = msgspec.json.decode(request.documents[0], type=DrafterMessage)
        tokens = request.token_chunks
        beside = zip(message.rollouts, tokens[::2], tokens[1::2], strict=True)
        rollouts = [drafter.Rollout(group, prompt, answer, version) for (group, version), prompt, answer in beside]
        counters = drafter.tell(message.version, rollouts)
    except Exception as error:  # would end the scheduler
        return AddExternalCorpusReqOutput(success=False, message=f"{type(error).__name__}: {error}")
    return AddExternalCorpusReqOutput(success=True, corpus_id=CORPUS, message=msgspec.json.encode(counters).decode())


def _another(method: str) -> Callable[..., Any]:
    """Around another writer of weights."""

    def hook(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
        _lose(updater.get_model(), f"SGLang ran {method}")
        return original(updater, *args, **kwargs)

    return hook


def _concerns_weights(tags: list[str] | None) -> bool:
    return not tags or "weights" in tags


def _lose(model: Any, reason: str) -> None:
    if (found := worker.workers.get(model)) is not None:
        found.lose(reason)


def _set_asleep(model: Any, asleep: bool) -> None:
    if (found := worker.workers.get(model)) is not None:
        found.asleep = asleep
