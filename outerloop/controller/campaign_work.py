"""From a campaign's job to the work of a slot: determinants, the command with its fields filled in, files, order.

Covered: what determines the result, rendering each kind of command with the files that go with it. Not covered: which
jobs there are (outerloop.champion), rows (campaigns.py), reading what they left (campaign_harvest.py).

Digests determine a slot, paths don't: what is rendered here stands in the slot's spec beside the determinants, and is
written there once.
"""

from __future__ import annotations

import json
import os
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outerloop.champion import Job, Member, config_text, render_config, text_digest
from outerloop.champion.candidates import SOFT_TARGETS_KEY
from outerloop.controller.campaign_candidates import BaseConfigError, base_config, base_path, soft_target_path
from outerloop.controller.campaign_ledger import Books, Launch
from outerloop.controller.campaign_places import Lost, Places
from outerloop.controller.campaign_request import Setting
from outerloop.controller.campaign_slots import OUTPUT, RESUMABLE, determinants, report_name, scores_name
from outerloop.controller.content import content_digest
from outerloop.controller.work import ARTIFACT_CAP_BYTES, OUTPUT_CAP_BYTES, Work, launch_order
from outerloop.job.reports import JOBS_FILE

__all__ = ["CannotHandOut", "Rendered", "campaign_work", "render"]

MB_PER_GIB = 1024
TERM_GRACE_SECONDS = 30.0
"""How long a command may take to save something when it is stopped."""

CONFIG = "config.yaml"
MANIFEST = "manifest.json"
MARGINS = "margins.json"

_ATTEMPT = '"$OUTERLOOP_OUTPUT_DIR"'
_SLOT = '"$OUTERLOOP_CKPT_DIR"'
"""Where a job writes is known on its node alone: the wrapper tells the command, and the shell puts it in."""


class CannotHandOut(Exception):
    """A job can't be handed out as it stands; its outcome is a failure with this text."""


@dataclass(frozen=True)
class Rendered:
    """A job's command line and what it needs. `reports` describes the reports that the wrapper looks after."""

    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()
    reports: Mapping[str, Any] | None = None


def campaign_work(
    setting: Setting, launch: Launch, *, mirror: str, rendered: Rendered | None, facts: Mapping[str, Any] | None = None
) -> Work:
    """The work of a launch, from what was rendered or from the `facts` that its slot's spec has already."""
    job = launch.job
    execution = setting.execution(job.resources.gpus)
    resumable = job.kind in RESUMABLE
    memory_mb = round(job.resources.memory_gb * MB_PER_GIB)
    if facts is None and rendered is not None:
        script = f"mkdir -p {_ATTEMPT}/{OUTPUT} || exit {os.EX_OSERR}\n" if job.kind in _WANT_FOLDER else ""
        facts = {
            "kind": "measure",
            "mirror": mirror,
            "base_tree": setting.tree,
            "label": job.key,
            "resumable": resumable,
            "network": True,
            "launch": {"argv": ["/bin/sh", "-c", script + rendered.command], "env": {}, "files": dict(rendered.files)},
            "input_files": [
                {"path": str(path), "source": str(path), "digest": "", "hidden": False} for path in rendered.inputs
            ],
            "reports": rendered.reports,
            "environment_slot": "",
            "output_cap_bytes": OUTPUT_CAP_BYTES,
            "artifact_cap_bytes": ARTIFACT_CAP_BYTES,
        }
    order = launch_order(
        execution,
        minutes=job.resources.minutes,
        cpus=job.resources.cpus,
        memory_mb=memory_mb,
        gpus=job.resources.gpus,
        nodes=1,
        resumable=resumable,
        grace_seconds=TERM_GRACE_SECONDS,
    )
    return Work(determinants(setting, job, launch.again), facts or {}, order, job.key, "measure")


_WANT_FOLDER = frozenset({"train", "evaluate", "package"})
"""Commands whose {output} is a folder that exists; the others make what they want there."""


# -- rendering


