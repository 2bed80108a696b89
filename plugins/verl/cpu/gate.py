"""The name of the start gate, apart from the agent loop that obeys it, which imports verl."""

START_GATE = "SLIPSTREAM_START_GATE"
"""Environment variable with the path of a file; generation waits until it exists. The demo uses it to start two runs at
once (most of a start is waiting for one process after another) and still train one after the other."""
