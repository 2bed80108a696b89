"""Stand-in for flash-attn, which needs CUDA to build: the five names that OpenRLHF imports at module top."""