def render(setting: Setting, books: Books, places: Places, job: Job) -> Rendered:
    """The job's command and files, from what lies on disk now. Raises CannotHandOut, OSError."""
    try:
        match job.kind:
            case "split":
                return _command(job, {"output": _here(OUTPUT)})
            case "train":
                return _training(setting, places, job)
            case "evaluate" if job.ensemble:
                return _ensemble(books, places, job)
            case "evaluate":
                return _evaluation(books, places, job)
            case "teacher":
                return _teacher(books, places, job)
            case "package":
                return _package(books, places, job)
    except Lost as lost:
        raise CannotHandOut(str(lost)) from lost


class _Shell(str):
    """A text that the shell reads as it is; all other values are quoted."""


def _here(name: str) -> _Shell:
    return _Shell(f"{_ATTEMPT}/{name}")


def _command(
    job: Job,
    values: Mapping[str, object],
    *,
    files: Mapping[str, str] | None = None,
    inputs: tuple[Path, ...] = (),
    reports: Mapping[str, Any] | None = None,
) -> Rendered:
    """The template with every field replaced; values are quoted for the shell."""
    known: dict[str, object] = {**{k: v for k, v in job.fields.items() if not isinstance(v, dict | list)}, **values}
    known["role"] = job.role or ""
    text = "".join(
        literal + (_quoted(known[name]) if name is not None else "")
        for literal, name, _spec, _conversion in string.Formatter().parse(job.command)
    )
    return Rendered(text, files or {}, inputs, reports)


def _quoted(value: object) -> str:
    return value if isinstance(value, _Shell) else shlex.quote(str(value))


def training_config(setting: Setting, places: Places, job: Job) -> str:
    """The text of a training's config. Raises CannotHandOut when its base is gone, changed or unusable."""
    base = base_path(setting, str(job.fields["base"]))
    try:
        found = content_digest(base)
        loaded = base_config(base)
    except OSError as error:
        raise CannotHandOut(f"the base config {base} can't be read: {error.strerror or error}") from None
    except BaseConfigError as error:
        raise CannotHandOut(str(error)) from None
    if found != job.reads["base"]:
        was = f"its SHA-256 was {job.reads['base']}" if job.reads["base"] else "it was missing then"
        raise CannotHandOut(f"the base config {base} has changed since the round was opened ({was})")
    overrides = dict(job.fields["overrides"]) if isinstance(job.fields["overrides"], dict) else {}
    soft = overrides.get(SOFT_TARGETS_KEY)
    if isinstance(soft, str):
        path = soft_target_path(places.folder, soft)
        try:
            same = content_digest(path) == job.reads.get("soft_targets")
        except OSError as error:
            raise CannotHandOut(f"the soft targets {path} can't be read: {error.strerror or error}") from None
        if not same:
            raise CannotHandOut(f"the soft targets {path} have changed since the round was opened")
        overrides[SOFT_TARGETS_KEY] = str(path)
    split = places.split(job.generation)
    seed = job.fields["seed"]
    assert isinstance(seed, int)
    return config_text(render_config(loaded, overrides, split=str(split), seed=seed))


def _training(setting: Setting, places: Places, job: Job) -> Rendered:
    text = training_config(setting, places, job)
    split = places.split(job.generation)
    inputs = [split]
    soft = json.loads(text).get(SOFT_TARGETS_KEY)
    if isinstance(soft, str):
        inputs.append(Path(soft))
    values = {"config": _here(CONFIG), "output": _here(OUTPUT), "split": split}
    return _command(job, values, files={CONFIG: text}, inputs=tuple(inputs))


def member_files(places: Places, member: Member) -> tuple[Path, Path]:
    """(config, checkpoint) of a member. Raises Lost when either is gone, or the config is not the recorded one."""
    config = places.config(member.run_id)
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Lost(f"the config of {member.run_id} can't be read: {config}: {error}") from None
    if member.config_sha256 and text_digest(text) != member.config_sha256:
        raise Lost(f"{config} is not the config that {member.run_id} was trained with")
    return config, places.checkpoint(member.run_id, member.checkpoint)


