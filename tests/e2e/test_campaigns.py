"""Campaigns through the command line, the real controller, record, slots and job wrapper, on a cluster of files.

Attacked here: the whole loop (teacher, students, ensembles, reserve, packages), what commands may get wrong, what
people may do to its files meanwhile, operators' words, a record made anew. Not covered: kills (test_campaign_kills.py).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from outerloop.champion import EvalEvent, PackageEvent, ReserveCheckEvent, RunEvent, TeacherEvent
from outerloop.cli import app
from outerloop.controller.rebuild import rebuild
from outerloop.record.models import Attempt, CampaignEvent, Measure
from tests.controller_rig.campaigns import CampaignWorld


@pytest.fixture
def world(tmp_path: Path, database: str) -> CampaignWorld:
    return CampaignWorld(tmp_path / "w", database)


def ended(world: CampaignWorld, run_id: str) -> None:
    world.ticks_until_rest(60)
    run = world.run(run_id)
    assert (run.state, run.verdict) == ("ended", "finished"), world.describe()
    assert "The ledger holds" in world.cli("campaign", "events", run_id, "--replay")
    world.check_invariants()


def runs(world: CampaignWorld, run_id: str) -> dict[str, RunEvent]:
    return {e.run_id: e for e in world.ledger(run_id) if isinstance(e, RunEvent)}


def recorded(world: CampaignWorld) -> list[str]:
    """The lines of the record, in order."""
    return [row.line for row in sorted(world.rows(CampaignEvent), key=lambda row: row.seq)]


WHOLE = ("split", "train", "evaluate", "ensemble", "teacher", "package")


def test_that_a_package_is_being_made_is_told_when_its_job_is_handed_over(world: CampaignWorld) -> None:
    """Not when it has ended: a package may take hours."""
    world.campaign(("split", "train", "evaluate", "package"), max_rounds=1)
    world.candidates(good=[[5, 5]])
    run_id = world.submit_campaign()
    for _ in range(30):
        packages = {measure.slot_id for measure in world.rows(Measure) if measure.role.startswith("package")}
        if any(a.slot_id in packages and a.state == "submitted" for a in world.rows(Attempt)):
            break
        world.run_measures()
        world.tick()
    told = [event.status for event in world.ledger(run_id) if isinstance(event, PackageEvent)]
    assert told == ["launched"] and world.did("package") == 0, world.describe()


def test_the_whole_loop(world: CampaignWorld) -> None:
    """Teacher after round 1, a student that waits for it, ensembles, a reserve check that says luck, and once more."""
    world.campaign(
        WHOLE,
        max_rounds=3,
        parallel=1,
        teacher_after_round=1,
        teacher_file="teachers/g{generation}.txt",
        ensemble_from_round=2,
        saturation_evals=9,
    )
    world.candidates(
        student={"errors": [[9, 12]], "reserve": [60, 60], "gate_soft_targets": "teachers/g{generation}.txt"},
        good={"errors": [[20, 20], [10, 12]], "reserve": [60, 60]},
        plain=[[30, 25]],
    )
    run_id = world.submit_campaign()
    ended(world, run_id)
    events = world.ledger(run_id)
    found = runs(world, run_id)
    assert found["champ-g001-r0001-good"].status == found["champ-g001-r0001-plain"].status == "trained"
    assert "champ-g001-r0002-student" not in found and found["champ-g001-r0003-student"].status == "trained"
    assert {"ens-g001-teacher", "ens-g001-r0002-all"} <= set(found), sorted(found)
    [teacher] = [e for e in events if isinstance(e, TeacherEvent) and e.status == "finished" and e.generation == 1]
    file = world.state.campaign(run_id) / teacher.path
    assert file.read_text() == "soft from 2" and world.did("train", "champ-g001-r0003-student", "soft") == 1
    checks = [e for e in events if isinstance(e, ReserveCheckEvent)]
    assert [e.status for e in checks][:2] == ["started", "luck"] and checks[1].ends == "reserve_failed"
    assert [e.reason for e in events if e.kind == "generation" and e.status == "opened"][:2] == [
        "initial",
        "reserve_failed",
    ]
    # Nothing was trained twice, and what was handed out was really done once.
    trained = [line for line in world.marks.read_text().splitlines() if line.startswith("train ")]
    assert len(trained) == len(set(trained)) == sum(e.status == "trained" for e in found.values())
    packages = [e for e in events if isinstance(e, PackageEvent)]
    assert {e.status for e in packages} <= {"launched", "finished", "dropped"} and world.did("package") >= 1
    first = next(e.subject for e in packages if e.status == "finished")
    assert (world.state.campaign(run_id) / "packages" / first.replace("/", "-") / "packaged.txt").read_text() == "ok"

    # What was exported is what is there, and the record can be made anew from disk, rows and all.
    assert world.exported(run_id) == events
    before, lines = world.snapshot(), recorded(world)
    measures = sorted((m.round, m.role) for m in world.rows(Measure))
    deployment = world.open()
    try:
        assert rebuild(deployment.context).problems == []
    finally:
        deployment.close()
    assert world.snapshot() == before and recorded(world) == lines
    assert sorted((m.round, m.role) for m in world.rows(Measure)) == measures
    world.check_invariants()

    # A changed report, and a changed line of the ledger, are found.
    status = world.status(run_id)
    subject = next(e for e in events if isinstance(e, EvalEvent) and e.status == "scored")
    slot = next(p for p in world.state.slots.glob("*/*/state/0000.json") if subject.checkpoint_sha256 in p.read_text())
    text = slot.read_text()
    slot.write_text(text.replace('"fail_to_pass_count": ', '"fail_to_pass_count": 1'))
    assert "DISAGREE" in world.cli("verify", run_id, code=1)
    slot.write_text(text)
    path = world.state.campaign_event(run_id, subject.seq)
    line = path.read_text()
    path.write_text(line.replace('"fail_to_pass_count":', '"fail_to_pass_count":1'))
    assert "DOES NOT hold" in world.cli("campaign", "events", run_id, "--replay", code=1)
    path.write_text(line)
    assert world.status(run_id) == status


@pytest.mark.parametrize(
    ("rule", "margins", "status"),
    [("z", 1, "luck"), ("optimism", 1, "passed"), ("optimism", 2, "not_run")],
)
def test_a_check_allows_for_the_selection_only_where_the_margins_carry_it(
    world: CampaignWorld, rule: str, margins: int, status: str
) -> None:
    """The best of eight even checkpoints looks better than it is: the rule `optimism` knows by how much, from the
    items that each of them got wrong. Margins that don't give the reported counts (2: the first row is
    gone) are no basis, and the check is recorded as not run instead of decided by another rule."""
    world.campaign(max_rounds=1, alpha=0.1, reserve_rule=rule, saturation_evals=8)
    world.candidates(even={"errors": [[20, 40]] * 8, "reserve": [30, 40], "margins": margins})
    run_id = world.submit_campaign()
    ended(world, run_id)
    checks = [e for e in world.ledger(run_id) if isinstance(e, ReserveCheckEvent) and e.generation == 1]
    assert [e.status for e in checks] == ["started", status]
    lines = checks[1].lines
    if rule == "optimism" and status == "passed":
        assert 0.02 < lines[0].optimism < 0.12, "about 1.4 standard errors (0.04) for the best of eight"
    said = world.cli("campaign", "events", run_id)
    assert status.replace("_", " ") in said


def test_what_commands_get_wrong_is_told_and_crowns_nobody(world: CampaignWorld) -> None:
    world.campaign(parallel=8, max_rounds=1)
    # The split tells the test set's denominators, so that no doubtful row can fix them.
    world.toml.write_text(world.toml.read_text().replace("{output} {seed}", "{output} {seed} 100 200"))
    wrong = {
        "zero": {"fail_count": 0},
        "above": {"fail_to_pass_count": 101},
        "foreign": {"checkpoint_sha256": "0" * 64},
        "torn": {"text": '{"fail_count": 100, "fail_to_'},
        "fewer": {"fail_count": 99},
        "contrary": {"pass_to_fail_count": 1, "pass_correct_count": 200},
        "percent": {"macro_f1": 99.5},
        "latin": {"bytes": "latin"},
        "linked": {"bytes": "link"},
        "piped": {"bytes": "pipe"},
    }
    world.candidates(
        honest=[[40, 40]],
        **{name: {"errors": [[0, 0]], "report": report} for name, report in wrong.items()},
        odd={"errors": [[0, 0]], "exit": 7},
        none={"errors": [[0, 0]], "exit": 3, "files": {"no-eligible-checkpoint": ""}},
        unmarked={"errors": [[0, 0]], "exit": 3},
        missing={"errors": [[41, 41]], "listed": ["model-0009"]},
        pipe={"errors": [[42, 42]], "listed": ["model-0009"], "pipe": "model-0009"},
        escaping={"errors": [[0, 0]], "listed": ["../x-0001"]},
        twice={"errors": [[42, 42]], "files": {"selection.json": '{"checkpoint": 5}'}},
    )
    run_id = world.submit_campaign()
    ended(world, run_id)
    found = runs(world, run_id)
    told = {name.removeprefix("champ-g001-r0001-"): (e.status, e.detail) for name, e in found.items()}
    assert told["odd"] == ("train_failed", "EXIT_7: the command exited with 7")
    assert found["champ-g001-r0001-odd"].exit_code == 7
    assert told["none"][0] == "no_eligible_checkpoint" and told["unmarked"][0] == "train_failed"
    assert told["missing"] == ("trained", "missing checkpoint files: model-0009")
    assert told["pipe"] == ("trained", "missing checkpoint files: model-0009")
    assert told["escaping"][0] == "train_failed" and "not a path inside" in told["escaping"][1]
    assert told["twice"][0] == "train_failed" and "selection.json" in told["twice"][1]
    scores = {s.removeprefix("champ-g001-r0001-"): e for s, e in world.evaluations(run_id).items()}
    assert "fail_count is 0" in scores["zero/model-0001"].detail
    assert "above its denominator" in scores["above/model-0001"].detail
    assert "checkpoint_sha256" in scores["foreign/model-0001"].detail
    assert "not valid JSON" in scores["torn/model-0001"].detail
    assert "on this set they were" in scores["fewer/model-0001"].detail
    assert "do not add up to pass_count = 200" in scores["contrary/model-0001"].detail
    assert "macro_f1 must be a finite number from 0 to 1" in scores["percent/model-0001"].detail
    assert "is not UTF-8: byte" in scores["latin/model-0001"].detail
    assert "a link that leads elsewhere" in scores["linked/model-0001"].detail
    assert scores["piped/model-0001"].status == "failed"
    assert "missing/model-0009" not in scores and scores["missing/model-0001"].status == "scored"
    status = world.status(run_id)
    assert status["champion"]["subject"] == "champ-g001-r0001-honest/model-0001" and status["front"] == 1
    assert world.status(run_id)["runs"]["train_failed"] == 4
    shown = world.cli("campaign", "events", run_id, "--all")
    assert "EXIT_7" in shown and all(len(line) <= 100 for line in shown.splitlines())


def test_other_objectives_than_the_campaigns_are_refused(world: CampaignWorld) -> None:
    world.campaign(objectives=[{"name": "latency", "count": "slow_count", "total": "request_count"}])
    # TOML has no inline arrays of tables in this spelling of ours, so the key is written by hand.
    text = world.toml.read_text().splitlines()
    text = [line for line in text if not line.startswith("objectives")]
    told = 'objectives = [{ name = "latency", count = "slow_count", total = "request_count" }]'
    world.toml.write_text("\n".join([told, *text]) + "\n")
    world.candidates(one=[[1, 1]])
    run_id = world.submit_campaign()
    ended(world, run_id)
    [event] = world.evaluations(run_id).values()
    assert event.status == "failed" and "slow_count is missing" in event.detail
    assert world.status(run_id)["champion"] is None


def test_files_that_change_or_vanish_under_a_campaign(world: CampaignWorld) -> None:
    """Candidates broken after the first round, a base config that vanishes (its candidate sits out until it is back),
    a folder that is in the way, a config that somebody edits between training and evaluation."""
    world.campaign(max_rounds=3, parallel=2)
    world.candidates(a=[[30, 30]], b=[[20, 20]])
    other = world.repo / "other.yaml"
    other.write_text("errors: [[45, 45]]\n")
    with world.list.open("a") as file:
        file.write('[[candidates]]\nname = "gone"\nbase = "other.yaml"\n')
    run_id = world.submit_campaign()
    folder = world.state.campaign(run_id)
    world.run_measures()  # the split
    (folder / "runs").mkdir()
    (folder / "runs" / "champ-g001-r0001-b").mkdir()
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "champ-g001-r0001-a.yaml").write_text("somebody's")
    world.tick()
    other.unlink()
    assert (folder / "configs" / "champ-g001-r0001-a.yaml.aside-1").read_text() == "somebody's"
    world.list.write_text(world.list.read_text().replace("candidates", "candidate", 1))
    ended(world, run_id)
    found = runs(world, run_id)
    assert found["champ-g001-r0001-b"].status == "stale_run_dir"
    assert list((folder / "runs" / "champ-g001-r0001-b").iterdir()) == []
    assert found["champ-g001-r0001-gone"].status == "trained"
    rejected = [e for e in world.ledger(run_id) if e.kind == "dispatch" and e.action == "candidates_rejected"]
    assert len(rejected) == 1 and "candidates.toml" in rejected[0].reason
    # The last valid list stays in force.
    assert found["champ-g001-r0002-b"].status == "trained"
    # The round that had opened tells it, the next one opens without it.
    assert "other.yaml" in found["champ-g001-r0002-gone"].detail
    assert found["champ-g001-r0003-b"].status == "trained" and "champ-g001-r0003-gone" not in found
    assert world.status(run_id)["champion"]["subject"] == "champ-g001-r0002-b/model-0001"


def test_a_typo_in_a_base_burns_no_round(world: CampaignWorld) -> None:
    """A list whose candidates cannot be trained is no list: the one before stays, and says so, until it is mended."""
    world.campaign(max_rounds=4)
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    good = world.list.read_text()
    world.list.write_text(good.replace("base.yaml", "bsae.yaml"))
    (world.repo / "base.yaml").rename(world.repo / "away.yaml")
    for _ in range(3):
        world.run_measures()
        world.tick()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("waiting", "IDLE"), world.describe()
    assert "bsae.yaml: No such file" in run.state_detail
    assert "bsae.yaml: No such file" in " ".join(world.cli("campaign", "status", run_id).split())
    assert "is not used as it is" in world.status(run_id)["warnings"][0]
    assert world.rounds(run_id) == []
    (world.repo / "away.yaml").rename(world.repo / "base.yaml")
    world.list.write_text(good)
    ended(world, run_id)
    assert [e.status for e in runs(world, run_id).values()] == ["trained"] * 4


def test_two_campaigns_that_ask_the_same_share_their_trainings_and_both_score_them(world: CampaignWorld) -> None:
    """Their configs differ in where each sees the split; the shared training has one of them."""
    world.candidates(a=[[30, 30]], b=[[20, 20]])
    names = []
    for name in ("one", "two"):
        world.campaign(name=name, max_rounds=2, parallel=2)
        names.append(world.submit_campaign())
    world.ticks_until_rest(60)
    assert {world.run(name).verdict for name in names} == {"finished"}, world.describe()
    for name in names:
        scores = world.evaluations(name)
        assert {e.status for e in scores.values()} == {"scored"} and len(scores) == 4, world.cli(
            "campaign", "events", name
        )
        assert world.status(name)["champion"]["subject"] == "champ-g001-r0001-b/model-0001"
        assert "agree" in world.cli("verify", name)
    assert world.did("train") == 4
    world.check_invariants()


def test_a_config_that_was_edited_after_its_training_is_an_error(world: CampaignWorld) -> None:
    world.campaign()
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    world.run_measures()
    world.tick()
    world.run_measures()
    config = world.state.campaign(run_id) / "configs" / "champ-g001-r0001-a.yaml"
    config.write_text(config.read_text() + "\n")
    ended(world, run_id)
    [event] = world.evaluations(run_id).values()
    assert event.status == "failed" and "is not the config that champ-g001-r0001-a was trained with" in event.detail
    assert world.did("evaluate") == 0


def test_a_broken_start_is_refused_and_every_mistake_has_its_line(world: CampaignWorld) -> None:
    world.campaign(paralel=2)
    world.candidates(a=[[1, 1]])
    told = world.submit_campaign(code=2)
    assert "campaign.toml:5: paralel: unknown key; did you mean parallel?" in told
    world.campaign()
    world.list.write_text("[[candidates]]\nname = 'a'\n")
    assert "candidates.toml:1: candidates[1].base: required key is missing" in world.submit_campaign(code=2)
    world.list.unlink()
    assert "candidates.toml: No such file" in world.submit_campaign(code=2)
    world.candidates(a=[[1, 1]])
    world.list.write_text(world.list.read_text().replace("base.yaml", "bsae.yaml"))
    assert "candidate a: " in (told := world.submit_campaign(code=2)) and "did you mean base.yaml?" in told
    (world.repo / "bsae.yaml").write_text("- no mapping\n")
    assert "a base config is a mapping, this is a list" in world.submit_campaign(code=2)
    for name in (world.list, world.toml):
        text = name.read_text()
        name.unlink()
        os.mkfifo(name)
        assert "it is not a regular file" in world.submit_campaign(code=3 if name == world.toml else 2)
        name.unlink()
        name.write_text(text)
    assert world.runs() == []


def test_operators_words(world: CampaignWorld) -> None:
    world.campaign(max_rounds=9, parallel=1)
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    assert "no generation" not in world.cli("campaign", "status", "loop")
    world.cli("campaign", "stop", "loop", "--reason", "lunch")
    world.run_measures()
    world.tick()
    run = world.run(run_id)
    # What ran was taken in, nothing was handed out, and no tick comes back to it before tomorrow.
    assert (run.state, run.state_reason) == ("waiting", "STOPPED") and world.status(run_id)["live"] == []
    assert run.due_at is not None and (run.due_at - run.updated_at).total_seconds() > 3600
    assert "has no effect" not in world.cli("campaign", "stop", "loop", code=3)
    world.cli("campaign", "resume", "loop")
    world.run_measures()
    world.tick()
    world.cli("campaign", "advance", "loop", "--reason", "tired of it")
    world.run_measures()
    world.tick()
    opened = [e for e in world.ledger(run_id) if e.kind == "generation" and e.status == "opened"]
    assert [(e.generation, e.reason) for e in opened] == [(1, "initial"), (2, "tired of it")]
    world.toml.write_text(world.toml.read_text().replace("max_rounds = 9", f"max_rounds = {len(world.rounds(run_id))}"))
    world.submit_campaign()
    assert "no round is left for a new generation" in world.cli("campaign", "advance", "loop", code=3)
    assert "nothing failed" in world.cli("campaign", "retry", "loop", code=3)
    world.tick()
    world.cli("campaign", "cancel", "loop")
    world.ticks_until_rest()
    run = world.run(run_id)
    assert (run.state, run.verdict) == ("ended", "cancelled")
    assert not any(body["state"] in {"pending", "running"} for body in world.measuring_jobs().values())
    assert world.status(run_id)["live"] == []
    assert "has ended" in world.cli("campaign", "stop", "loop", code=3)
    assert "another name" in world.submit_campaign(code=3)
    world.check_invariants()


def test_a_split_that_fails_blocks_and_is_built_anew_on_request(world: CampaignWorld) -> None:
    flag = world.folder / "flag"
    world.campaign()
    world.toml.write_text(
        world.toml.read_text().replace("split {output} {seed}", f"split {{output}} {{seed}} && cat {flag}")
    )
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    world.ticks_until_rest()
    run = world.run(run_id)
    assert (run.state, run.state_reason) == ("blocked", "SPLIT") and "EXIT_1" in run.state_detail
    flag.write_text("there")
    world.cli("campaign", "retry", "loop", "split")
    ended(world, run_id)
    assert world.did("split") == 2 and world.status(run_id)["champion"] is not None


def test_lost_jobs_are_redone_alone_and_finished_reports_are_kept(world: CampaignWorld) -> None:
    """An evaluator that dies after its first report: the next attempt is asked for the rest alone."""
    flag = world.folder / "flag"
    world.campaign()
    script = f"if [ ! -e {flag} ]; then touch {flag}; kill -9 $PPID; fi"
    world.toml.write_text(
        world.toml.read_text().replace(
            "evaluate {jobs} {role}", "evaluate {jobs} {role} && " + script.replace("{", "{{")
        )
    )
    world.candidates(a=[[30, 30], [20, 20]])
    run_id = world.submit_campaign()
    for _ in range(3):
        world.run_measures()
        world.tick()
    slot = next(world.state.slots.glob("*/*/state/0000.json")).parent
    # As if it had been killed between the scores and the report of the second checkpoint.
    (slot / "0001.json").write_text('{"fail_count": 1')
    ended(world, run_id)
    assert world.did("evaluate", "test", "champ-g001-r0001-a", "0001") == 1
    assert world.did("evaluate", "test", "champ-g001-r0001-a", "0002") == 2
    assert (slot / "0001.json.aside-1").exists() and (slot / "0001.scores.jsonl.aside-1").exists()
    attempts = [(a.n, a.outcome) for a in sorted(world.rows(Attempt), key=lambda a: a.id) if "evaluate" in a.job_name]
    assert len(attempts) == 2 and attempts[-1] == (2, "done")


def test_submitting_again_changes_what_is_handed_out_from_then_on(world: CampaignWorld) -> None:
    world.campaign(max_rounds=1)
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    assert world.submit_campaign() == run_id
    world.run_measures()
    world.tick()
    world.campaign(max_rounds=2, compare="decided")
    assert world.submit_campaign() == run_id and len(world.runs()) == 1
    ended(world, run_id)
    reasons = [e.reason for e in world.ledger(run_id) if e.kind == "generation" and e.status == "opened"]
    assert reasons == ["initial", "rules_changed"] and world.status(run_id)["rounds_opened"] == 2


def test_parallel_is_kept_by_several_controllers(world: CampaignWorld) -> None:
    """Processes that advance the same campaign at the same time hand out no more than `parallel` jobs together."""
    world.campaign(parallel=2, max_rounds=1)
    world.candidates(**{f"c{n}": [[30 + n, 30]] for n in range(5)})
    run_id = world.submit_campaign()
    most = 0
    for _ in range(40):
        pids = [world.start(lambda: world.tick()), world.start(lambda: world.wake(run_id, None))]
        import os

        for pid in pids:
            os.waitpid(pid, 0)
        live = sum(body["state"] in {"pending", "running"} for body in world.measuring_jobs().values())
        most = max(most, live)
        assert live <= 2
        if world.run(run_id).state == "ended":
            break
        world.run_measures()
    assert world.run(run_id).verdict == "finished" and most == 2
    assert world.did("train") == 5
    world.check_invariants()


def test_an_idle_campaign_costs_a_tick_nothing(world: CampaignWorld, count_statements: Callable[[], list[str]]) -> None:
    world.campaign(max_rounds=1)
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    world.cli("campaign", "stop", "loop")
    world.run_measures()
    world.tick()
    world.tick()
    before = count_statements()
    world.tick()
    idle = count_statements()
    assert not any("campaign_events" in statement for statement in idle[len(before) :])
    nothing = len(idle) - len(before)
    world.cli("campaign", "cancel", "loop")
    world.ticks_until_rest()
    assert world.run(run_id).state == "ended"
    world.tick()
    start = len(count_statements())
    world.tick()
    # One question is asked only while anything at all waits: whether its wake is still wanted.
    assert len(count_statements()) - start == nothing - 1


def test_an_edit_is_all_that_an_idle_campaign_needs_also_after_a_kill(world: CampaignWorld) -> None:
    world.campaign(max_rounds=1)
    world.candidates(a=[[30, 30]])
    world.list.write_text(world.list.read_text() + "active = false\n")
    run_id = world.submit_campaign()
    for _ in range(3):
        world.run_measures()
        world.tick()
    assert (world.run(run_id).state, world.run(run_id).state_reason) == ("waiting", "IDLE"), world.describe()
    note = world.state.idle(run_id)
    first = note.read_bytes()
    world.tick()
    assert note.read_bytes() == first and world.did("train") == 0
    world.list.write_text(world.list.read_text() + "# nothing but a remark\n")
    assert world.forked(lambda: world.tick(), fault="before:campaign.watch:kill") == -signal.SIGKILL
    world.candidates(a=[[30, 30]])
    ended(world, run_id)
    assert world.did("train") == 1


def test_a_setting_that_was_submitted_while_the_record_was_away_is_not_lost(
    world: CampaignWorld, tmp_path: Path
) -> None:
    world.campaign(max_rounds=1)
    world.candidates(a=[[30, 30]])
    config = world.folder / "config.toml"
    there = config.read_text()
    away = there.replace(there.split('database_url = "')[1].split('"')[0], "postgresql://nobody@127.0.0.1:1/none")

    def submitted_in_vain() -> None:
        config.write_text(away)
        try:
            result = CliRunner(env={"OUTERLOOP_CONFIG": str(config)}).invoke(
                app, ["submit", "campaign", str(world.toml), "--json"]
            )
        finally:
            config.write_text(there)
        assert json.loads(result.stdout)["state"] == "inbox", result.output

    submitted_in_vain()
    world.campaign(max_rounds=2)  # before the tick took the first one in: the later one counts
    submitted_in_vain()
    world.tick()
    [run] = world.runs()
    assert world.status(run.id)["rounds_opened"] <= 1
    world.campaign(max_rounds=3)  # and after it did
    submitted_in_vain()
    world.tick()
    assert not list(world.state.inbox.glob("*.json"))
    ended(world, run.id)
    assert world.status(run.id)["rounds_opened"] == 3 and len(world.runs()) == 1


@pytest.fixture
def count_statements() -> Callable[[], list[str]]:
    """Every statement that this process sent to the record."""
    from sqlalchemy import Engine, event

    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield lambda: list(seen)  # type: ignore[misc]
    event.remove(Engine, "before_cursor_execute", note)


def test_a_file_can_be_replayed_without_a_record(world: CampaignWorld) -> None:
    world.campaign()
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    ended(world, run_id)
    path = world.folder / "events.jsonl"
    path.write_text(world.cli("campaign", "events", run_id, "--jsonl"))
    told = json.loads(world.cli("campaign", "events", "--file", str(path), "--replay", "--json"))
    assert told["holds"] and told["champion"] == "champ-g001-r0001-a/model-0001"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    assert "event number 5 where 4 was due" in world.cli("campaign", "events", "--file", str(path), "--replay", code=2)


def test_an_exported_ledger_begins_a_campaign_elsewhere(world: CampaignWorld) -> None:
    """The same events under another name: checked before, whole or not at all, and the loop goes on behind them."""
    world.campaign()
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    ended(world, run_id)
    told = world.cli("campaign", "events", run_id, "--jsonl")
    path = world.folder / "events.jsonl"
    lines = told.splitlines()
    middle = next(n for n, line in enumerate(lines, start=1) if json.loads(line).get("action") == "launched")
    other = world.toml.read_text().replace('name = "', 'name = "again-', 1)
    world.toml.write_text(other)

    path.write_text("\n".join(lines[:middle]) + "\n")
    assert "jobs have not ended" in world.cli("submit", "campaign", str(world.toml), "--ledger", str(path), code=3)
    path.write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    assert "was due" in world.cli("submit", "campaign", str(world.toml), "--ledger", str(path), code=2)
    assert len(world.runs()) == 1

    path.write_text(told)
    world.cli("submit", "campaign", str(world.toml), "--ledger", str(path))
    [again] = [run.id for run in world.runs() if run.id != run_id]
    ended(world, again)
    assert world.cli("campaign", "events", again, "--jsonl").startswith(told)
    assert json.loads(world.cli("campaign", "events", again, "--replay", "--json"))["holds"]
    assert world.cli("submit", "campaign", str(world.toml), "--ledger", str(path), code=3)


def test_an_imported_ledger_goes_on_without_the_files_that_did_not_come_with_it(world: CampaignWorld) -> None:
    """Its split is built again and must be the same one; with another one nothing is trained or compared."""
    world.campaign(max_rounds=1)
    world.candidates(a=[[30, 30]])
    run_id = world.submit_campaign()
    ended(world, run_id)
    told, path = world.cli("campaign", "events", run_id, "--jsonl"), world.folder / "events.jsonl"
    split = next(e.split_sha256 for e in world.ledger(run_id) if e.kind == "generation" and e.status == "split_ready")

    path.write_text(told.replace(split, "f" * 64))
    world.campaign(max_rounds=10**9, name="other")
    other = world.submit_campaign("--ledger", str(path))
    for _ in range(4):
        world.run_measures()
        world.tick()
    run = world.run(other)
    assert (run.state, run.state_reason) == ("blocked", "SPLIT") and "would not compare" in run.state_detail
    assert world.status(other)["rounds_opened"] == 2 and world.did("train") == 1

    path.write_text(told)
    world.campaign(max_rounds=2, name="same")
    text = world.cli("submit", "campaign", str(world.toml), "--ledger", str(path))
    assert "the split of generation 1 is not here" in text and "checkpoints of 1 trainings" in text
    [same] = [run.id for run in world.runs() if run.id not in {run_id, other}]
    world.ticks_until_rest(20)
    assert world.run(same).verdict == "finished" and world.did("train") == 2
    assert [e.status for e in world.ledger(same) if e.kind == "generation"][-2:] == ["split_lost", "split_ready"]
    assert world.status(same)["champion"]["subject"] == "champ-g001-r0001-a/model-0001"
