"""Rollout requests of verl placed by slipstream's router: the balancer actor, the client, the server, the samples."""
