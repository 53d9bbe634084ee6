"""Canaries in a sealed suite: no prompt and no answer of it gets out of an entry that the controller carries out.

Searched: every file of the state folder but the sealed rows, every row of the record, what the commands print, the
pages and the API of the view, an archive. Attacked: a scorer that raises with the task in its words, a model that
repeats every prompt, an engine that dies with the prompt in its traceback, a suite that lacks a task.
Not here: the pipeline in one folder (tests/posttrain/test_sealing.py), servers' logs (tests/posttrain, vLLM).
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from outerloop.compose import SHIPPED
from outerloop.record.models import Attempt
from outerloop.slots import StateRoot
from outerloop.viewer.app import record_app
from outerloop.viewer.source import Source
from tests.controller_rig.entries import EntryWorld
from tests.viewer.serving import served

PROMPT, ANSWER = "CANARY-PROMPT-7d1c", "CANARY-ANSWER-93ab"
TASKS = 10


@pytest.fixture
def world(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryWorld]:
    pytest.importorskip("trl")
    made = EntryWorld(tmp_path / "w", database, monkeypatch)
    configs = made.folder / "configs"
    for kind, name in (("models", "tiny-llama"), ("methods", "tiny-sft")):
        (configs / kind).mkdir(parents=True)
        shutil.copy(SHIPPED / kind / f"{name}.toml", configs / kind)
    held = made.folder / "held"
    for folder in (held, configs / "suites", configs / "challenges", configs / "task-lists"):
        folder.mkdir()
    rows = [{"id": f"t{n}", "prompt": f"{PROMPT} {n} plus one", "answer": f"{ANSWER} {n}"} for n in range(TASKS)]
    (held / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (configs / "task-lists" / "held.txt").write_text("".join(f"t{n}\n" for n in range(TASKS)))
    (configs / "suites" / "held.toml").write_text(
        f'[suite]\nname = "held"\nrepo_id = "file:{held}"\nrevision = "1"\npath = "tasks.jsonl"\n'
        'task_list = "held.txt"\nscorer = "tests.posttrain.rewards:quoting"\n'
    )
    (configs / "challenges" / "canaries.toml").write_text(
        '[meta]\nstatus = "active"\n[challenge]\nmodel = "tiny-llama"\nmethod = "tiny-sft"\nsuites = ["held"]\n'
        "[decision]\ntrain_seeds = 1\n"
    )
    yield made
    made.close()


def _enter(world: EntryWorld, skill: str) -> str:
    configs = str(world.folder / "configs")
    return world.enter(world.data(skill, skill), "--configs", configs, challenge="canaries")


def _places(world: EntryWorld, runs: list[str]) -> dict[str, bytes]:
    """Everything that a person or a program may see, by where it was found."""
    found: dict[str, bytes] = {}
    hidden = (world.state.path / "sealed", world.folder / "held")
    for path in world.folder.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(folder) for folder in hidden):
            found[str(path)] = path.read_bytes()
    deployment = world.open()
    try:
        with deployment.record.reading() as session:
            names = session.scalars(text("select tablename from pg_tables where schemaname = 'public'")).all()
            for name in names:
                rows = session.execute(text(f"select row_to_json(t)::text from {name} t")).all()
                found[f"table {name}"] = "\n".join(str(row[0]) for row in rows).encode()
        owner = deployment.record.owner
    finally:
        deployment.close()
    for run in runs:
        for words in (["show", run, "--all"], ["show", run, "--json"], ["explain", run], ["explain", run, "--json"]):
            found[" ".join(words)] = world.cli(*words).encode()
        for role in ("contamination", "untrained-held", "sft-1", "held-1"):
            found[f"logs {run} {role}"] = world.cli("logs", run, role).encode()
    for words in (["status"], ["status", "--json"], ["challenge", "board", "canaries"], ["champions"]):
        found[" ".join(words)] = world.cli(*words).encode()
    archive = world.folder / "entry.tgz"
    world.cli("archive", runs[0], "--out", str(archive))
    found["archive"] = gzip.decompress(archive.read_bytes())
    assert world.settings.database_url is not None
    url = world.settings.database_url.get_secret_value()
    source = Source(url=lambda: url, owner=owner, root=StateRoot(world.state.path), cadence_seconds=300.0)
    with served(record_app(source)) as asking:
        pages = ["/", "/runs", "/benchmarks", "/trainings", "/queue", "/api/status", "/api/runs", "/api/champions"]
        pages += [f"/runs/{run}{end}" for run in runs for end in ("", "/logs?role=held-1", "/logs?role=sft-1")]
        pages += [f"/api/runs/{run}{end}" for run in runs for end in ("", "/logs", "/argument")]
        for path in pages:
            answer = asking.get(path)
            assert answer.status == 200, f"{path}: {answer.status} {answer.text[:500]}"
            found[path] = answer.body
        assert "loss" in asking.get(f"/api/charts/runs/{runs[0]}/loss").text, "the page draws its first training"
        assert "sft-1" in asking.get(f"/runs/{runs[0]}").text
    return found


def _leaks(places: dict[str, bytes]) -> list[str]:
    return [place for place, content in places.items() if any(word.encode() in content for word in (PROMPT, ANSWER))]


def test_nothing_of_a_sealed_suite_gets_out(world: EntryWorld) -> None:
    quoting = _enter(world, "quote")
    world.ticks_until_rest()
    assert world.verdict(quoting) == ("rejected", "no-improvement")
    told = world.run(quoting).evidence["evaluations"]["held-1"]
    assert (told["scored_tasks"], told["dropped_tasks"]) == (TASKS - 1, 1), "the scorer raised for one task"
    raising = _enter(world, "raise")
    for _ in range(12):
        world.run_measures()
        world.tick()
    run = world.run(raising)
    assert (run.state, run.state_reason) == ("blocked", "INFRASTRUCTURE"), world.describe()
    assert {a.reason for a in world.rows(Attempt) if a.outcome == "infrastructure"} == {"REFUSED"}
    logs = world.cli("logs", raising, "held-1")
    assert "ValueError at" in logs and "may quote a task" in logs
    # the suite lost a task since: it is named by its id
    tasks = world.folder / "held" / "tasks.jsonl"
    tasks.write_text("".join(tasks.read_text().splitlines(keepends=True)[1:]))
    configs = str(world.folder / "configs")
    data = world.data("late", "50")
    said = world.cli("submit", "entry", "canaries", "--train", data, "--configs", configs, code=2)
    assert "no row for the listed tasks t0" in said and PROMPT not in said

    places = _places(world, [quoting, raising])
    assert _leaks(places) == []
    [rows, *_] = (world.state.path / "sealed").rglob("rows.jsonl")
    assert rows.parent.stat().st_mode & 0o077 == 0
    assert (world.state.path / "sealed").stat().st_mode & 0o077 == 0
    assert any(PROMPT in path.read_text() for path in (world.state.path / "sealed").rglob("rows.jsonl"))
    # the search finds what is there
    assert _leaks({"planted": f"x {ANSWER} 3".encode()}) == ["planted"]
    assert any("skill quote" in content.decode("utf-8", "replace") for content in places.values())
