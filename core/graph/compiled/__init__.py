"""The compiled core: one model of stages on workers, on which policies decide, play-outs look ahead and the simulator
runs. Plain functions over tuples of arrays, so that numba compiles them once for everybody.
"""

from slipstream.core.graph.compiled.model import KINDS, Actions, Curves, State, World

__all__ = ["KINDS", "Actions", "Curves", "State", "World"]
