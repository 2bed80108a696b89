"""An agent loop whose samples can be repeated, one by one, in another run.

verl 0.9.1 offers a seed for the whole engine (sampling then depends on which requests share a batch) or, under
``rollout.full_determinism``, one seed for all requests (all samples of a prompt are then the same, and GRPO learns
nothing). Here each sample gets its own seed, a function of the run's seed, the training step, the prompt and the
number of the sample, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

from slipstream.plugins.verl.cpu.gate import START_GATE
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

__all__ = ["SeededSingleTurnAgentLoop", "sample_seed"]


def sample_seed(seed: int, step: int, index: int, session: int) -> int:
    """Return the sampling seed of one sample, a non-negative 63-bit integer.

    Args:
        seed: Seed of the run (``actor_rollout_ref.rollout.seed``).
        step: Training step the prompt was drawn for.
        index: The prompt's number in its data set (``extra_info.index``).
        session: The sample's number among those of its prompt.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{index}/{session}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class SeededSingleTurnAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc, unused-ignore]
    """verl's single-turn loop, with a seed of its own for each sample."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        gate = os.environ.get(START_GATE)
        while gate and not Path(gate).exists():
            await asyncio.sleep(0.2)
        seed = sample_seed(
            int(self.rollout_config.seed), int(kwargs["global_steps"]), int(kwargs["index"]), int(kwargs["session_id"])
        )
        # A copy: verl shares one dictionary between all samples of a prompt.
        name = "sampling_seed" if self.rollout_config.name == "sglang" else "seed"
        return await super().run({**sampling_params, name: seed}, priority=priority, **kwargs)
