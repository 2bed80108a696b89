"""Tests of the kernels. Those in `interpreted` need Triton's interpreter and run in a child process for each Triton."""

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
