"""vLLM side of slipstream: what runs inside the rollout engine."""
