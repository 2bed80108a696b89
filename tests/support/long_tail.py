"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): rollouts with a long tail, and a record of their requests.

Registers the agent loop `long_tail`, makes verl's vLLM server write a line for each request to the file named by
LONG_TAIL_RECORD, and gives a toy model on a CPU what matters of a real one on a GPU: steps that take longer the more
requests they serve. Works with verl's own router and with slipstream's. With LONG_TAIL_KILL=N the engine of replica 1
is killed while it serves its fifth request under the weights of step N.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import time
from typing import Any

from slipstream.plugins.verl.post_import import after_import

SECONDS_PER_REQUEST = 0.003


def _register(module: Any) -> None:
    module._agent_loop_registry["long_tail"] = {"_target_": "long_tail_loop.LongTailLoop"}


def _record(module: Any) -> None:
    generate = module.vLLMHttpServer.generate

    @functools.wraps(generate)
    async def recorded(self: Any, prompt_ids: Any, sampling_params: Any, request_id: str, **kwargs: Any) -> Any:
        start, limit = time.time(), sampling_params.get("max_tokens")
        if self.replica_rank == 1 and str(self.global_steps) == os.environ.get("LONG_TAIL_KILL"):
            self.doomed = getattr(self, "doomed", 0) + 1
            if self.doomed == 5:
                engine = self.engine.engine_core.resources.engine_manager.processes[0].pid
                asyncio.get_running_loop().call_later(0.5, os.kill, engine, signal.SIGKILL)
        output = await generate(self, prompt_ids, sampling_params, request_id, **kwargs)
        line = {
            "replica": self.replica_rank,
            "request": request_id,
            "prompt": len(prompt_ids),
            "cached": output.extra_fields.get("num_cached_tokens"),
            "output": len(output.token_ids),
            "limit": limit,
            "stop": output.stop_reason,
            "version": output.extra_fields.get("global_steps"),
            "priority": kwargs.get("priority", 0),
            "start": start,
            "end": time.time(),
        }
        with open(os.environ["LONG_TAIL_RECORD"], "a") as stream:
            stream.write(json.dumps(line) + "\n")
        return output

    module.vLLMHttpServer.generate = recorded


def _slow_down(module: Any) -> None:
    execute = module.GPUModelRunner.execute_model

    @functools.wraps(execute)
    def executed(self: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        time.sleep(SECONDS_PER_REQUEST * len(scheduled.num_scheduled_tokens))
        return execute(self, scheduled, *args, **kwargs)

    module.GPUModelRunner.execute_model = executed


after_import("vllm.v1.worker.gpu_model_runner", _slow_down)
after_import("verl.experimental.agent_loop.agent_loop", _register)
after_import("verl.workers.rollout.vllm_rollout.vllm_async_server", _record)
