"""Schedules the stages of one or more training runs on shared workers: graph, costs, schedulers, simulator, arbiter."""

from slipstream.core.graph.advice import Advisor, FirstComeFirstServed, LongestPathFirst
from slipstream.core.graph.arbiter import Arbiter
from slipstream.core.graph.errors import GraphError, LeaseError, WorkloadError
from slipstream.core.graph.history import PredictedStep, StepHistory
from slipstream.core.graph.interference import Interference
from slipstream.core.graph.leases import Directive, DirectiveKind, Lane, Lease, Request
from slipstream.core.graph.substages import ActiveCurve, StageKind, SubStage, SubStageGraph, curve_of_lengths, cut
from slipstream.core.graph.workload import (
    DecodeCost,
    MemoryFloor,
    Pipeline,
    StageSeconds,
    Workload,
    read_workload,
)

__all__ = [
    "ActiveCurve",
    "Advisor",
    "Arbiter",
    "DecodeCost",
    "Directive",
    "DirectiveKind",
    "FirstComeFirstServed",
    "GraphError",
    "Interference",
    "Lane",
    "Lease",
    "LeaseError",
    "LongestPathFirst",
    "MemoryFloor",
    "Pipeline",
    "PredictedStep",
    "Request",
    "StageKind",
    "StageSeconds",
    "StepHistory",
    "SubStage",
    "SubStageGraph",
    "Workload",
    "WorkloadError",
    "curve_of_lengths",
    "cut",
    "read_workload",
]
