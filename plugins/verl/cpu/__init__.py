"""Run verl on a machine without an accelerator: the test bed of slipstream's own checks, useful without slipstream too.

Nothing of slipstream's acceleration is involved here. Activate with two environment variables::

    VERL_USE_EXTERNAL_MODULES=slipstream.plugins.verl.cpu
    VERL_PLATFORM=cpu

verl imports the module in every process that imports verl (driver, Ray actors, vLLM workers), and lets its errors
through. It then

- registers a ``cpu`` platform (gloo, pretended Ray resource ``GPU``, weights handed over in shared memory),
- registers verl's FSDP engines for the device ``cpu``,
- gives verl's process group one gloo backend (verl would ask for ``cpu:gloo,cpu:gloo``, which torch refuses),
- keeps vLLM's CPU weights unpacked, so that a weight update reaches them (see ``plugins/vllm/cpu_packing.py``).

All but the first wait for the module they concern, so that a process loads neither torch FSDP nor vLLM because of it.
"""

from __future__ import annotations

from slipstream.plugins.verl.cpu.hooks import activate

activate()
