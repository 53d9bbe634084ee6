"""`campaign.toml`: what a campaign runs, how it compares, and when it stops.

Covers the model, its checks and `parse_campaign`, which reports every problem at once. Not covered: candidates
(candidates.py), and reading files.
"""

from __future__ import annotations

import string
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from outerloop.champion.reserve import DEFAULT_ALPHA, ReserveRule
from outerloop.champion.rows import DEFAULT_OBJECTIVES, Objective
from outerloop.champion.toml_source import ConfigError, TomlSource, nearest, parse_model
from outerloop.champion.work import Number, Resources, Seed, Whole

__all__ = ["COMMAND_FIELDS", "CampaignConfig", "Command", "Commands", "ConfigError", "Rules", "parse_campaign"]

MOST_WHOLE = 2**63 - 1
"""The largest count and seed: what a signed 64-bit integer holds, as databases and splitters have them."""
MOST_SEED = 2**62
"""Seeds count up from the base, and all of them are signed 64-bit integers."""

# Named fields that a command's template may use, and those without which it can't do its work.
COMMAND_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "split": (
        frozenset({"generation", "seed", "validation_fraction", "held_out_fraction", "output"}),
        frozenset({"seed", "output"}),
    ),
    "train": (
        frozenset({"config", "output", "seed", "split", "run_id", "generation", "round"}),
        frozenset({"config", "output"}),
    ),
    "evaluate": (
        frozenset({"jobs", "config", "role", "split", "generation", "score_cache", "output"}),
        frozenset({"jobs"}),
    ),
    "teacher": (
        frozenset({"margins", "manifest", "split", "generation", "output"}),
        frozenset({"margins", "output"}),
    ),
    "ensemble": (
        frozenset({"manifest", "role", "split", "generation", "score_cache", "output", "scores_output", "band_scores"}),
        frozenset({"manifest", "output", "scores_output"}),
    ),
    "package": (
        frozenset({"checkpoint", "config", "manifest", "report", "generation", "campaign", "output"}),
        frozenset(),
    ),
}


class Command(Resources):
    """A command template and what its job asks for."""

    command: str = Field(min_length=1, description="Template with named fields, for example {config}")

    @property
    def resources(self) -> Resources:
        """The resources alone."""
        return Resources(**{name: getattr(self, name) for name in Resources.model_fields})


def _bare_command(value: Any) -> Any:
    return {"command": value} if isinstance(value, str) else value


_Command = Annotated[Command, BeforeValidator(_bare_command)]


class Commands(BaseModel):
    """The commands of a campaign. Without `ensemble` none is scored; without `package` nothing is packaged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: _Command = Field(description="Splits the data of a generation.")
    train: _Command = Field(description="Trains one candidate.")
    evaluate: _Command = Field(description="Scores checkpoints on one role's items.")
    teacher: _Command | None = Field(default=None, description="Makes the soft targets that students learn from.")
    ensemble: _Command | None = Field(default=None, description="Scores several checkpoints together.")
    package: _Command | None = Field(default=None, description="Takes a champion away.")


class Rules(BaseModel):
    """How rows compare within a generation. A change opens a new generation, as rows no longer compare."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: Literal["result", "decided"] = Field(default="result", description="Which counts are compared.")
    objectives: tuple[Objective, ...] = Field(default=DEFAULT_OBJECTIVES, description="Error counts that are compared.")
    min_coverage: float = Field(default=0.0, description="Least decided share of every class.")
    reject_objective: bool = Field(default=False, description="Rejections are an objective of their own.")


