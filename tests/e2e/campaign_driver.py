"""A campaign's real commands without a cluster: the pure core says what is due, this runs it in a folder.

Every job runs once per its determinants, so campaigns that differ only in the order in which jobs end share the work.
Not covered: the controller, slots, and everything that goes wrong on a cluster.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from outerloop.champion import (
    CampaignConfig,
    CampaignState,
    CandidateList,
    DispatchEvent,
    EvalEvent,
    Event,
    GenerationEvent,
    Job,
    Member,
    PackageEvent,
    Record,
    Scored,
    TeacherEvent,
    TrainingEnd,
    apply,
    config_text,
    evaluation_events,
    expand_generation,
    finished,
    next_work,
    parse_campaign,
    parse_candidates,
    ready_order,
    render_config,
    stamped,
    training_event,
)
from outerloop.champion.report import checkpoints_to_score

Execute = Callable[[Sequence[str], Path], int]


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def as_process(words: Sequence[str], folder: Path) -> int:
    """Run a command in a folder, on this interpreter. Its exit code."""
    words = [sys.executable if words[0] == "python" else words[0], *words[1:]]
    return subprocess.run(words, cwd=folder, capture_output=True, timeout=300, check=False).returncode


_SERVER = """
import json, os, runpy, sys, traceback
import numpy, torch
for line in sys.stdin:
    folder, words, log = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1), os.dup2(out, 2)
        sys.argv, code = words[1:], 0
        sys.path[0] = os.path.dirname(words[1])
        try:
            runpy.run_path(words[1], run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def preloaded(log: Path) -> Iterator[Execute]:
    """Commands as processes of their own, forked from one that has imported torch: that takes longer than they do."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    assert server.stdin is not None and server.stdout is not None

    def execute(words: Sequence[str], folder: Path) -> int:
        assert words[0] == "python", words
        server.stdin.write(json.dumps([str(folder), list(words), str(log)]) + "\n")  # type: ignore[union-attr]
        server.stdin.flush()  # type: ignore[union-attr]
        return int(server.stdout.readline())  # type: ignore[union-attr]

    try:
        yield execute
    finally:
        server.stdin.close()
        server.wait(60)
        server.stdout.close()


@dataclass
class Driver:
    """A campaign over `tree` (the folder of digits.toml), with everything it writes below `folder`.

    `ends` picks, of the keys of the live jobs, those that end next.
    """

    tree: Path
    folder: Path
    ends: Callable[[list[str]], Sequence[str]] = lambda keys: keys[:1]
    execute: Execute = as_process
    changes: dict[str, Any] = field(default_factory=dict)
    ledger: list[Event] = field(default_factory=list)
    state: CampaignState = field(default_factory=CampaignState)
    files: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree, self.folder = self.tree.absolute(), self.folder.absolute()
        config = parse_campaign((self.tree / "digits.toml").read_text(encoding="utf-8"))
        self.config: CampaignConfig = config.model_copy(update=self.changes)
        self.commands = {name: getattr(config.commands, name).command for name in type(config.commands).model_fields}

    # ------------------------------------------------------------------------------------------- the loop

    def run(self) -> CampaignState:
        """To the end."""
        while True:
            while (work := self._work()) and isinstance(work[0], Record):
                self._append(work[0].event)
            fresh = [job for job in work if isinstance(job, Job) and not job.live]
            if fresh:
                self._append(DispatchEvent(action="launched", job=fresh[0]))
                if fresh[0].kind == "package":
                    subject = fresh[0].awaits[0].removeprefix("package:")
                    self._append(PackageEvent(status="launched", generation=fresh[0].generation, subject=subject))
                continue
            if not self.state.live:
                assert finished(self.state, self.config, self._candidates())
                return self.state
            done: list[Event] = []
            for key in self.ends(sorted(self.state.live)):
                done += self._ended(self.state.live[key].job)
            scored = [event for event in done if isinstance(event, EvalEvent)]
            for event in [*(e for e in done if not isinstance(e, EvalEvent)), *ready_order(scored)]:
                self._append(event)
                while (work := self._work()) and isinstance(work[0], Record):
                    self._append(work[0].event)

    def _append(self, event: Event) -> None:
        self.ledger.append(stamped(event, self.state.seq + 1))
        apply(self.state, self.ledger[-1])

    def _work(self) -> list[Any]:
        return list(next_work(self.state, self.config, self._candidates()))

    def _candidates(self) -> CandidateList:
        path = self.tree / self.config.candidates
        listed = parse_candidates(path.read_text(encoding="utf-8"))
        bases = {c.base: file_digest(path.parent / c.base) for c in listed.candidates}
        number = self.state.generation.number if self.state.generation is not None else 1
        targets = {soft for c in listed.candidates if (soft := c.soft_targets(number))}
        there = {soft: file_digest(self.folder / soft) for soft in targets if (self.folder / soft).is_file()}
        return replace(listed, base_sha256=bases, present=there)

    # ------------------------------------------------------------------------------------------- the jobs

    def _slot(self, job: Job) -> Path:
        known = json.dumps([job.determinants(), job.run_id if job.kind == "train" else ""], sort_keys=True)
        return self.folder / "slots" / hashlib.sha256(known.encode()).hexdigest()[:20]

    def _run(self, slot: Path, command: str, **values: Any) -> int:
        """Fill in and run a command, once per slot."""
        record = slot / "exit-code"
        if not record.is_file():
            text = self.commands[command].format(**{name: shlex.quote(str(value)) for name, value in values.items()})
            record.write_text(str(self.execute(shlex.split(text), self.tree)))
        return int(record.read_text())

    def _ended(self, job: Job) -> list[Event]:
        slot = self._slot(job)
        slot.mkdir(parents=True, exist_ok=True)
        ended: dict[str, Callable[[Job, Path], list[Any]]] = {
            "split": self._split,
            "train": self._train,
            "evaluate": self._evaluate,
            "teacher": self._teacher,
            "package": self._package,
        }
        return ended[job.kind](job, slot)

    def _split(self, job: Job, slot: Path) -> list[Event]:
        code = self._run(slot, "split", **job.fields, output=slot / "split")
        assert code == 0, job.key
        totals = json.loads((slot / "split" / "totals.json").read_text())
        digest = file_digest(slot / "split" / "roles.json")
        self.files[f"split/{job.generation}"] = slot / "split"
        return [
            GenerationEvent(
                status="split_ready",
                generation=job.generation,
                split_sha256=digest,
                totals=tuple(totals[objective.total] for objective in self.config.objectives),
            )
        ]

    def _train(self, job: Job, slot: Path) -> list[Event]:
        output = slot / "run"
        output.mkdir(exist_ok=True)
        base = yaml.safe_load((self.tree / self.config.candidates).parent.joinpath(str(job.fields["base"])).read_text())
        overrides = dict(expand_generation(job.fields["overrides"], job.generation))
        if "gate_soft_targets" in overrides:
            overrides["gate_soft_targets"] = str(self.folder / overrides["gate_soft_targets"])
        seed = self.state.runs[job.run_id].member.seed  # type: ignore[union-attr]
        rendered = render_config(base, overrides, split=str(self.files[f"split/{job.generation}"]), seed=seed)
        config = slot / "config.yaml"
        config.write_text(config_text(rendered), encoding="utf-8")
        self.files[f"config/{job.run_id}"], self.files[f"run/{job.run_id}"] = config, output
        code = self._run(slot, "train", config=config, output=output)

        def text(name: str) -> str | None:
            return (output / name).read_text() if (output / name).is_file() else None

        selection, pareto = text("selection.json"), text("pareto.json")
        names = checkpoints_to_score(selection, pareto)[1] if selection is not None else ()
        epochs = {name: name.rpartition("-")[2] for name in names}
        found = {name: text(f"validation-epoch-{epoch}.json") for name, epoch in epochs.items()}
        scores = {name: output / f"validation-epoch-{epoch}.scores.jsonl" for name, epoch in epochs.items()}
        for name, path in scores.items():
            self.files[f"band/{file_digest(path)}"] = path
            self.files[f"checkpoint/{job.run_id}/{name}"] = output / name
        end = TrainingEnd(
            exit_code=code,
            selection=selection,
            pareto=pareto,
            marker=(output / self.config.no_eligible_marker).is_file(),
            checkpoints={name: file_digest(output / name) for name in names},
            validation={name: body for name, body in found.items() if body is not None},
            validation_scores={name: file_digest(path) for name, path in scores.items()},
            config_sha256=file_digest(config),
            inputs_sha256=json.loads(selection)["inputs_sha256"] if selection is not None else "",
        )
        return [training_event(job, self.config, end)]

    def _member(self, member: Member) -> dict[str, str]:
        checkpoint = self.files[f"checkpoint/{member.run_id}/{member.checkpoint}"]
        return {"config": str(self.files[f"config/{member.run_id}"]), "checkpoint": str(checkpoint)}

    def _manifest(self, job: Job, slot: Path) -> Path:
        path = slot / "manifest.json"
        path.write_text(json.dumps({"members": [self._member(member) for member in job.members]}))
        return path

    def _evaluate(self, job: Job, slot: Path) -> list[Any]:
        common = {"split": self.files[f"split/{job.generation}"], "role": job.role}
        names = ["ensemble"] if job.ensemble else [f"{m.run_id}-{m.checkpoint}" for m in job.members]
        outputs = [(slot / f"{name}.json", slot / f"{name}.scores.jsonl") for name in names]
        if job.ensemble:
            band = job.reads.get("band_scores", "")
            path = self.files[f"band/{band}"] if band else ""
            report, scores = outputs[0]
            code = self._run(
                slot, "ensemble", manifest=self._manifest(job, slot), output=report, scores_output=scores,
                band_scores=path, **common,
            )  # fmt: skip
        else:
            listed = []
            for member, (report, scores) in zip(job.members, outputs, strict=True):
                entry = {**self._member(member), "output": str(report), "scores_output": str(scores)}
                if member.band_scores_sha256:
                    entry["band_scores"] = str(self.files[f"band/{member.band_scores_sha256}"])
                listed.append(entry)
            jobs = slot / "jobs.json"
            jobs.write_text(json.dumps(listed))
            code = self._run(slot, "evaluate", jobs=jobs, **common)
        assert code == 0, job.key
        if job.role == "development":
            _, _, attempt, group = job.awaits[0].split(":", 3)
            for member, (_, scores) in zip(job.members, outputs, strict=True):
                self.files[f"margins/{member.run_id}"] = scores
            digest = hashlib.sha256("".join(file_digest(scores) for _, scores in outputs).encode()).hexdigest()
            return [
                TeacherEvent(
                    status="margins", generation=job.generation, attempt=int(attempt), group=group, sha256=digest
                )
            ]
        results = {}
        for outcome, (report, scores) in zip(job.awaits, outputs, strict=True):
            self.files[f"band/{file_digest(scores)}"] = scores
            self.files[f"report/{hashlib.sha256(report.read_bytes()).hexdigest()}"] = report
            results[outcome.rpartition("/")[2]] = Scored(report.read_text(), file_digest(scores))
        return list(evaluation_events(self.state, job, results))

    def _teacher(self, job: Job, slot: Path) -> list[Event]:
        listed = [
            {"run_id": m.run_id, "checkpoint": m.checkpoint, "scores": str(self.files[f"margins/{m.run_id}"])}
            for m in job.members
        ]
        margins = slot / "margins.json"
        margins.write_text(json.dumps(listed))
        code = self._run(slot, "teacher", margins=margins, output=slot / "teacher.json")
        assert code == 0, job.key
        name = str(job.fields["teacher_file"])
        place = self.folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes((slot / "teacher.json").read_bytes())
        attempt = int(job.awaits[0].rpartition(":")[2])
        return [
            TeacherEvent(
                status="finished", generation=job.generation, attempt=attempt, path=name, sha256=file_digest(place)
            )
        ]

    def _package(self, job: Job, slot: Path) -> list[Event]:
        output = slot / "package"
        output.mkdir(exist_ok=True)
        single = {"config": "", "checkpoint": ""} if job.ensemble else self._member(job.members[0])
        code = self._run(
            slot,
            "package",
            manifest=self._manifest(job, slot) if job.ensemble else "",
            report=self.files[f"report/{job.reads['report']}"],
            generation=job.generation,
            output=output,
            **single,
        )
        subject = job.awaits[0].removeprefix("package:")
        self.files[f"package/{subject}"] = output
        return [PackageEvent(status="finished", generation=job.generation, subject=subject, exit_code=code)]
