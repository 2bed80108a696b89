"""Transports of weight sync, one module each. ZeroMQ serves both the colocated (ipc) and disaggregated (tcp) paths."""
