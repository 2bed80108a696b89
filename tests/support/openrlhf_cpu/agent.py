"""An agent of two turns for OpenRLHF's `--train.agent_func_path`."""

from __future__ import annotations

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_cpu.parity_reward import reward_func

TURNS = 2


class TwoTurns(AgentInstanceBase):
    """Answers each turn but the last with a line of its own."""

    def __init__(self) -> None:
        self._turns = 0

    async def step(self, state_dict, **kwargs):
        self._turns += 1
        score = reward_func([state_dict["action_text"]], [""], [state_dict["label"]])["scores"]
        params = state_dict["sampling_params"]
        return {
            "rewards": torch.tensor(score),
            "scores": score,
            "environment_feedback": "" if self._turns == TURNS else "<|im_end|>\n<|im_start|>uagain<|im_end|>\n",
            "done": self._turns == TURNS,
            "sampling_params": params,
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(TwoTurns)
