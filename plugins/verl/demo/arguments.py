"""Checks what a user gave the demo, before anything is trained: a mistake costs seconds, not two failed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipstream.plugins.verl.demo.command import training_overrides

__all__ = ["ArgumentError", "check_overrides", "model_folder_of", "split"]

EXAMPLE = "trainer.total_training_steps=4"
OWN = ("slipstream.events", "slipstream.weight_sync.audit_every")
"""Settings the demo needs for its comparison."""


class ArgumentError(ValueError):
    """The model or an override cannot be used; the message says expected, found and what to do."""


def model_folder_of(model: str) -> Path:
    """Return the folder `model` after a look at what verl and vLLM will want from it.

    Raises:
        ArgumentError: it is no folder, or lacks the configuration, the weights, the tokenizer or the chat template.
    """
    folder = Path(model).expanduser().absolute()
    if not folder.is_dir():
        raise ArgumentError(f"{model}: no such folder; MODEL is smollm2 or a folder with config.json")
    lacking = [
        what
        for what, patterns in (
            ("config.json", ("config.json",)),
            ("weights (*.safetensors or *.bin)", ("*.safetensors", "*.bin")),
            ("a tokenizer (tokenizer*)", ("tokenizer*",)),
        )
        if not any(any(folder.glob(pattern)) for pattern in patterns)
    ]
    if lacking:
        raise ArgumentError(
            f"{model}: expected a Hugging Face folder, found one without {' and without '.join(lacking)}; "
            "MODEL is smollm2 or a folder with config.json"
        )
    settings = folder / "tokenizer_config.json"
    inside = settings.is_file() and '"chat_template"' in settings.read_text(errors="replace")
    if not inside and not any(folder.glob("*chat_template*")):
        raise ArgumentError(
            f"{model}: expected a tokenizer with a chat template, found none; use an instruction-tuned model, or put a "
            "chat_template.jinja into the folder"
        )
    return folder


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of both runs, and those of slipstream, which verl alone would not know.

    Raises:
        ArgumentError: an argument is not a Hydra override, or sets what the demo itself has to set.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    both: list[str] = []
    ours: list[str] = []
    for argument in arguments:
        try:
            (override,) = parser.parse_overrides([argument])
        except HydraException:
            raise ArgumentError(f"expected a Hydra override such as {EXAMPLE}, got {argument!r}") from None
        key = override.key_or_group
        if key in OWN or key == "slipstream":
            raise ArgumentError(f"{argument}: the demo sets {key} itself; leave it out")
        (ours if key.startswith(("slipstream.", "slipstream/")) else both).append(argument)
    return both, ours


def check_overrides(both: Sequence[str], ours: Sequence[str], steps: int) -> int:
    """Compose verl's configuration with the demo's overrides and these, and return the number of training steps.

    Args:
        both: overrides of both runs.
        ours: overrides of the run with slipstream.
        steps: training steps, unless `both` says otherwise.

    Raises:
        ArgumentError: Hydra knows no such key or value, or the run with slipstream would refuse it.
    """
    from hydra.errors import HydraException

    from slipstream.core.cli.compose import compose_config
    from slipstream.core.config import ConfigError, parse_config
    from slipstream.plugins.verl.plugin import HYDRA_CONFIG
    from slipstream.plugins.verl.requirements import check

    stands_in = Path("/demo")  # the keys are those of any model and folder
    overrides = training_overrides(model=stands_in, train_file=stands_in, folder=stands_in, steps=steps, overrides=both)
    try:
        # `hydra.*` exists in an application only.
        config = compose_config([each for each in [*overrides, *ours] if not each.startswith("hydra.")], HYDRA_CONFIG)
        check(config, parse_config(config.slipstream))
    except (HydraException, ConfigError) as error:
        raise ArgumentError(f"the demo's runs would refuse these overrides: {error}") from error
    asked = config.trainer.total_training_steps
    if not isinstance(asked, int) or asked < 1:
        raise ArgumentError(f"trainer.total_training_steps: expected a whole number from 1, got {asked!r}; correct it")
    return asked
