"""Entry point of the group `verl.plugins`: verl imports this module on every `import verl`, in every process.

verl swallows plugin errors at DEBUG level, so nothing here may do work that can fail. It only registers callbacks for
verl modules that a process imports later; an error in a callback makes that import fail, which nobody can overlook.

Without the override nothing else happens: the two driver functions below are wrapped, see no `slipstream` node and pass
every call through.
"""

from __future__ import annotations

from types import ModuleType

from slipstream.plugins.verl.post_import import after_import


def _driver(module: ModuleType) -> None:
    from slipstream.plugins.verl import driver

    driver.install(module)


def _run(module: ModuleType) -> None:
    from slipstream.plugins.verl import activation

    activation.install(module)


after_import("verl.utils.config", _driver)
after_import("verl.trainer.constants_ppo", _driver)
after_import("verl.workers.rollout.base", _run)
after_import("verl.workers.rollout.replica", _run)
after_import("verl.checkpoint_engine.base", _run)
after_import("verl.trainer.ppo.v1.trainer_base", _run)
after_import("verl.trainer.ppo.v1.trainer_sync", _run)
after_import("verl.trainer.ppo.v1.trainer_colocate_async", _run)
after_import("verl.trainer.ppo.v1.trainer_separate_async", _run)
after_import("verl.workers.engine_workers", _run)
after_import("verl.workers.rollout.llm_server", _run)
after_import("verl.experimental.agent_loop.agent_loop", _run)
after_import("transfer_queue.interface", _run)
after_import("verl.workers.rollout.sglang_rollout.async_sglang_server", _run)
after_import("verl.workers.rollout.sglang_rollout.http_server_engine", _run)