def _manifest(places: Places, members: tuple[Member, ...]) -> tuple[str, tuple[Path, ...]]:
    pairs = [member_files(places, member) for member in members]
    listed = [{"config": str(config), "checkpoint": str(checkpoint)} for config, checkpoint in pairs]
    text = json.dumps({"members": listed}, indent=1) + "\n"
    return text, tuple(path for pair in pairs for path in pair)


def _evaluation(books: Books, places: Places, job: Job) -> Rendered:
    entries, inputs = [], [places.split(job.generation)]
    first = ""
    for position, member in enumerate(job.members):
        config, checkpoint = member_files(places, member)
        first = first or str(config)
        entry: dict[str, Any] = {
            "checkpoint": str(checkpoint),
            "config": str(config),
            "config_sha256": member.config_sha256,
        }
        inputs += [config, checkpoint]
        if member.band_scores_sha256:
            band = places.band_scores(books, member.run_id, member.checkpoint, member.band_scores_sha256)
            entry["band_scores"] = str(band)
            inputs.append(band)
        entries.append({"entry": entry, "report": report_name(position), "scores": scores_name(position)})
    values = {
        "jobs": _here(JOBS_FILE),
        "config": first,
        "split": inputs[0],
        "score_cache": _cache(places, job),
        "output": _here(OUTPUT),
    }
    return _command(job, values, inputs=tuple(dict.fromkeys(inputs)), reports={"file": JOBS_FILE, "jobs": entries})


def _cache(places: Places, job: Job) -> str:
    """The score cache's folder; a sandbox shows nothing writable of ours, so there is none in it."""
    return str(places.cache(job.generation)) if job.fields.get("score_cache") and places.open else ""


def _ensemble(books: Books, places: Places, job: Job) -> Rendered:
    manifest, inputs = _manifest(places, job.members)
    split = places.split(job.generation)
    band = ""
    digest = job.reads.get("band_scores", "")
    if digest:
        found = places.band_scores(books, job.run_id, job.awaits[0].rsplit("/", 1)[1], digest)
        band, inputs = str(found), (*inputs, found)
    values = {
        "manifest": _here(MANIFEST),
        "split": split,
        "score_cache": _cache(places, job),
        "output": _Shell(f"{_SLOT}/{report_name(0)}"),
        "scores_output": _Shell(f"{_SLOT}/{scores_name(0)}"),
        "band_scores": band,
    }
    return _command(
        job,
        values,
        files={MANIFEST: manifest},
        inputs=(split, *inputs),
        reports={"file": "", "jobs": [{"entry": {}, "report": report_name(0), "scores": scores_name(0)}]},
    )


def _teacher(books: Books, places: Places, job: Job) -> Rendered:
    manifest, inputs = _manifest(places, job.members)
    split = places.split(job.generation)
    rows = []
    for member in job.members:
        scores = places.margins(books, job, member)
        rows.append({"run_id": member.run_id, "checkpoint": member.checkpoint, "scores": str(scores)})
        inputs = (*inputs, scores)
    values = {
        "margins": _here(MARGINS),
        "manifest": _here(MANIFEST),
        "split": split,
        "output": _here(OUTPUT),
    }
    files = {MANIFEST: manifest, MARGINS: json.dumps(rows, indent=1) + "\n"}
    return _command(job, values, files=files, inputs=(split, *inputs))


def _package(books: Books, places: Places, job: Job) -> Rendered:
    checkpoint = config = ""
    manifest: object = ""
    files: dict[str, str] = {}
    inputs: tuple[Path, ...]
    if job.ensemble:
        files[MANIFEST], inputs = _manifest(places, job.members)
        manifest = _here(MANIFEST)
    else:
        [member] = job.members
        inputs = member_files(places, member)
        config, checkpoint = (str(path) for path in inputs)
    report = places.report(books, job, job.reads["report"])
    values = {
        "checkpoint": checkpoint,
        "config": config,
        "manifest": manifest,
        "report": report,
        "campaign": places.folder,
        "output": _here(OUTPUT),
    }
    return _command(job, values, files=files, inputs=(*inputs, report))