class CampaignConfig(BaseModel):
    """The whole of `campaign.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the campaign")
    commands: Commands = Field(description="What it runs.")
    candidates: str = Field(min_length=1, description="Path of the candidates file, re-read every round")
    base_seed: Seed = Field(default=0, ge=0, le=MOST_SEED, description="Generation g is split with seed base_seed + g")
    train_seed_base: Seed = Field(
        default=0, ge=0, le=MOST_SEED, description="Round r is trained with seed train_seed_base + r"
    )
    parallel: Whole = Field(default=4, ge=1, description="Most live jobs of this campaign")
    max_rounds: Whole | None = Field(default=None, ge=1, description="Most rounds, over all generations")
    gpu_hours: Number | None = Field(default=None, gt=0, description="GPU-hours that this campaign may use")
    saturation_evals: Whole = Field(default=200, ge=1, description="New test rows after which the reserve is asked")
    max_reserve_checks: Whole = Field(default=3, ge=1, description="Passed checks after which a generation ends")
    alpha: Number = Field(default=DEFAULT_ALPHA, gt=0, lt=1, description="Level of the reserve check")
    reserve_rule: ReserveRule = Field(default="z", description="z, fisher or optimism")
    teacher_after_round: Whole = Field(default=0, ge=0, description="0: no teacher")
    teacher_file: str | None = Field(default=None, description="Soft-target file; {generation} is expanded")
    ensemble_from_round: Whole = Field(default=3, ge=1, description="First round whose ensemble is scored")
    ensemble_max: Whole = Field(default=24, ge=2, description="Most members of an ensemble")
    validation_fraction: Number = Field(default=0.10, gt=0, lt=1, description="Of what remains")
    held_out_fraction: Number = Field(default=0.10, gt=0, lt=1, description="Test, then reserve, of what remains")
    score_cache: bool = Field(default=True, description="Let evaluations reuse prepared inputs")
    compare: Literal["result", "decided"] = Field(default="result", description="Which counts are compared")
    min_coverage: Number = Field(default=0.0, ge=0, le=1, description="Least decided share of every class")
    reject_objective: bool = Field(default=False, description="Rejections are an objective of their own")
    objectives: tuple[Objective, ...] = Field(
        default=DEFAULT_OBJECTIVES,
        min_length=1,
        description="Error counts that are compared, each with its denominator",
    )
    no_eligible_exit_code: Whole = Field(default=3, ge=1, le=255, description="Exit code: no eligible checkpoint")
    no_eligible_marker: str = Field(default="no-eligible-checkpoint", min_length=1, description="... and its file")

    @property
    def rules(self) -> Rules:
        """The part that decides how rows compare."""
        return Rules(**{name: getattr(self, name) for name in Rules.model_fields})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [
            problem
            for name in Commands.model_fields
            if (command := getattr(self.commands, name)) is not None
            for problem in _template_problems(name, command.command)
        ]
        if self.max_rounds is None and self.gpu_hours is None:
            problems.append("a campaign needs an end: set max_rounds or gpu_hours")
        elif self.max_rounds is None and not self.commands.train.gpus:
            problems.append("gpu_hours alone never ends a campaign whose trainings use no GPU: set max_rounds")
        if self.teacher_after_round:
            for needed in ("teacher", "ensemble"):
                if getattr(self.commands, needed) is None:
                    problems.append(f"teacher_after_round = {self.teacher_after_round} needs commands.{needed}")
            if self.teacher_file is None:
                problems.append(f"teacher_after_round = {self.teacher_after_round} needs teacher_file")
        if self.teacher_file is not None and "{generation}" not in self.teacher_file:
            problems.append("teacher_file must contain {generation}: each generation has a teacher of its own")
        if self.compare != "decided":
            wrong = [key for key in ("min_coverage", "reject_objective") if getattr(self, key)]
            problems += [f'{key} needs compare = "decided"' for key in wrong]
        for key in ("name", "count"):
            values = [getattr(objective, key) for objective in self.objectives]
            if len(set(values)) != len(values):
                problems.append(f"objectives must differ in their {key}")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _template_problems(name: str, template: str) -> list[str]:
    allowed, required = COMMAND_FIELDS[name]
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return [f"commands.{name}: {error}; write {{{{ and }}}} for literal braces"]
    used = {part[1] for part in parts if part[1] is not None}
    problems = [
        f"commands.{name}: unknown field {{{field}}}; {nearest(field, sorted(allowed))}"
        for field in sorted(used - allowed)
    ]
    problems += [f"commands.{name}: field {{{field}}} is required" for field in sorted(required - used)]
    if any(part[2] or part[3] for part in parts):
        problems.append(f"commands.{name}: a field is a plain {{name}}, without format or conversion")
    return problems


def parse_campaign(text: str, filename: str = "campaign.toml") -> CampaignConfig:
    """The campaign of a TOML text. Raises ConfigError with every problem: file, line, key, nearest valid key."""
    return parse_model(CampaignConfig, TomlSource(text, filename))
