"""The candidates file of a campaign: which models are trained in every round. Takes text, never a path.

Covers parsing with all errors at once, `{generation}` expansion, students, and rendering a training config.
Not covered: reading base configs or soft-target files; the caller tells their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from outerloop.champion.toml_source import TomlSource, parse_model

SOFT_TARGETS_KEY = "gate_soft_targets"
GENERATION_FIELD = "{generation}"
# Set by the campaign itself after the overrides, so a candidate may not set them.
RESERVED_KEYS = ("split", "seed")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Candidate(BaseModel):
    """A name, a base config and overrides; trained once per round unless it sits out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME_PATTERN, description="Part of the run id champ-g###-r####-NAME")
    base: str = Field(min_length=1, description="Path of the base config (YAML)")
    overrides: dict[str, JsonValue] = Field(default_factory=dict, description="Replaced at top level")
    active: bool = Field(default=True, description="false: listed, but not trained")

    @field_validator("overrides")
    @classmethod
    def _not_reserved(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        clash = [key for key in RESERVED_KEYS if key in value]
        if clash:
            raise ValueError(f"{' and '.join(clash)} are set by the campaign; remove them from the overrides")
        soft = value.get(SOFT_TARGETS_KEY)
        if soft is not None and not (isinstance(soft, str) and soft):
            raise ValueError(f"{SOFT_TARGETS_KEY} must be the path of a soft-target file")
        return value

    def soft_targets(self, generation: int) -> str | None:
        """Path of the soft-target file that a student of this generation learns from; None for ordinary ones."""
        path = self.overrides.get(SOFT_TARGETS_KEY)
        return expand_generation(path, generation) if isinstance(path, str) else None


class CandidatesFile(BaseModel):
    """The file as it is written: what a campaign trains in each round."""

    model_config = ConfigDict(extra="forbid")

    candidates: list[Candidate] = Field(default_factory=list, description="The candidates.")

    @model_validator(mode="after")
    def _distinct(self) -> CandidatesFile:
        # A case-insensitive file system would give two such candidates one folder.
        names = [candidate.name.casefold() for candidate in self.candidates]
        twice = sorted({c.name for c in self.candidates if names.count(c.name.casefold()) > 1})
        if twice:
            raise ValueError(f"candidate names must differ (also in more than case): {', '.join(twice)}")
        return self


@dataclass(frozen=True)
class CandidateList:
    """A valid candidates file, with what the caller found on disk.

    `digest` is the SHA-256 of the text. `base_sha256` maps base config paths to the SHA-256 of their content,
    `present` maps soft-target paths (expanded) that exist to theirs. `missing` are bases that can't be used:
    candidates with one sit out until it can.
    """

    candidates: tuple[Candidate, ...]
    digest: str
    base_sha256: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BrokenCandidates:
    """A candidates file that could not be used: pass it to next_work, which keeps the last valid list.

    `base_sha256`, `present` and `missing` are as in CandidateList, for the candidates of that last list.
    """

    digest: str
    reason: str
    base_sha256: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


def expand_generation(value: Any, generation: int) -> Any:
    """`value` with {generation} in every string replaced by the three-digit generation."""
    if isinstance(value, str):
        return value.replace(GENERATION_FIELD, f"{generation:03d}")
    if isinstance(value, list):
        return [expand_generation(item, generation) for item in value]
    if isinstance(value, dict):
        return {key: expand_generation(item, generation) for key, item in value.items()}
    return value


def text_digest(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_candidates(text: str, filename: str = "candidates.toml") -> CandidateList:
    """The candidates of a TOML text. Raises ConfigError with every problem, each with its line."""
    parsed = parse_model(CandidatesFile, TomlSource(text, filename))
    return CandidateList(tuple(parsed.candidates), text_digest(text))


def render_config(base: Mapping[str, Any], overrides: Mapping[str, Any], *, split: str, seed: int) -> dict[str, Any]:
    """The training config: the base, overrides replaced at top level, then `split` (a path) and `seed`."""
    return {**base, **overrides, "split": split, "seed": seed}


def config_text(config: Mapping[str, Any]) -> str:
    """The config as JSON, which is also YAML 1.2; equal configs give equal bytes. Raises ValueError on NaN."""
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
