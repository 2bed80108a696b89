"""The agent loop of `long_tail`: a shared system prompt, several turns, and lengths with a long tail.

Lengths, turns and the bytes that set the samples of a prompt apart follow from the sample alone, and every token is the
likeliest one, so two runs agree token for token wherever their requests went. Writes a line for each sample to the file
named by LONG_TAIL_RECORD with `.samples` behind it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from slipstream.plugins.verl.cpu.agent_loop import sample_seed

SYSTEM = "Digits in order, please. " * 10
TURNS = (2, 3, 3, 4)
SHORT, LONG = (24, 64), (400, 500)
LONG_SHARE = {1: 1 / 16}
"""By step; a quarter in those that are not named, which have one turn: where moves pay most."""
TOOL_SECONDS = 0.2


class LongTailLoop(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        seed = sample_seed(7, int(kwargs["global_steps"]), int(kwargs["index"]), int(kwargs["session_id"]))
        chance = random.Random(seed)
        messages = [{"role": "system", "content": SYSTEM}, *kwargs["raw_prompt"]]
        prompt_ids = await self.ct_build_initial_tokens(messages)
        prompt_ids = [*prompt_ids, *self._text(chance, 8)]
        ids, mask, logprobs = list(prompt_ids), [], []
        step = int(kwargs["global_steps"])
        request_id, turns = uuid4().hex, chance.choice(TURNS) if step in LONG_SHARE else 1
        versions = []
        for turn in range(turns):
            tokens = chance.randint(
                *(LONG if turn == turns - 1 and chance.random() < LONG_SHARE.get(step, 1 / 4) else SHORT)
            )
            params = {**sampling_params, "temperature": 0.0, "ignore_eos": True, "max_tokens": tokens}
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=ids, sampling_params=params, priority=0
            )
            assert len(output.token_ids) == tokens, f"asked for {tokens} tokens, got {len(output.token_ids)}"
            assert len(output.log_probs) == tokens
            ids, mask, logprobs = [*ids, *output.token_ids], mask + [1] * tokens, [*logprobs, *output.log_probs]
            versions += [output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]]
            if turn + 1 < turns:
                observation = self._text(chance, 16)
                ids, mask, logprobs = [*ids, *observation], mask + [0] * 16, logprobs + [0.0] * 16
                await asyncio.sleep(TOOL_SECONDS)
        sample = {name: int(kwargs[name]) for name in ("global_steps", "index", "session_id")}
        with open(os.environ["LONG_TAIL_RECORD"] + ".samples", "a") as stream:
            stream.write(json.dumps({**sample, "ids": ids, "prompt": len(prompt_ids)}) + "\n")
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids[len(prompt_ids) :],
            response_mask=mask,
            response_logprobs=logprobs,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
            },
        )

    def _text(self, chance: random.Random, length: int) -> list[int]:
        return self.tokenizer.encode("".join(chance.choices("0123456789", k=length)), add_special_tokens=False)
