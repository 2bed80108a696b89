"""The records that event hooks receive."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightSyncStarted:
    """The trainer is about to send weights."""

    run_id: str
    """Identifies the run: versions of different runs are unrelated."""

    base_version: int | None
    """The version the workers hold, or None when they are seeded from nothing."""

    target_version: int
    """The version the workers will hold."""

    workers: int
    """Engine workers that have to acknowledge."""


@dataclass(frozen=True)
class WeightSyncFinished:
    """Every engine worker has acknowledged the target version."""

    run_id: str
    """Identifies the run: versions of different runs are unrelated."""

    base_version: int | None
    """The version the workers held before, or None when they were seeded from nothing."""

    target_version: int
    """The version the workers hold now."""

    workers: int
    """Engine workers that acknowledged."""

    tensors: int
    """Tensors of the checkpoint."""

    total_elements: int
    """Elements of those tensors."""

    changed_elements: int
    """Elements whose bits differ between base and target."""

    payload_bytes: int
    """Bytes sent to one set of workers that together hold the model once."""

    dense_bytes: int
    """Bytes that the same tensors take densely, each in its own dtype."""

    seconds: float
    """From the first extraction to the last acknowledgement."""

    verified: bool
    """Whether each worker's fingerprint of the weights it holds was compared with the trainer's."""


@dataclass(frozen=True)
class RolloutFinished:
    """One request has produced its last token."""

    request_id: str
    """The framework's identifier of the request."""

    replica: str
    """The engine replica that finished it."""

    weight_version: int | None
    """The version of the weights at its last token, or None when it is not known."""

    prompt_tokens: int
    """Length of the prompt."""

    output_tokens: int
    """Tokens generated, over all replicas that worked on it."""

    seconds: float
    """From submission to the last token."""

    finish_reason: str
    """The engine's reason, for example ``"stop"`` or ``"length"``."""


@dataclass(frozen=True)
class Stage:
    """One stage of one training step, for example the weight sync of step 3."""

    name: str
    """Name of the stage, for example ``"rollout"``, ``"update_actor"`` or ``"weight_sync"``."""

    step: int
    """The training step it belongs to."""

    pipeline: str = "main"
    """The training run, where several share a cluster."""

    workers: tuple[str, ...] = ()
    """The workers it runs on, when they are known."""
