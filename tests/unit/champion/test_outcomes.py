"""The end of a training and of an evaluation, as events; and the order in which they are appended."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from outerloop.champion import CampaignState, EvalEvent, Job, Scored, TrainingEnd, evaluation_events, ready_order
from outerloop.champion import training_event as event_of
from outerloop.champion.report import MOST_CHECKPOINTS
from tests.unit.champion.world import campaign

JOB = Job(
    key="train/champ-g002-r0003-a",
    kind="train",
    generation=2,
    round=3,
    run_id="champ-g002-r0003-a",
    command="train",
    awaits=("run:champ-g002-r0003-a",),
)
SELECTION = json.dumps({"checkpoint": "m-0002", "false_negatives": 3})


def test_a_trained_run_offers_its_pareto_entries_and_its_selected_checkpoint() -> None:
    event = event_of(
        JOB,
        campaign(),
        TrainingEnd(
            exit_code=0,
            selection=SELECTION,
            pareto='{"checkpoints": [{"checkpoint": "m-0001"}, {"checkpoint": "m-0002"}]}',
            checkpoints={"m-0001": "s1", "m-0002": "s2", "m-0003": "s3"},
            validation={"m-0002": '{"gate_auc": 0.7, "fail_to_pass_count": 2}'},
            validation_scores={"m-0002": "v2"},
            config_sha256="c",
            gpu_hours=0.5,
        ),
    )
    assert (event.status, event.generation, event.round, event.gpu_hours) == ("trained", 2, 3, 0.5)
    assert [(c.name, c.sha256, c.selected, c.gate_auc) for c in event.checkpoints] == [
        ("m-0001", "s1", False, None),
        ("m-0002", "s2", True, 0.7),
    ]
    assert event.checkpoints[1].validation_scores_sha256 == "v2"


def test_a_missing_checkpoint_file_is_named() -> None:
    event = event_of(JOB, campaign(), TrainingEnd(exit_code=0, selection=SELECTION))
    assert (event.status, event.detail) == ("trained", "missing checkpoint files: m-0002")


def test_a_list_without_end_is_one_event_and_a_few_names() -> None:
    names = [{"checkpoint": f"m-{number:04d}"} for number in range(MOST_CHECKPOINTS + 1)]
    selection = json.dumps({"checkpoint": "m-0000"})
    few = TrainingEnd(exit_code=0, selection=selection, pareto=json.dumps({"checkpoints": names[:-1]}))
    event = event_of(JOB, campaign(), few)
    assert event.status == "trained" and len(event.checkpoints) == MOST_CHECKPOINTS
    assert event.detail.endswith(f"m-0004 and {MOST_CHECKPOINTS - 5} more")
    many = dataclasses.replace(few, pareto=json.dumps({"checkpoints": names}))
    event = event_of(JOB, campaign(), many)
    assert event.status == "train_failed"
    assert event.detail == "pareto.json lists 1001 checkpoints, more than the 1000 allowed"


@pytest.mark.parametrize(
    ("end", "status", "detail"),
    [
        (TrainingEnd(exit_code=1), "train_failed", "exit code 1"),
        (TrainingEnd(exit_code=None, detail="TIMEOUT after 60 min"), "train_failed", "TIMEOUT"),
        (TrainingEnd(exit_code=0), "train_failed", "wrote no selection.json"),
        (TrainingEnd(exit_code=0, selection="{"), "train_failed", "selection.json is not valid JSON"),
        (TrainingEnd(exit_code=0, selection=SELECTION, pareto="[]"), "train_failed", "pareto.json"),
        (TrainingEnd(exit_code=3, marker=True), "no_eligible_checkpoint", ""),
        # The exit code alone may be any program's; without the marker it is a failure.
        (TrainingEnd(exit_code=3), "train_failed", "exit code 3"),
        (TrainingEnd(exit_code=0, marker=True, selection=SELECTION), "trained", "m-0002"),
    ],
)
def test_a_training_that_ends_oddly_says_how(end: TrainingEnd, status: str, detail: str) -> None:
    event = event_of(JOB, campaign(), end)
    assert event.status == status
    assert detail in event.detail


def test_evaluations_that_became_ready_together_are_ordered_by_round_run_and_checkpoint() -> None:
    def row(round_number: int, run_id: str, checkpoint: str) -> EvalEvent:
        return EvalEvent(generation=1, round=round_number, run_id=run_id, checkpoint=checkpoint)

    rows = [row(2, "a", "m-0001"), row(1, "b", "m-0001"), row(1, "a", "m-0002"), row(1, "a", "m-0001")]
    assert ready_order(rows) == rows[::-1]


def test_an_evaluator_that_left_nothing_fails_every_checkpoint_and_charges_its_time_once() -> None:
    job = JOB.model_copy(
        update={"kind": "evaluate", "role": "test", "awaits": ("eval:test:champ-g002-r0003-a/m-0001",
                                                               "eval:test:champ-g002-r0003-a/m-0002")}
    )  # fmt: skip
    found: dict[str, Any] = {"m-0001": Scored(None)}
    events = evaluation_events(CampaignState(), job, found, reason="killed", gpu_hours=2.0)
    assert [(e.checkpoint, e.status, e.detail, e.gpu_hours) for e in events] == [
        ("m-0001", "failed", "killed", 2.0),
        ("m-0002", "failed", "killed", 0.0),
    ]
