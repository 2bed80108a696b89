"""SGLang side of slipstream: what runs inside the rollout engine, and what calls it."""
