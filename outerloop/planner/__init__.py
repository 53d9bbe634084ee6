"""PURE. Strategy menu, estimators, and verdicts with their arithmetic.

Before a cluster's hours are spent: which way of running the work, and why every other one lost. `plan(request)` judges
a curated menu of candidates and keeps the working of each; `render_report` shows it. All of it is importable from here.
This room knows no disk, no database, no process and no cluster: resources, prices and measured figures are handed in.
`calibrate` alone imports torch, inside its functions.
"""

from outerloop.planner.arithmetic import Estimate, Line
from outerloop.planner.catalog import GPUS, Gpu, find_gpu
from outerloop.planner.checkpointing import CheckpointAdvice, checkpoint_interval_s, suggest_checkpoint_interval
from outerloop.planner.decide import PLANNER_VERSION, catalog_digest, plan, plan_digest
from outerloop.planner.handover import figure_fields, strategy_fields
from outerloop.planner.lanes import resources_from_lane
from outerloop.planner.parse import PlanRequestError, parse_request
from outerloop.planner.render import render_report
from outerloop.planner.report import Candidate, Check, Library, PlanReport, Unlock
from outerloop.planner.request import (
    ClassicalML,
    IndependentTasks,
    Lora,
    MeasuredFigure,
    PlanRequest,
    PytorchTraining,
    Resources,
    TransformerFinetune,
)
from outerloop.planner.shapes import SHAPES, ModelShape, find_shape

__all__ = [
    "GPUS",
    "PLANNER_VERSION",
    "SHAPES",
    "Candidate",
    "Check",
    "CheckpointAdvice",
    "ClassicalML",
    "Estimate",
    "Gpu",
    "IndependentTasks",
    "Library",
    "Line",
    "Lora",
    "MeasuredFigure",
    "ModelShape",
    "PlanReport",
    "PlanRequest",
    "PlanRequestError",
    "PytorchTraining",
    "Resources",
    "TransformerFinetune",
    "Unlock",
    "catalog_digest",
    "checkpoint_interval_s",
    "figure_fields",
    "find_gpu",
    "find_shape",
    "parse_request",
    "plan",
    "plan_digest",
    "render_report",
    "resources_from_lane",
    "strategy_fields",
    "suggest_checkpoint_interval",
]
