"""An external module for verl (`VERL_USE_EXTERNAL_MODULES`): SGLang rollouts without slipstream, on a CPU.

verl 0.9.1 is written for SGLang 0.5.12 and does not run the installed one by itself: what slipstream changes for that
is changed here as well, and nothing else of slipstream. And SGLang hands weights over as CUDA IPC handles, whose place
files in shared memory take.
"""

from __future__ import annotations

from typing import Any

from slipstream.plugins.verl.post_import import after_import
from slipstream.plugins.verl.sglang_versions import know_server_arguments, open_sessions


def _share_by_file(module: Any) -> None:
    import torch
    from sglang.srt.utils import patch_torch

    torch.multiprocessing.set_sharing_strategy("file_system")
    patch_torch.monkey_patch_torch_reductions = lambda: None


after_import("verl.workers.rollout.sglang_rollout.async_sglang_server", know_server_arguments)
after_import("verl.workers.rollout.sglang_rollout.http_server_engine", open_sessions)
after_import("verl.workers.rollout.sglang_rollout.sglang_rollout", _share_by_file)
