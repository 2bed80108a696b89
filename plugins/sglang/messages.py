"""What travels between the caller of an SGLang engine and its workers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

COMMAND = "slipstream.command"
"""Name of the tensor that carries a command."""

LOADER = "slipstream.plugins.sglang.worker.load"
"""Import path of the custom weight loader: goes into the engine's `custom_weight_loader`, and is the `load_format`."""


class Sync(msgspec.Struct, frozen=True, tag="sync"):
    """Take part in one sync."""

    endpoints: list[str]
    """Of the trainer ranks; `{local_rank}` in them becomes the worker's rank on its node."""
    timeout: float
    """Seconds to wait for each message."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Go to the newest version of a chain."""

    url: str
    """Of a folder, as fsspec takes it."""


Command = Sync | Follow


CORPUS = "slipstream.drafter"
"""Name of the corpus in SGLang's `AddExternalCorpusReqInput` that carries a `DrafterMessage`."""


class DrafterMessage(msgspec.Struct, frozen=True):
    """What an engine's drafter is told; it answers with its counters."""

    version: int | None = None
    """The engine generates with this version of the policy from now on."""
    rollouts: tuple[tuple[str, int], ...] = ()
    """Group and policy version of rollouts that other engines wrote; prompt and response of each travel beside."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command in one worker."""

    version: int | None
    """Version now held."""
    error: str = ""
    """Empty when all is well."""


class _Plain:
    """uint8[bytes] that is pickled by value.

    A tensor would travel as a handle to shared memory, which only processes of one host can open, and not at all once
    SGLang has patched how tensors are pickled in this process. Its unpickler admits few callables; this is one.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return torch.ByteTensor, (list(self._data),)


def encode_command(command: Command) -> bytes:
    """The payload of SGLang's `update_weights_from_tensor` that carries `command`, the same for every worker."""
    return pickle.dumps([(COMMAND, _Plain(msgspec.json.encode(command)))])


def command_tensor(command: Command) -> torch.Tensor:
    """uint8[bytes], for a broadcast."""
    return torch.tensor(list(msgspec.json.encode(command)), dtype=torch.uint8)


def decode_command(data: torch.Tensor) -> Command:
    """The command in uint8[bytes].

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(bytes(data.cpu().tolist()), type=Command)


def encode_answer(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """What SGLang's update returns: success, and the outcomes in rank order."""
    return not any(outcome.error for outcome in outcomes), msgspec.json.encode(outcomes).decode()


def decode_answer(message: str) -> list[Outcome]:
    """The outcomes of all workers, in rank order.

    Raises:
        msgspec.DecodeError: the answer is SGLang's own.
    """
    return msgspec.json.decode(message, type=list[Outcome])
