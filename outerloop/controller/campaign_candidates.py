"""A campaign's candidates file and base configs, as they lie on disk now.

Covered: reading both, their digests, soft-target files that exist. Not covered: parsing (outerloop.champion), which of
them are trained (outerloop.champion).

A missing or broken file is an answer, not an error: the campaign keeps its last valid list and says so in its ledger.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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

__all__ = ["BaseConfigError", "Listed", "base_config", "base_path", "read_candidates", "soft_target_path"]

MAX_FILE_BYTES = 16 << 20
"""Refuse to parse more: no list of candidates and no config is that large."""


@dataclass(frozen=True)
class Listed(CandidateList):
    """A valid list. `missing` names base configs that cannot be read."""

    missing: tuple[str, ...] = ()


class BaseConfigError(ValueError):
    """A base config cannot be used; the text says which and why."""


def read_candidates(
    setting: Setting, known: Iterable[Candidate], soft_targets: tuple[Path, int] | None
) -> Listed | BrokenCandidates:
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
    bases = _bases(setting, parsed.candidates)
    listed = replace(parsed, base_sha256=bases, present=_present(parsed.candidates, soft_targets))
    missing = dict.fromkeys(item.base for item in parsed.candidates if item.base not in bases)
    return Listed(listed.candidates, listed.digest, listed.base_sha256, listed.present, tuple(missing))


def _broken(
    setting: Setting, digest: str, reason: str, known: Iterable[Candidate], soft_targets: tuple[Path, int] | None
) -> BrokenCandidates:
    candidates = tuple(known)
    return BrokenCandidates(digest, reason, _bases(setting, candidates), _present(candidates, soft_targets))


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    return path.read_bytes().decode("utf-8")


def base_path(setting: Setting, base: str) -> Path:
    """A base config's path: relative ones start from the candidates file's folder."""
    return setting.candidates_path.parent / base


def soft_target_path(folder: Path, path: str) -> Path:
    """A soft-target file's path: relative ones start from the campaign's folder."""
    return folder / path


def _bases(setting: Setting, candidates: Iterable[Candidate]) -> dict[str, str]:
    found = {}
    for base in dict.fromkeys(candidate.base for candidate in candidates):
        try:
            found[base] = content_digest(base_path(setting, base))
        except OSError:
            continue
    return found


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
