"""OpenRLHF adapter of slipstream."""
