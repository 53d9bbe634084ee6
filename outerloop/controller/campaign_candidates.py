"""A campaign's candidates file and base configs, as they lie on disk now.

Covered: reading both, their digests, soft-target files that exist. Not covered: parsing (outerloop.champion), which of
them are trained (outerloop.champion).

A missing or broken file is an answer, not an error: the campaign keeps its last valid list and says so in its ledger.
So is a file whose active candidates have a base config that can't be used: each round would only fail.
"""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from outerloop.champion import (
    BrokenCandidates,
    Candidate,
    CandidateList,
    ConfigError,
    parse_candidates,
    text_digest,
)
from outerloop.controller.campaign_request import Setting
from outerloop.controller.content import content_digest
from outerloop.plain_files import read_plain

__all__ = ["BaseConfigError", "base_config", "base_path", "read_candidates", "soft_target_path", "watched"]

MAX_FILE_BYTES = 16 << 20
"""Refuse to parse more: no list of candidates and no config is that large."""


class BaseConfigError(ValueError):
    """A base config cannot be used; the text says which and why."""


def read_candidates(
    setting: Setting, known: Iterable[Candidate], soft_targets: tuple[Path, int] | None
) -> CandidateList | BrokenCandidates:
    """The candidates file now. `known` are the candidates of the last valid list, which a broken file leaves in force;
    `soft_targets` is (the campaign's folder, the generation), None before the first."""
    path = setting.candidates_path
    text = ""
    try:
        text = _text(path)
        parsed = parse_candidates(text, str(path))
    except OSError as error:
        # Each way of being unreadable is told once.
        why = f"{path}: {error.strerror or error}"
        return _broken(setting, text_digest(why), why, known, soft_targets)
    except ConfigError as error:
        return _broken(setting, text_digest(text), str(error), known, soft_targets)
    except ValueError as error:
        return _broken(setting, text_digest(f"{path}: {error}"), f"{path}: {error}", known, soft_targets)
    bases, unusable = _bases(setting, parsed.candidates)
    if unusable:
        lines = [f"{path}: candidate {name}: {why}" for name, why in _unusable(parsed.candidates, unusable)]
        told = "\n".join(lines)
        return _broken(setting, text_digest(f"{text}\0{told}"), told, known, soft_targets)
    return replace(parsed, base_sha256=bases, present=_present(parsed.candidates, soft_targets))


def watched(setting: Setting, known: Iterable[Candidate], soft_targets: tuple[Path, int] | None) -> list[Path]:
    """Every file that `read_candidates` would look at."""
    try:
        listed = parse_candidates(_text(setting.candidates_path)).candidates
    except (OSError, ConfigError, ValueError):
        listed = ()
    found = {setting.candidates_path: None}
    for candidate in (*listed, *known):
        found[base_path(setting, candidate.base)] = None
        soft = candidate.soft_targets(soft_targets[1]) if soft_targets is not None else None
        if soft is not None and soft_targets is not None:
            found[soft_target_path(soft_targets[0], soft)] = None
    return list(found)


def _unusable(candidates: Iterable[Candidate], unusable: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(item.name, unusable[item.base]) for item in candidates if item.active and item.base in unusable]


def _broken(
    setting: Setting, digest: str, reason: str, known: Iterable[Candidate], soft_targets: tuple[Path, int] | None
) -> BrokenCandidates:
    candidates = tuple(known)
    bases, unusable = _bases(setting, candidates)
    return BrokenCandidates(digest, reason, bases, _present(candidates, soft_targets), frozenset(unusable))


def _text(path: Path) -> str:
    return read_plain(path, MAX_FILE_BYTES).decode("utf-8")


def base_path(setting: Setting, base: str) -> Path:
    """A base config's path: relative ones start from the candidates file's folder."""
    return setting.candidates_path.parent / base


def soft_target_path(folder: Path, path: str) -> Path:
    """A soft-target file's path: relative ones start from the campaign's folder."""
    return folder / path


def _bases(setting: Setting, candidates: Iterable[Candidate]) -> tuple[dict[str, str], dict[str, str]]:
    """(digests of the base configs, why those of active candidates that can't be used can't)."""
    found, unusable = {}, {}
    active = {candidate.base for candidate in candidates if candidate.active}
    for base in dict.fromkeys(candidate.base for candidate in candidates):
        path = base_path(setting, base)
        try:
            found[base] = content_digest(path)
            why = _judged(path, found[base])
        except OSError as error:
            why = f"{path}: {error.strerror or error}{_similar(path)}"
        if why and base in active:
            unusable[base] = why
    return found, unusable


def _judged(path: Path, digest: str) -> str:
    """Why a base config can't be used; "" when it can. A file is parsed once."""
    key = (str(path), digest)
    if key not in _judgements:
        try:
            base_config(path)
            _judgements[key] = ""
        except BaseConfigError as error:
            _judgements[key] = str(error)
    return _judgements[key]


_judgements: dict[tuple[str, str], str] = {}


def _similar(path: Path) -> str:
    """The file beside it that may have been meant."""
    try:
        names = [item.name for item in path.parent.iterdir() if item.is_file()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _present(candidates: Iterable[Candidate], soft_targets: tuple[Path, int] | None) -> dict[str, str]:
    if soft_targets is None:
        return {}
    folder, generation = soft_targets
    found = {}
    for candidate in candidates:
        path = candidate.soft_targets(generation)
        if path is None:
            continue
        try:
            found[path] = content_digest(soft_target_path(folder, path))
        except OSError:
            continue
    return found


def base_config(path: Path) -> Mapping[str, Any]:
    """The mapping in a base config, YAML or JSON. Raises BaseConfigError, OSError."""
    try:
        loaded = yaml.safe_load(_text(path))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise BaseConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:
        raise BaseConfigError(f"{path}: {error}") from None
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise BaseConfigError(f"{path}: a base config is a mapping, this is a {type(loaded).__name__}")
    problem = _not_json(loaded, "")
    if problem:
        raise BaseConfigError(f"{path}: {problem}")
    return loaded


def _not_json(value: Any, where: str) -> str:
    """What the value holds that JSON, in which configs are rendered, does not know; "" for nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{where or 'the top level'} has the key {key!r}, and only texts can be keys"
            if problem := _not_json(inner, f"{where}.{key}".lstrip(".")):
                return problem
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if problem := _not_json(inner, f"{where}[{number}]"):
                return problem
    elif isinstance(value, datetime.date):
        return f"{where} is a date to YAML; put it in quotes"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{where} is {value}, which a config can't carry"
    elif not isinstance(value, str | bool | int | float | None):
        return f"{where} is a {type(value).__name__}, which a config can't carry"
    return ""
