"""What follows from a ledger, one situation at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outerloop.champion import (
    BrokenCandidates,
    CampaignConfig,
    CampaignState,
    Checkpoint,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    Job,
    Member,
    PackageEvent,
    Record,
    ReserveCheckEvent,
    Resources,
    RoundEvent,
    RunEvent,
    Scored,
    TeacherEvent,
    apply,
    evaluation_events,
    events_from_jsonl,
    events_to_jsonl,
    finished,
    fold,
    front_table,
    held_round,
    next_work,
    parse_candidates,
    plot_data,
    stamped,
    warnings,
)
from outerloop.champion.state import PACKAGE_LAUNCHES
from tests.unit.champion.world import ITEMS, World, campaign, candidate_list


class Desk:
    """A ledger written by hand, with the records that follow appended after each entry."""

    def __init__(self, config: CampaignConfig, candidates: Any = None) -> None:
        self.config = config
        self.candidates = candidates if candidates is not None else candidate_list()
        self.events: list[Event] = []
        self.state = CampaignState()

    def append(self, *events: Event) -> None:
        for event in events:
            self.events.append(stamped(event, self.state.seq + 1))
            apply(self.state, self.events[-1])
            self.settle()

    def settle(self) -> list[Event]:
        recorded = []
        while (work := next_work(self.state, self.config, self.candidates)) and isinstance(work[0], Record):
            assert len(work) == 1
            self.events.append(stamped(work[0].event, self.state.seq + 1))
            apply(self.state, self.events[-1])
            recorded.append(work[0].event)
        return recorded

    def jobs(self) -> list[Job]:
        return [work for work in next_work(self.state, self.config, self.candidates) if isinstance(work, Job)]

    def launch(self, key: str) -> Job:
        job = next(job for job in self.jobs() if job.key == key)
        self.append(DispatchEvent(action="launched", job=job))
        return job

    def open(self) -> None:
        """Generation 1 with its split, and round 1."""
        self.settle()
        self.append(GenerationEvent(status="split_ready", generation=1, split_sha256="s1"))

    def train(self, run_id: str, *names: str, **checkpoint: Any) -> None:
        names = names or ("m-0001",)
        run = self.state.runs[run_id]
        self.append(
            RunEvent(
                status="trained",
                run_id=run_id,
                generation=run.generation,
                round=run.round,
                config_sha256="c" + run_id,
                inputs_sha256="i",
                checkpoints=tuple(
                    Checkpoint(name=name, sha256=f"{run_id}{name}", selected=name == names[-1], **checkpoint)
                    for name in names
                ),
            )
        )

    def score(self, run_id: str, name: str, fail: int, passed: int, role: Any = "test", **more: Any) -> None:
        run = self.state.runs[run_id]
        row = {
            "fail_to_pass_count": fail,
            "fail_count": ITEMS,
            "pass_to_fail_count": passed,
            "pass_count": ITEMS,
        }
        self.append(
            EvalEvent(
                generation=run.generation, round=run.round, run_id=run_id, checkpoint=name, role=role,
                **{"row": row, **more},
            )
        )  # fmt: skip

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


SMALL, WIDE, STUDENT = (f"champ-g001-r0001-{name}" for name in ("small", "wide", "student"))


@pytest.fixture
def desk() -> Desk:
    desk = Desk(campaign(max_rounds=1, parallel=2))
    desk.open()
    return desk


def test_a_campaign_opens_its_first_generation_and_asks_for_its_split_alone() -> None:
    desk = Desk(campaign(base_seed=100, parallel=3))
    assert [(e.generation, e.reason, e.seed) for e in desk.settle() if isinstance(e, GenerationEvent)] == [
        (1, "initial", 101)
    ]
    (job,) = desk.jobs()
    assert (job.key, job.fields["seed"], job.fields["held_out_fraction"]) == ("split/g001", 101, 0.10)


def test_a_round_freezes_its_members_and_hands_them_out_up_to_parallel(desk: Desk) -> None:
    (opened,) = desk.of(RoundEvent)
    assert [(m.run_id, m.seed, m.student) for m in opened.members] == [(SMALL, 1, False), (WIDE, 1, False)]
    assert [job.key for job in desk.jobs()] == [f"train/{SMALL}", f"train/{WIDE}"]
    desk.launch(f"train/{SMALL}")
    again = desk.jobs()
    assert [(job.key, job.live) for job in again] == [(f"train/{SMALL}", True), (f"train/{WIDE}", False)]
    desk.launch(f"train/{WIDE}")
    assert all(job.live for job in desk.jobs())


def test_a_live_job_is_asked_for_as_it_was_handed_out_whatever_the_config_says_now(desk: Desk) -> None:
    job = desk.launch(f"train/{SMALL}")
    desk.config = campaign(max_rounds=1, parallel=2, train_seed_base=77)
    assert next(j for j in desk.jobs() if j.live).determinants() == job.determinants()
    replayed = fold(events_from_jsonl(events_to_jsonl(desk.events)))
    assert replayed == desk.state
    assert next_work(replayed, desk.config, desk.candidates) == next_work(desk.state, desk.config, desk.candidates)


def test_rounds_overlap_and_the_next_opens_only_when_the_last_training_was_handed_out() -> None:
    desk = Desk(campaign(max_rounds=2, parallel=9))
    desk.open()
    desk.launch(f"train/{SMALL}")
    assert len(desk.of(RoundEvent)) == 1
    desk.launch(f"train/{WIDE}")
    assert len(desk.of(RoundEvent)) == 2
    assert [job.key for job in desk.jobs() if not job.live] == [
        "train/champ-g001-r0002-small",
        "train/champ-g001-r0002-wide",
    ]
    assert desk.of(RoundEvent)[1].members[0].seed == 2


def test_one_evaluator_job_takes_all_checkpoints_of_a_run_and_comes_before_trainings(desk: Desk) -> None:
    desk.train(SMALL, "m-0001", "m-0002")
    first = desk.jobs()[0]
    assert first.key == f"evaluate/test/{SMALL}"
    assert [(m.checkpoint, m.checkpoint_sha256) for m in first.members] == [
        ("m-0001", SMALL + "m-0001"),
        ("m-0002", SMALL + "m-0002"),
    ]
    desk.launch(first.key)
    desk.score(SMALL, "m-0001", 5, 5)
    # Half a job's results are in the ledger: it is still live, and owes only the other one.
    assert desk.jobs()[0].live
    owed = evaluation_events(desk.state, first, {})
    assert [(e.checkpoint, e.status) for e in owed] == [("m-0002", "failed")]
    desk.append(*owed)
    assert desk.state.live == {}


def test_a_checkpoint_without_its_file_is_never_a_job_and_the_run_says_so_once(desk: Desk) -> None:
    desk.append(
        RunEvent(
            status="trained",
            run_id=SMALL,
            generation=1,
            round=1,
            checkpoints=(Checkpoint(name="m-0001"), Checkpoint(name="m-0002", sha256="x", selected=True)),
        )
    )
    assert desk.of(EvalEvent) == [] and [m.checkpoint for m in desk.jobs()[0].members] == ["m-0002"]
    # Ledgers of earlier versions have a row for it, which changes nothing.
    desk.append(
        EvalEvent(
            status="failed", run_id=SMALL, generation=1, round=1, checkpoint="m-0001", detail="its file is missing"
        )
    )
    assert desk.state.anomalies == [] and [m.checkpoint for m in desk.jobs()[0].members] == ["m-0002"]
    desk.score(SMALL, "m-0002", 1, 1)
    assert desk.state.generation is not None and not desk.state.generation.unscored


def test_champion_and_front_records_follow_the_evaluation_that_made_them(desk: Desk) -> None:
    desk.train(SMALL, "m-0001", "m-0002", "m-0003", "m-0004")
    desk.score(SMALL, "m-0001", 5, 5)
    desk.score(SMALL, "m-0002", 4, 6)
    desk.score(SMALL, "m-0003", 4, 4)
    desk.score(SMALL, "m-0004", 9, 9)
    kinds = [event.kind for event in desk.events if event.kind in ("eval", "pareto_set", "champion")]
    assert kinds == ["eval", "pareto_set", "champion", "eval", "pareto_set", "eval", "pareto_set", "champion", "eval"]
    front = desk.state.generation.front.items() if desk.state.generation else []
    assert [event.checkpoint for event in front] == ["m-0003"]
    last = desk.state.champions[-1]
    assert (last.subject, last.previous, last.counts) == (f"{SMALL}/m-0003", f"{SMALL}/m-0001", (4, 4))
    json.dumps(plot_data(desk.state))
    assert [row["champion"] for row in front_table(desk.state)] == [True]


def test_a_decided_champion_is_the_lexicographic_best_whatever_came_first() -> None:
    desk = Desk(campaign(max_rounds=1, compare="decided", min_coverage=0.3))
    desk.open()
    desk.train(SMALL, *(f"m-000{n}" for n in range(1, 6)), validation_scores_sha256="v")

    def decided(fail: int, passed: int, fails: int = ITEMS, rejected: int = 0) -> dict[str, int]:
        return {
            "fail_to_pass_count": fail,
            "fail_count": fails,
            "pass_to_fail_count": passed,
            "pass_count": ITEMS,
            "rejected_total": rejected,
        }

    desk.score(SMALL, "m-0001", 9, 9, decided=decided(3, 3, rejected=5))
    desk.score(SMALL, "m-0002", 1, 1)  # no decided counts: not comparable
    desk.score(SMALL, "m-0003", 9, 9, decided=decided(0, 0, fails=10, rejected=50))  # decides too little
    desk.score(SMALL, "m-0004", 9, 9, decided=decided(3, 3, rejected=4))
    desk.score(SMALL, "m-0005", 9, 9, decided=decided(2, 8, fails=20, rejected=40))
    assert [event.subject[-6:] for event in desk.state.champions] == ["m-0001", "m-0004", "m-0005"]
    assert desk.state.generation is not None and desk.state.generation.evaluations == 3
    assert any("decides on only 33%" in line for line in warnings(desk.state))


def test_bands_come_from_validation_scores_before_the_test_set_is_touched() -> None:
    desk = Desk(campaign(max_rounds=1, compare="decided"))
    desk.open()
    desk.train(SMALL, "m-0001")
    job = desk.jobs()[0]
    assert (job.role, job.members[0].band_scores_sha256) == ("validation", "")
    desk.launch(job.key)
    desk.score(SMALL, "m-0001", 1, 1, role="validation", scores_sha256="band")
    job = desk.jobs()[0]
    assert (job.role, job.members[0].band_scores_sha256) == ("test", "band")


def _reserve_desk(**changes: Any) -> Desk:
    desk = Desk(campaign(**{"max_rounds": 1, "saturation_evals": 2, "max_reserve_checks": 2, **changes}))
    desk.open()
    desk.train(SMALL, *(f"m-000{n}" for n in range(1, 8)))
    desk.score(SMALL, "m-0001", 5, 5)
    desk.score(SMALL, "m-0002", 6, 6)
    return desk


def test_a_worn_test_set_asks_the_reserve_about_the_champion_first_of_all() -> None:
    desk = _reserve_desk()
    (check,) = desk.of(ReserveCheckEvent)
    assert (check.status, check.subject, check.evaluations) == ("started", f"{SMALL}/m-0001", 2)
    assert desk.jobs()[0].key == f"evaluate/reserve/{SMALL}/m-0001"
    desk.score(SMALL, "m-0003", 7, 7)
    desk.score(SMALL, "m-0004", 7, 7)
    assert len(desk.of(ReserveCheckEvent)) == 1  # one check at a time


def test_a_risen_reserve_rate_ends_the_generation_and_records_what_it_was() -> None:
    desk = _reserve_desk(max_rounds=3, parallel=1)
    desk.score(SMALL, "m-0001", 30, 5, role="reserve")
    verdict = desk.of(ReserveCheckEvent)[-1]
    assert (verdict.status, verdict.ends) == ("luck", "reserve_failed")
    assert (verdict.lines[0].reserve_count, verdict.lines[0].reserve_total) == (30, ITEMS)
    assert 0 < verdict.lines[0].false_alarm < verdict.lines[0].false_alarm_selected
    opened = desk.of(GenerationEvent)[-1]
    assert (opened.generation, opened.reason) == (2, "reserve_failed")
    assert opened.previous_champion == f"{SMALL}/m-0001"
    assert opened.previous_front == (f"{SMALL}/m-0001",)
    assert desk.state.generation is not None and desk.state.generation.champion is None
    assert [job.key for job in desk.jobs()] == ["split/g002"]


@pytest.mark.parametrize("rounds", [1, 3])
def test_passed_checks_count_and_the_last_one_ends_the_generation(rounds: int) -> None:
    """Where no round is left there is no next generation, which would only take the champion away: the open runs come
    to their end, and the reserve set, worn out, is not asked again."""
    desk = _reserve_desk(max_rounds=rounds, parallel=1)
    desk.score(SMALL, "m-0001", 5, 5, role="reserve")
    assert desk.of(ReserveCheckEvent)[-1].status == "passed"
    desk.score(SMALL, "m-0003", 7, 7)
    assert desk.of(ReserveCheckEvent)[-1].status == "passed"  # only one new row since
    desk.score(SMALL, "m-0004", 7, 7)
    # The reserve score of the same champion is known, so the second check needs no job.
    assert [event.status for event in desk.of(ReserveCheckEvent)] == ["started", "passed", "started", "passed"]
    if rounds > 1:
        assert desk.of(GenerationEvent)[-1].reason == "max_reserve_checks"
        return
    assert len(desk.state.generations) == 1 and desk.state.rounds_opened == 1
    assert not finished(desk.state, desk.config, desk.candidates), "the other run is still to be trained"
    desk.score(SMALL, "m-0005", 7, 7)
    desk.score(SMALL, "m-0006", 1, 1)
    desk.score(SMALL, "m-0007", 7, 7)
    desk.train(WIDE, "m-0001")
    desk.score(WIDE, "m-0001", 9, 9)
    assert len(desk.of(ReserveCheckEvent)) == 4
    assert {job.kind for job in desk.jobs()} == {"package"}
    assert desk.state.generation is not None and desk.state.generation.champion is not None
    assert desk.state.generation.champion.subject == f"{SMALL}/m-0006"
    desk.config = campaign(max_rounds=3, saturation_evals=2, max_reserve_checks=2, parallel=1)
    assert [event.reason for event in desk.settle() if isinstance(event, GenerationEvent)] == ["max_reserve_checks"]


def test_luck_in_the_last_round_leaves_no_champion() -> None:
    desk = _reserve_desk(max_rounds=1)
    desk.score(SMALL, "m-0001", 30, 5, role="reserve")
    assert desk.of(GenerationEvent)[-1].reason == "reserve_failed"
    assert desk.state.generation is not None and desk.state.generation.champion is None
    assert finished(desk.state, desk.config, desk.candidates)


def test_a_generation_asked_for_without_a_round_left_waits_for_one() -> None:
    desk = _reserve_desk(max_rounds=1, saturation_evals=200)
    desk.append(DispatchEvent(action="advance", reason="enough"))
    assert len(desk.state.generations) == 1 and desk.state.generation is not None
    assert desk.state.generation.champion is not None
    desk.config = campaign(max_rounds=2, saturation_evals=200)
    assert [event.reason for event in desk.settle() if isinstance(event, GenerationEvent)] == ["enough"]


def test_a_round_of_which_nothing_could_be_handed_out_is_the_last_until_something_changes() -> None:
    desk = Desk(campaign(max_rounds=9, parallel=2))
    desk.open()

    def burn() -> None:
        for run_id in list(desk.state.generation.unlaunched) if desk.state.generation is not None else []:
            run = desk.state.runs[run_id]
            desk.append(
                RunEvent(
                    status="train_failed", run_id=run_id, generation=1, round=run.round, detail="the split is gone"
                )
            )

    burn()
    assert desk.state.rounds_opened == 1 and held_round(desk.state) == 1 and desk.jobs() == []
    desk.append(DispatchEvent(action="retry", target="round"))
    assert desk.state.rounds_opened == 2 and held_round(desk.state) is None
    burn()
    assert desk.state.rounds_opened == 2 and held_round(desk.state) == 2
    listed = desk.candidates
    desk.candidates = replace(listed, base_sha256=dict.fromkeys((c.base for c in listed.candidates), "mended"))
    desk.settle()
    assert desk.state.rounds_opened == 3
    # A training that ran and failed says something about the candidates: rounds go on.
    key = desk.jobs()[0].key
    desk.launch(key)
    burn()
    desk.append(
        RunEvent(status="train_failed", run_id=key.removeprefix("train/"), generation=1, round=3, detail="EXIT_1")
    )
    assert desk.state.rounds_opened == 4


def test_candidates_without_a_base_sit_out() -> None:
    listed = candidate_list()
    gone = frozenset(candidate.base for candidate in listed.candidates)
    desk = Desk(campaign(max_rounds=2), replace(listed, missing=gone))
    desk.open()
    assert desk.state.rounds_opened == 0 and desk.jobs() == []
    assert not finished(desk.state, desk.config, desk.candidates)
    desk.candidates = listed
    desk.settle()
    assert desk.state.rounds_opened == 1
    # A list that is broken now leaves the last one in force, less what of it can't be trained.
    desk.candidates = BrokenCandidates("d", "unreadable", missing=gone)
    desk.settle()
    for run_id in (SMALL, WIDE):
        desk.launch(f"train/{run_id}")
    assert desk.state.rounds_opened == 1


def test_a_check_whose_champion_was_replaced_is_stale_and_consumes_nothing() -> None:
    desk = _reserve_desk()
    desk.launch(f"evaluate/reserve/{SMALL}/m-0001")
    desk.score(SMALL, "m-0003", 1, 1)
    assert desk.of(ReserveCheckEvent)[-1].status == "started"  # its evaluation is on the way
    desk.score(SMALL, "m-0001", 50, 50, role="reserve")
    statuses = [(event.status, event.subject[-6:]) for event in desk.of(ReserveCheckEvent)]
    assert statuses == [("started", "m-0001"), ("stale", "m-0001"), ("started", "m-0003")]
    assert len(desk.of(GenerationEvent)) == 2  # opened and split_ready: luck was not said


def test_a_check_that_did_not_run_consumes_the_count_but_no_check() -> None:
    desk = _reserve_desk()
    desk.score(SMALL, "m-0001", 0, 0, role="reserve", status="failed", row={}, detail="the node burned")
    verdict = desk.of(ReserveCheckEvent)[-1]
    assert (verdict.status, verdict.detail, verdict.ends) == ("not_run", "the node burned", "")
    generation = desk.state.generation
    assert generation is not None
    assert (generation.consumed, generation.checks_passed, generation.check) == (2, 0, None)


def test_the_optimism_rule_decides_with_the_recorded_optimism_and_not_without() -> None:
    for optimism, status in ((None, "not_run"), ((0.5, 0.5), "passed"), ((0.0, 0.0), "luck")):
        desk = _reserve_desk(reserve_rule="optimism")
        desk.score(SMALL, "m-0001", 30, 5, role="reserve", optimism=optimism)
        assert desk.of(ReserveCheckEvent)[1].status == status


def test_late_results_of_an_old_generation_stay_outside_the_new_front() -> None:
    desk = _reserve_desk()
    desk.launch(f"train/{WIDE}")
    desk.score(SMALL, "m-0001", 30, 5, role="reserve")
    assert [job.key for job in desk.jobs() if job.live] == [f"train/{WIDE}"]
    desk.train(WIDE)
    assert desk.jobs() == []  # its evaluation is dropped
    desk.score(SMALL, "m-0005", 0, 0)
    assert desk.state.anomalies == []
    assert desk.state.generation is not None and desk.state.generation.front.size == 0


def test_an_operator_advances_with_a_reason_but_not_before_the_first_generation() -> None:
    desk = Desk(campaign(max_rounds=3))
    desk.events.append(stamped(DispatchEvent(action="advance", reason="early"), 1))
    apply(desk.state, desk.events[-1])
    assert "no generation to advance" in desk.state.anomalies[0]
    desk.open()
    desk.append(DispatchEvent(action="advance", reason="new data"))
    assert [event.reason for event in desk.of(GenerationEvent) if event.status == "opened"] == ["initial", "new data"]


def test_other_rules_open_a_generation_since_rows_no_longer_compare(desk: Desk) -> None:
    desk.config = campaign(max_rounds=2, compare="decided")
    assert [event.kind for event in desk.settle()] == ["generation"]
    assert desk.of(GenerationEvent)[-1].reason == "rules_changed"
    desk.config = campaign(max_rounds=2, compare="decided", alpha=0.02)
    assert desk.settle() == []


def test_a_stopped_campaign_records_results_and_launches_nothing_until_it_resumes(desk: Desk) -> None:
    desk.launch(f"train/{SMALL}")
    desk.append(DispatchEvent(action="stop"))
    assert [job.key for job in desk.jobs()] == [f"train/{SMALL}"]
    desk.train(SMALL)
    desk.score(SMALL, "m-0001", 1, 1)
    assert len(desk.state.champions) == 1
    assert desk.jobs() == []
    assert not finished(desk.state, desk.config, desk.candidates)
    desk.append(DispatchEvent(action="resume"))
    assert desk.jobs()


def test_a_cancelled_campaign_is_finished_when_its_jobs_are(desk: Desk) -> None:
    desk.launch(f"train/{SMALL}")
    desk.append(DispatchEvent(action="cancel"))
    assert desk.jobs() == []
    assert not finished(desk.state, desk.config, desk.candidates)
    desk.append(RunEvent(status="train_failed", run_id=SMALL, generation=1, round=1, detail="cancelled"))
    assert finished(desk.state, desk.config, desk.candidates)


def test_a_broken_candidates_file_keeps_the_last_list_and_says_so_once() -> None:
    desk = Desk(campaign(max_rounds=2, parallel=9))
    desk.open()
    desk.candidates = BrokenCandidates("d1", "c.toml:3: broken", base_sha256={"base.yaml": "b"})
    desk.settle()
    desk.launch(f"train/{SMALL}")
    desk.launch(f"train/{WIDE}")
    said = [event for event in desk.of(DispatchEvent) if event.action == "candidates_rejected"]
    assert [event.reason for event in said] == ["c.toml:3: broken"]
    second = desk.of(RoundEvent)[1]
    assert [member.candidate.name for member in second.members] == ["small", "wide"]
    assert second.members[0].base_sha256 == "b"
    assert second.candidates == desk.of(RoundEvent)[0].candidates


def test_nothing_opens_on_a_broken_first_list_or_without_an_active_candidate() -> None:
    desk = Desk(campaign(), BrokenCandidates("d1", "broken"))
    assert [event.kind for event in desk.settle()] == ["dispatch"]
    assert desk.state.generation is None
    desk = Desk(campaign(), parse_candidates('[[candidates]]\nname = "a"\nbase = "b"\nactive = false'))
    desk.open()
    assert desk.of(RoundEvent) == []
    assert desk.jobs() == []


def test_a_student_sits_out_until_its_file_exists_and_is_expanded() -> None:
    there = replace(candidate_list(), present={"teacher/g001.npz": "soft"})
    desk = Desk(campaign(max_rounds=1, parallel=9), there)
    desk.open()
    member = desk.of(RoundEvent)[0].members[-1]
    assert (member.run_id, member.student, member.soft_targets_sha256) == (STUDENT, True, "soft")
    assert member.candidate.overrides == {"gate_soft_targets": "teacher/g001.npz"}
    job = next(job for job in desk.jobs() if job.run_id == STUDENT)
    assert job.reads["soft_targets"] == "soft"


def _teacher_desk() -> Desk:
    desk = Desk(campaign(max_rounds=2, parallel=9, teacher_after_round=1, ensemble_from_round=9))
    desk.open()
    desk.launch(f"train/{SMALL}")
    desk.train(SMALL)
    assert desk.of(TeacherEvent) == []  # wide is still open
    desk.launch(f"train/{WIDE}")
    desk.train(WIDE)
    return desk


def test_a_teacher_averages_the_selected_checkpoints_and_its_members_compete_as_an_ensemble() -> None:
    desk = _teacher_desk()
    assert [event.status for event in desk.of(TeacherEvent)] == ["started"]
    margins = [job for job in desk.jobs() if job.role == "development"]
    assert [[m.run_id for m in job.members] for job in margins] == [[SMALL, WIDE]]  # they share their inputs
    desk.launch(margins[0].key)
    desk.append(TeacherEvent(status="margins", generation=1, attempt=1, group="i", sha256="mm"))
    job = next(job for job in desk.jobs() if job.kind == "teacher")
    assert (job.reads["margins/i"], job.fields["teacher_file"]) == ("mm", "teacher/g001.npz")
    desk.append(TeacherEvent(status="finished", generation=1, attempt=1, path="teacher/g001.npz", sha256="t"))
    run = desk.of(RunEvent)[-1]
    assert (run.run_id, run.status, [m.run_id for m in run.members]) == (
        "ens-g001-teacher",
        "ensemble",
        [SMALL, WIDE],
    )
    job = next(job for job in desk.jobs() if job.run_id == "ens-g001-teacher")
    assert job.ensemble and job.command.startswith("ensemble")
    desk.launch(job.key)
    report = {"fail_count": 60, "fail_to_pass_count": 1, "pass_count": 60, "pass_correct_count": 59}
    desk.append(*evaluation_events(desk.state, job, {"ensemble": Scored(json.dumps(report))}))
    assert desk.state.champions[-1].subject == "ens-g001-teacher/ensemble"
    package = next(job for job in desk.jobs() if job.kind == "package")
    assert package.ensemble and len(package.members) == 2


def test_a_failed_teacher_waits_for_retry() -> None:
    desk = _teacher_desk()
    job = next(job for job in desk.jobs() if job.role == "development")
    desk.launch(job.key)
    desk.append(TeacherEvent(status="failed", generation=1, attempt=1, group="i", detail="a config was edited"))
    assert job.key not in desk.state.live
    assert [event.status for event in desk.of(TeacherEvent)] == ["started", "failed"]
    desk.append(DispatchEvent(action="retry", target="teacher"))
    assert desk.of(TeacherEvent)[-1].attempt == 2
    again = next(job for job in desk.jobs() if job.role == "development")
    assert again.determinants() == job.determinants()
    desk.append(DispatchEvent(action="retry", target="teecher"))
    assert "nothing to retry: teecher" in desk.state.anomalies[-1]


def test_round_ensembles_rank_by_validation_alone_and_wait_for_the_round_to_finish() -> None:
    text = "".join(f'[[candidates]]\nname = "{name}"\nbase = "b"\n' for name in "abcde")
    desk = Desk(campaign(max_rounds=1, parallel=9, ensemble_from_round=1, ensemble_max=4), parse_candidates(text))
    desk.open()
    ranks: dict[str, dict[str, Any]] = {
        "a": {"validation_fail_to_pass": 1},
        "b": {"gate_auc": 0.8, "validation_fail_to_pass": 5},
        "c": {"gate_auc": 0.9},
        "d": {"gate_auc": 0.8, "validation_fail_to_pass": 3},
        "e": {},
    }
    for name, rank in ranks.items():
        desk.train(f"champ-g001-r0001-{name}", "m-0001", **rank)
        assert not [event for event in desk.of(RunEvent) if event.status == "ensemble"]
    for place, name in enumerate(ranks):
        # The test set says the opposite of validation, and isn't asked.
        desk.score(f"champ-g001-r0001-{name}", "m-0001", place, place)
    ensemble = desk.of(RunEvent)[-1]
    assert ensemble.run_id == "ens-g001-r0001-all"
    assert [member.run_id[-1] for member in ensemble.members] == ["c", "d", "b", "a"]


def _packaging_desk(rounds: int = 1) -> Desk:
    desk = Desk(campaign(max_rounds=rounds, parallel=9, ensemble_from_round=9))
    desk.open()
    desk.train(SMALL, *(f"m-000{n}" for n in range(1, 6)))
    desk.score(SMALL, "m-0001", 9, 9, report_sha256="r1")
    return desk


def _package(desk: Desk) -> list[str]:
    return [job.key for job in desk.jobs() if job.kind == "package" and not job.live]


def test_one_champion_is_packaged_at_a_time_and_the_newest_waits() -> None:
    desk = _packaging_desk()
    job = desk.launch(f"package/{SMALL}/m-0001")
    assert job.reads == {"report": "r1"}
    desk.append(PackageEvent(status="launched", generation=1, subject=f"{SMALL}/m-0001"))
    desk.score(SMALL, "m-0002", 8, 8)
    desk.score(SMALL, "m-0003", 7, 7)
    assert _package(desk) == []
    assert [(e.status, e.subject[-6:]) for e in desk.of(PackageEvent)] == [
        ("launched", "m-0001"),
        ("dropped", "m-0002"),
    ]
    desk.append(PackageEvent(status="finished", generation=1, subject=f"{SMALL}/m-0001", exit_code=0))
    assert _package(desk) == [f"package/{SMALL}/m-0003"]


def test_a_package_that_could_not_start_is_asked_for_again_a_few_times_and_after_retry() -> None:
    desk = _packaging_desk()
    for _ in range(PACKAGE_LAUNCHES):
        desk.launch(_package(desk)[0])
        desk.append(PackageEvent(status="launch_failed", generation=1, subject=f"{SMALL}/m-0001"))
    assert _package(desk) == []
    desk.append(DispatchEvent(action="retry", target="package"))
    assert _package(desk) == [f"package/{SMALL}/m-0001"]


def test_an_unlaunched_package_is_dropped_with_its_generation() -> None:
    desk = _packaging_desk(rounds=2)
    desk.append(DispatchEvent(action="advance", reason="enough"))
    assert [(e.status, e.subject) for e in desk.of(PackageEvent)] == [("dropped", f"{SMALL}/m-0001")]


def test_the_gpu_budget_counts_what_is_used_and_what_is_reserved() -> None:
    config = campaign(gpu_hours=2.5, parallel=9)
    train = config.commands.train.model_copy(update={"gpus": 1, "minutes": 60.0})
    config = config.model_copy(update={"commands": config.commands.model_copy(update={"train": train})})
    desk = Desk(config)
    desk.open()
    assert len(desk.jobs()) == 2
    desk.launch(f"train/{SMALL}")
    desk.launch(f"train/{WIDE}")
    assert len(desk.of(RoundEvent)) == 1  # half an hour is left, less than a training may use
    for run_id in (SMALL, WIDE):
        desk.append(RunEvent(status="train_failed", run_id=run_id, generation=1, round=1, gpu_hours=0.25))
    assert desk.state.gpu_hours_used == 0.5
    assert len(desk.of(RoundEvent)) == 2
    assert [job.run_id for job in desk.jobs()] == ["champ-g001-r0002-small", "champ-g001-r0002-wide"]


def test_a_failed_split_waits_for_retry() -> None:
    desk = Desk(campaign())
    desk.settle()
    job = desk.launch("split/g001")
    desk.append(GenerationEvent(status="split_failed", generation=1, detail="disk full"))
    assert desk.jobs() == []
    desk.append(DispatchEvent(action="retry", target="split"))
    assert desk.jobs() == [job]


def test_a_report_with_other_denominators_is_a_failed_row_and_never_a_champion(desk: Desk) -> None:
    desk.train(SMALL, "m-0001", "m-0002")
    job = desk.launch(f"evaluate/test/{SMALL}")
    good = {"fail_count": 60, "fail_to_pass_count": 9, "pass_count": 60, "pass_correct_count": 59}
    results = {
        name: Scored(json.dumps({**good, **changes, "checkpoint_sha256": SMALL + name}))
        for name, changes in (("m-0001", {}), ("m-0002", {"fail_count": 6, "fail_to_pass_count": 0}))
    }
    desk.append(*evaluation_events(desk.state, job, results))
    assert [(row.status, "denominators" in row.detail) for row in desk.of(EvalEvent)] == [
        ("scored", False),
        ("failed", True),
    ]
    assert desk.state.champions[-1].subject == f"{SMALL}/m-0001"
    # The same row smuggled past the report's check: the fold refuses it as well.
    desk.train(WIDE)
    desk.score(WIDE, "m-0001", 0, 0, row={**desk.of(EvalEvent)[0].row, "fail_count": 6, "fail_to_pass_count": 0})
    assert "denominators" in desk.state.anomalies[-1]
    assert desk.state.champions[-1].subject == f"{SMALL}/m-0001"


def test_a_finished_campaign_says_so_and_wants_nothing() -> None:
    world = World(campaign(max_rounds=2))
    assert not finished(fold([]), world.config, world.candidates)
    state = world.run()
    assert finished(state, world.config, world.candidates)
    assert next_work(state, world.config, world.candidates) == []


def test_a_failed_reserve_evaluation_is_repeated_by_the_next_check() -> None:
    desk = _reserve_desk()
    desk.score(SMALL, "m-0001", 0, 0, role="reserve", status="failed", row={})
    desk.score(SMALL, "m-0003", 7, 7)
    desk.score(SMALL, "m-0004", 7, 7)
    assert desk.of(ReserveCheckEvent)[-1].status == "started"
    assert desk.jobs()[0].key == f"evaluate/reserve/{SMALL}/m-0001"
    desk.score(SMALL, "m-0001", 5, 5, role="reserve")
    assert [event.status for event in desk.of(ReserveCheckEvent)] == ["started", "not_run", "started", "passed"]
    desk.score(SMALL, "m-0001", 5, 5, role="reserve")
    assert "has a reserve result already" in desk.state.anomalies[-1]


def test_a_generation_that_no_round_is_left_for_builds_no_split_until_more_are_allowed() -> None:
    desk = _reserve_desk()
    desk.score(SMALL, "m-0001", 30, 5, role="reserve")
    assert desk.state.generation is not None and desk.state.generation.number == 2
    assert finished(desk.state, desk.config, desk.candidates)
    desk.config = campaign(max_rounds=2, saturation_evals=2, max_reserve_checks=2)
    assert [job.key for job in desk.jobs()] == ["split/g002"]
    assert not finished(desk.state, desk.config, desk.candidates)


def test_an_equal_row_joins_the_front_but_does_not_dethrone_the_earlier_champion() -> None:
    counts = {"fail_to_pass_count": 2, "fail_count": 50, "pass_to_fail_count": 3, "pass_count": 50}
    for changes in ({"compare": "result"}, {"compare": "decided"}):
        desk = Desk(campaign(max_rounds=1, **changes))
        desk.open()
        desk.train(SMALL, "m-0001", "m-0002", validation_scores_sha256="v")
        for name in ("m-0001", "m-0002"):
            desk.score(SMALL, name, 4, 4, decided={**counts, "rejected_total": 20})
        assert [event.subject[-6:] for event in desk.state.champions] == ["m-0001"]
        assert [row["checkpoint"] for row in front_table(desk.state)] == ["m-0001", "m-0002"]


def test_a_round_is_not_finished_before_the_next_is_open() -> None:
    desk = Desk(campaign(max_rounds=2, parallel=9, ensemble_from_round=1))
    desk.open()
    desk.launch(f"train/{SMALL}")
    desk.candidates = parse_candidates("candidates = []")
    desk.launch(f"train/{WIDE}")
    for run_id in (SMALL, WIDE):
        desk.train(run_id)
        desk.score(run_id, "m-0001", 5, 5)
    assert [event.status for event in desk.of(RunEvent)] == ["trained", "trained"]
    desk.candidates = candidate_list()
    assert [event.kind for event in desk.settle()] == ["round", "run"]
    assert desk.of(RunEvent)[-1].run_id == "ens-g001-r0001-all"


def test_evaluations_are_handed_out_by_round_and_run_id_whoever_trained_first(desk: Desk) -> None:
    desk.train(WIDE)
    desk.train(SMALL)
    assert [job.run_id for job in desk.jobs()] == [SMALL, WIDE]


def test_plot_data_marks_steps_checks_generations_and_curves_and_is_json() -> None:
    desk = _reserve_desk(max_rounds=3)
    desk.score(SMALL, "m-0003", 1, 1, gate_curve=((0.0, 1.0), (1.0, 0.0)), gate_auc=0.9)
    desk.score(SMALL, "m-0004", 0, 0, status="failed", row={})
    shown = json.loads(json.dumps(plot_data(desk.state)))
    assert shown["objectives"] == ["fail_to_pass", "pass_to_fail"]
    assert [point["on_front"] for point in shown["evaluations"]] == [False, False, True]
    assert shown["evaluations"][2]["counts"] == {"fail_to_pass": 1, "pass_to_fail": 1}
    assert shown["evaluations"][2]["totals"] == {"fail_to_pass": ITEMS, "pass_to_fail": ITEMS}
    assert shown["failed"] == 1
    assert [step["subject"] for step in shown["champions"]] == [f"{SMALL}/m-0001", f"{SMALL}/m-0003"]
    assert [mark["reason"] for mark in shown["generations"]] == ["initial"]
    assert [mark["status"] for mark in shown["reserve_checks"]] == ["started", "stale", "started"]
    assert shown["gate_curves"] == [{"subject": f"{SMALL}/m-0003", "points": [[0.0, 1.0], [1.0, 0.0]]}]
    assert [row["subject"] for row in shown["front"]] == [f"{SMALL}/m-0003"]
    assert plot_data(CampaignState())["evaluations"] == []


def test_a_package_of_an_old_generation_that_could_not_start_is_dropped() -> None:
    desk = _packaging_desk(rounds=2)
    desk.launch(_package(desk)[0])
    desk.append(DispatchEvent(action="advance", reason="enough"))
    assert desk.of(PackageEvent) == []
    desk.append(PackageEvent(status="launch_failed", generation=1, subject=f"{SMALL}/m-0001"))
    assert [event.status for event in desk.of(PackageEvent)] == ["launch_failed", "dropped"]
    assert desk.state.packaging.waiting is None


def test_determinants_change_with_what_is_read_and_not_with_bookkeeping(desk: Desk) -> None:
    desk.train(SMALL)
    for job in (desk.jobs()[0], desk.launch(f"train/{WIDE}")):
        base = job.determinants()
        same = {"key": "k", "round": 9, "awaits": ("x",), "live": True, "resources": Resources(minutes=1)}
        assert job.model_copy(update=same).determinants() == base
        others: list[dict[str, Any]] = [
            {"command": "another"},
            {"reads": {**job.reads, "split": "another"}},
            {"fields": {**job.fields, "generation": 99}},
            {"role": "reserve" if job.role != "reserve" else "test"},
            {"ensemble": not job.ensemble},
            {"members": (Member(run_id="r", checkpoint="c", checkpoint_sha256="another"),)},
        ]
        for other in others:
            assert job.model_copy(update=other).determinants() != base


def test_denominators_told_by_the_split_bind_the_first_row_already() -> None:
    desk = Desk(campaign(max_rounds=1))
    desk.settle()
    desk.append(GenerationEvent(status="split_ready", generation=1, split_sha256="s", totals=(ITEMS,)))
    assert "1 denominators for 2 objectives" in desk.state.anomalies[-1]
    desk.append(GenerationEvent(status="split_ready", generation=1, split_sha256="s", totals=(ITEMS, ITEMS)))
    desk.train(SMALL)
    job = desk.launch(f"evaluate/test/{SMALL}")
    report = {"fail_count": 6, "fail_to_pass_count": 0, "pass_count": 60, "pass_correct_count": 60}
    scored = Scored(json.dumps({**report, "checkpoint_sha256": SMALL + "m-0001"}))
    (event,) = evaluation_events(desk.state, job, {"m-0001": scored})
    assert (event.status, "denominators" in event.detail) == ("failed", True)


def test_a_lost_split_is_built_again_before_anything_that_reads_it(desk: Desk) -> None:
    desk.train(SMALL, "m-0001")
    known = desk.state.generation
    assert known is not None
    digest = known.split_sha256
    desk.append(GenerationEvent(status="split_lost", generation=1))
    live = [job.key for job in desk.jobs() if job.live]
    assert [job.key for job in desk.jobs() if not job.live] == ["split/g001"] and not desk.of(RoundEvent)[1:]
    # Another split than the one that the rows rest on is never taken for it.
    desk.append(GenerationEvent(status="split_ready", generation=1, split_sha256="other"))
    assert "built again as other" in desk.state.anomalies[-1] and known.split_lost
    desk.append(GenerationEvent(status="split_failed", generation=1, detail="another one"))
    assert [job.key for job in desk.jobs()] == live and not finished(desk.state, desk.config, desk.candidates)
    desk.append(DispatchEvent(action="retry", target="split"))
    assert "split/g001" in [job.key for job in desk.jobs()]
    desk.append(GenerationEvent(status="split_ready", generation=1, split_sha256=digest))
    assert next(job.key for job in desk.jobs()) == f"evaluate/test/{SMALL}"
