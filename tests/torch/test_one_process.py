"""Attacks: a resumed loss curve that differs in the last bit, a checkpoint that lies, a stop that loses steps."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torch.conftest import Steps, Training

Make = Callable[..., Training]
LOADERS = ("shuffle", "sequence", "generator", "weighted", "own sampler", "stream", "single", "stateful", "none")


Plain = Callable[..., Steps]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_script_killed_at_random_steps_has_the_losses_of_the_plain_script(
    training: Make, plain: Plain, loader: str
) -> None:
    """Covers the order, dropout, noise from three streams, optimizer and scheduler, over three epochs."""
    if loader == "stateful":
        pytest.importorskip("torchdata", reason="torchdata is not installed")
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    steps = 60 if loader == "single" else 20
    config = {"loader": loader, "steps": steps, "every": draw.choice([1, 2, 3])}
    killed = training("killed", **config)
    codes = []
    for step in sorted(draw.sample(range(1, steps - 1), 3)):
        codes += killed.run(kill={"step": step, "signal": "SIGKILL"})
    codes += killed.run()
    assert codes == [-9, -9, -9, 0], killed.log
    # StatefulDataLoader draws its seed when it is built, before prepare: its own plain order is the reference.
    assert killed.steps() == plain(**config), f"seed {seed}"
    # torchdata warns about a torch function of its own use.
    assert killed.log == "" or loader == "stateful"


def test_a_process_killed_anywhere_even_while_saving_goes_on_exactly(training: Make, plain: Plain) -> None:
    config = {"steps": 60, "every": 1, "samples": 50}
    reference = plain(**config)
    killed = training("killed", **config)
    draw = random.Random()
    kills = 0
    for _ in range(40):
        (code,) = killed.run(alarm=draw.uniform(0.05, 0.5))
        if code == 0:
            break
        assert code == -signal.SIGALRM, killed.log
        kills += 1
    else:
        assert killed.run() == [0], killed.log
    assert kills > 0
    assert killed.steps() == reference


def test_worker_processes_keep_the_order_over_a_kill(training: Make, plain: Plain) -> None:
    config = {"workers": 2, "steps": 12, "every": 2}
    killed = training("killed", **config)
    assert killed.run(kill={"step": 9, "signal": "SIGKILL"}) == [-9]
    assert killed.run() == [0], killed.log
    assert killed.steps() == plain(**config)


def test_the_helper_changes_nothing_when_no_folder_is_given(training: Make, plain: Plain) -> None:
    bare = training("bare", env={"OUTERLOOP_CKPT_DIR": "", "OUTERLOOP_OUTPUT_DIR": ""})
    assert bare.run() == [0], bare.log
    assert bare.steps() == plain()
    assert sorted(path.name for path in bare.folder.iterdir()) == ["log.txt", "losses-0.jsonl"]
    # Without a place to save to, SIGTERM keeps its meaning.
    assert bare.run(kill={"step": 3, "signal": "SIGTERM"}) == [-signal.SIGTERM]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_stop_saves_marks_and_exits_75_and_going_on_removes_the_mark(training: Make, plain: Plain, name: str) -> None:
    stopped = training("stopped", every=1000)
    assert stopped.run(kill={"step": 7, "signal": name}) == [75], stopped.log
    marker = json.loads((stopped.checkpoints / "requeue.json").read_text())
    assert marker["step"] == 7
    assert marker["signal"] == name
    assert marker["checkpoint"] == "step-0000000007"
    assert stopped.saved() == [7]
    assert json.loads((stopped.folder / "out" / "run.json").read_text())["state"] == "stopped"
    assert stopped.run() == [0], stopped.log
    assert not (stopped.checkpoints / "requeue.json").exists()
    lines = [line["step"] for line in stopped.lines()]
    assert lines == list(range(20)), "a stop loses no step"
    assert stopped.steps() == plain()
    run = json.loads((stopped.folder / "out" / "run.json").read_text())
    assert (run["state"], run["start_step"], run["restored_step"]) == ("finished", 8, 7)


def test_a_signal_to_the_whole_process_group_does_not_kill_the_loaders_workers_first(training: Make) -> None:
    """A launcher signals every process; a worker that ends would end the training before it could save."""
    stopped = training("stopped", workers=2, steps=4000, every=0)
    (pid,) = stopped.start()
    deadline = time.monotonic() + 60
    while len(stopped.lines()) < 5:
        assert time.monotonic() < deadline, stopped.log
        time.sleep(0.01)
    os.killpg(pid, signal.SIGTERM)
    assert stopped.wait([pid]) == [75], stopped.log
    assert stopped.saved() == [stopped.lines()[-1]["step"]]


@pytest.mark.parametrize(
    ("every", "saved"), [(None, [18, 19]), (0, []), (-3, []), (1, [18, 19]), (6, [12, 18]), (7, [7, 14]), (50, [])]
)
def test_when_a_checkpoint_is_due(training: Make, every: int | None, saved: list[int]) -> None:
    run = training("run", every=every)
    assert run.run() == [0], run.log
    assert run.saved() == saved


def test_step_zero_is_saved_only_without_every(training: Make) -> None:
    first = training("first", every=None, steps=1)
    assert first.run() == [0]
    assert first.saved() == [0]
    none = training("none", every=1, steps=1)
    assert none.run() == [0]
    assert none.saved() == []


def _damage(folder: Path, how: str) -> None:
    part = folder / "model.pt"
    if how == "cut":
        part.write_bytes(part.read_bytes()[:-7])
    elif how == "flipped":
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    elif how == "missing":
        (folder / "rank-0.pt").unlink()
    elif how == "no manifest":
        (folder / "manifest.json").unlink()
    elif how == "half a manifest":
        text = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text(text[: len(text) // 2])
    elif how == "empty":
        for path in folder.iterdir():
            path.write_bytes(b"")


@pytest.mark.parametrize("how", ["cut", "flipped", "missing", "no manifest", "half a manifest", "empty"])
def test_a_torn_checkpoint_is_passed_over_for_the_older_one(training: Make, plain: Plain, how: str) -> None:
    torn = training("torn")
    assert torn.run(kill={"step": 11, "signal": "SIGKILL"}) == [-9]
    assert torn.saved() == [6, 9]
    _damage(torn.checkpoints / "step-0000000009", how)
    (torn.checkpoints / ".saving-step-0000000012-00").mkdir()
    assert torn.run(kill={"step": 13, "signal": "SIGKILL"}) == [-9]
    assert "step-0000000009 is torn" in torn.log
    assert torn.lines()[12]["step"] == 7
    # The torn one no longer counts among the two that are kept, and half-written ones are swept.
    assert sorted(path.name for path in torn.checkpoints.iterdir()) == ["step-0000000009", "step-0000000012"]
    assert torn.run() == [0]
    assert torn.steps() == plain()


def test_with_every_checkpoint_torn_training_begins_anew_and_says_so(training: Make, plain: Plain) -> None:
    torn = training("torn")
    assert torn.run(kill={"step": 11, "signal": "SIGKILL"}) == [-9]
    for folder in torn.checkpoints.glob("step-*"):
        _damage(folder, "flipped")
    assert torn.run() == [0]
    assert "none of the checkpoints" in torn.log
    assert torn.lines()[12]["step"] == 0
    assert torn.steps() == plain()


def test_a_moved_folder_restores(training: Make, plain: Plain, tmp_path: Path) -> None:
    run = training("run")
    assert run.run(kill={"step": 11, "signal": "SIGKILL"}) == [-9]
    shutil.move(run.checkpoints, tmp_path / "elsewhere")
    run.env["OUTERLOOP_CKPT_DIR"] = str(tmp_path / "elsewhere")
    assert run.run() == [0], run.log
    assert run.lines()[12]["step"] == 10
    assert run.steps() == plain()


def test_a_checkpoint_of_another_script_is_refused_by_name(training: Make) -> None:
    run = training("run")
    assert run.run(kill={"step": 11, "signal": "SIGKILL"}) == [-9]
    before = run.saved()
    assert run.run(sgd=True) == [1]
    assert "does not fit the script: it holds AdamW, and the script's optimizer is SGD" in run.log
    assert run.saved() == before


def test_another_batch_size_goes_on_at_the_same_sample(training: Make, plain: Plain) -> None:
    run = training("run", samples=24, every=1)
    assert run.run(kill={"step": 4, "signal": "SIGKILL"}) == [-9]
    assert run.run(batch=6, steps=10, kill={"step": 5, "signal": "SIGKILL"}) == [-9], run.log
    assert run.run(batch=6, steps=10) == [0], run.log
    # Step 4 was done twice, with 4 and then with 6 samples; 16 + 6 + 2 make the epoch, whatever the batches.
    seen = {line["step"]: line["ids"] for line in run.lines()}
    assert [len(seen[step]) for step in range(10)] == [4, 4, 4, 4, 6, 2, 6, 6, 6, 6]
    order = [i for _, ids in plain(samples=24, steps=6).values() for i in ids]
    assert [i for step in range(6) for i in seen[step]] == order
    assert sorted(i for step in range(6, 10) for i in seen[step]) == list(range(24))


def test_a_disk_that_refuses_a_save_does_not_end_the_training(training: Make) -> None:
    run = training("run")
    run.checkpoints.mkdir()
    # The folder turns into a file in the middle of the run: every later save fails as on a broken disk.
    link = run.folder / "link"
    run.env["OUTERLOOP_CKPT_DIR"] = str(link)
    link.symlink_to(run.checkpoints)
    (run.folder / "file").write_text("")
    (run.folder / "other").symlink_to(run.folder / "file")
    (pid,) = run.start(steps=600, every=10)
    deadline = time.monotonic() + 60
    while not run.saved():
        assert time.monotonic() < deadline, run.log
        time.sleep(0.005)
    (run.folder / "other").replace(link)
    assert run.wait([pid]) == [0]
    assert "could not be saved" in run.log
    facts = json.loads((run.folder / "out" / "run.json").read_text())
    assert facts["checkpoint"]["count"] >= 1
    assert facts["checkpoint"]["failed"] >= 1
    assert len(run.steps()) == 600


def test_a_save_that_breaks_off_in_the_middle_leaves_the_older_ones(training: Make, plain: Plain) -> None:
    run = training("run")
    assert run.run(no_space_from=7) == [0], run.log
    assert "the checkpoint of step 9 could not be saved" in run.log
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-0000000003", "step-0000000006"]
    facts = json.loads((run.folder / "out" / "run.json").read_text())
    assert (facts["checkpoint"]["count"], facts["checkpoint"]["failed"]) == (2, 4)
    # A stop that cannot be saved is a failure, and leaves no mark that says otherwise.
    assert run.run(no_space_from=8, kill={"step": 8, "signal": "SIGTERM"}) == [1]
    assert not (run.checkpoints / "requeue.json").exists()
    assert run.run() == [0]
    assert run.steps() == plain()


def test_what_a_run_reports(training: Make) -> None:
    run = training("run", steps=30, every=5)
    assert run.run() == [0]
    out = run.folder / "out"
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == list(range(30))
    assert [m["loss"].hex() for m in metrics] == [loss for loss, _ in run.steps().values()]
    facts = json.loads((out / "run.json").read_text())
    assert (facts["schema"], facts["kind"], facts["state"]) == (1, "training", "finished")
    assert (facts["step"], facts["world_size"], facts["backend"], facts["device"]) == (29, 1, None, "cpu")
    timing = facts["step_seconds"]
    assert timing["count"] == 29
    assert 0 < timing["median"] <= timing["p90"] <= timing["max"]
    # 29 timed steps of an epoch of 26 in batches of 4: between 2 and 4 samples each.
    assert 2 / timing["max"] < facts["samples_per_second"] < 4 / (timing["median"] / 10)
    assert facts["tokens_per_second"] is None
    assert facts["checkpoint"]["count"] == 5
    assert facts["checkpoint"]["last_step"] == 25
    assert facts["checkpoint"]["bytes"] == sum(
        path.stat().st_size for path in (run.checkpoints / "step-0000000025").iterdir() if path.suffix == ".pt"
    )
    assert 50 < facts["peak_memory_mb"]["rss"] < 4000
    assert facts["peak_memory_mb"]["device"] is None
    beat = json.loads((out / "ranks" / "rank-0.json").read_text())
    assert (beat["rank"], beat["state"], beat["step"]) == (0, "finished", 29)
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "ranks", "run.json"]


def test_a_stop_that_may_not_fit_into_the_grace_is_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("torch")
    from outerloop.torch.session import GRACE_SECONDS, Session
    from outerloop.torch.world import World

    monkeypatch.setenv("OUTERLOOP_CKPT_DIR", str(tmp_path))
    monkeypatch.delenv("OUTERLOOP_OUTPUT_DIR", raising=False)
    session = Session(World())
    now = 0.0
    monkeypatch.setattr("outerloop.torch.facts.time.monotonic", lambda: now)
    monkeypatch.setattr("outerloop.torch.session.time.monotonic", lambda: now)
    for step, seconds in enumerate((GRACE_SECONDS / 2, GRACE_SECONDS / 2, GRACE_SECONDS + 1, GRACE_SECONDS + 2)):
        now += seconds
        session.reporter.step_ended(step)
        assert session._save(_Nothing(), None, None, step)
        session.reporter.resume_clock()
        assert len(caplog.records) == (step >= 2)
    assert "longer than the 30 s between SIGTERM and SIGKILL" in caplog.text


class _Nothing:
    """A model without a parameter."""

    def parameters(self) -> list[object]:
        return []

    def state_dict(self) -> dict[str, object]:
        return {}
