"""Campaign and candidates files: every mistake at once, each with its line and the nearest right thing."""

from __future__ import annotations

import pytest

from outerloop.champion import ConfigError, config_text, parse_campaign, parse_candidates, render_config
from outerloop.champion.config import COMMAND_FIELDS, CampaignConfig, Commands
from tests.unit.champion.world import CAMPAIGN, campaign

BROKEN = """\
name = "digits"
paralell = 4
alpha = 2.0
candidates = "candidates.toml"   # max_rounds = 3

[commands]
split = "split {seed} {output}"
train = "train {confg} {output}"

[commands.evaluate]
command = "evaluate {jobs}"
minuts = 3

[[objectives]]
name = "a"
count = "a"
total = "n"

[[objectives]]
name = "b"
kount = "b"
total = "n"
"""


def _problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_campaign(text, "c.toml")
    return caught.value.problems


def test_a_minimal_campaign_has_the_documented_defaults() -> None:
    config = parse_campaign("max_rounds = 2\n" + CAMPAIGN)
    assert (config.saturation_evals, config.max_reserve_checks, config.alpha) == (200, 3, 0.01)
    assert (config.teacher_after_round, config.ensemble_from_round, config.ensemble_max) == (0, 3, 24)
    assert (config.validation_fraction, config.held_out_fraction) == (0.10, 0.10)
    assert (config.compare, config.reserve_rule, config.min_coverage, config.reject_objective) == (
        "result",
        "z",
        0.0,
        False,
    )
    assert [objective.name for objective in config.objectives] == ["fail_to_pass", "pass_to_fail"]


def test_every_problem_is_reported_at_once_in_order_of_lines() -> None:
    problems = _problems(BROKEN)
    places = [problem.split(": ")[:2] for problem in problems]
    assert places == [
        ["c.toml:2", "paralell"],
        ["c.toml:3", "alpha"],
        ["c.toml:12", "commands.evaluate.minuts"],
        ["c.toml:19", "objectives[2].count"],
        ["c.toml:21", "objectives[2].kount"],
    ]
    assert problems[0].endswith("unknown key; did you mean parallel?")
    assert "less than 1 (found 2.0)" in problems[1]
    assert problems[2].endswith("did you mean minutes?")
    assert problems[3].endswith("required key is missing")
    assert problems[4].endswith("did you mean count?")


def test_the_line_is_that_of_the_key_whatever_stands_around_it() -> None:
    text = (
        'max_rounds = 2\nname = """\nparalell = 1\n"""\n'
        'commands.split = "a {seed} {output}"\ncommands.train = "b"\n'
        'candidates = ["x",\n  "paralell = 2",\n]\n"parallel" = 0\n'
    )
    problems = _problems(text)
    assert [problem.split(": ")[0] for problem in problems] == ["c.toml:2", "c.toml:5", "c.toml:7", "c.toml:10"]
    assert problems[1].startswith("c.toml:5: commands.evaluate: required key")


def test_broken_toml_and_duplicate_keys_name_their_line() -> None:
    assert _problems("a = 1\nb = \n")[0].startswith("c.toml:2: not valid TOML: ")
    assert _problems("a = 1\n\na = 2\n")[0].startswith("c.toml:3: not valid TOML: ")
    assert _problems('a = "')[0].startswith("c.toml:1: not valid TOML: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CAMPAIGN, "set max_rounds or gpu_hours"),
        ("gpu_hours = 3.0\n" + CAMPAIGN, "trainings use no GPU: set max_rounds"),
        ("max_rounds = 1\n" + CAMPAIGN.replace("{config}", "{confg}"), "unknown field {confg}; did you mean config?"),
        ("max_rounds = 1\n" + CAMPAIGN.replace("{jobs}", ""), "commands.evaluate: field {jobs} is required"),
        ("max_rounds = 1\n" + CAMPAIGN.replace("{jobs}", "{jobs} {"), "literal braces"),
        ("max_rounds = 1\n" + CAMPAIGN.replace("{jobs}", "{jobs!r}"), "a field is a plain {name}"),
        ("max_rounds = 1\n" + CAMPAIGN.replace("g{generation}", "g"), "must contain {generation}"),
        ("max_rounds = 1\nmin_coverage = 0.5\n" + CAMPAIGN, 'min_coverage needs compare = "decided"'),
        ("max_rounds = 1\nparallel = true\n" + CAMPAIGN, "c.toml:2: parallel"),
        ('max_rounds = 1\nparallel = "3"\n' + CAMPAIGN, "c.toml:2: parallel"),
        ("max_rounds = 1\nparallel = 2.0\n" + CAMPAIGN, "c.toml:2: parallel"),
        ("max_rounds = 1\nparallel = 1000000000000000000000\n" + CAMPAIGN, "c.toml:2: parallel"),
        ("max_rounds = 1\ngpu_hours = inf\n" + CAMPAIGN, "c.toml:2: gpu_hours"),
        ("max_rounds = 1\nalpha = true\n" + CAMPAIGN, "c.toml:2: alpha"),
        ('max_rounds = 1\nalpha = "0.1"\n' + CAMPAIGN, "c.toml:2: alpha"),
    ],
)
def test_what_does_not_fit_together_is_said(text: str, said: str) -> None:
    assert said in "\n".join(_problems(text))


def test_a_teacher_needs_its_commands_and_its_file() -> None:
    text = "max_rounds = 1\nteacher_after_round = 2\n" + "\n".join(
        line for line in CAMPAIGN.splitlines() if not line.startswith(("teacher", "ensemble"))
    )
    said = "\n".join(_problems(text))
    for needed in ("commands.teacher", "commands.ensemble", "teacher_file"):
        assert needed in said


def test_commands_take_resources_and_braces() -> None:
    text = "gpu_hours = 9.0\n" + CAMPAIGN.replace(
        'train = "train {config} --out {output}"',
        'train = { command = "t {config} {output} {{x}}", gpus = 2, minutes = 30 }',
    )
    config = parse_campaign(text)
    assert config.commands.train.resources.gpu_hours == 1.0


def test_every_command_has_its_fields_and_every_key_its_place_in_the_rules() -> None:
    assert set(COMMAND_FIELDS) == set(Commands.model_fields)
    assert all(required <= allowed for allowed, required in COMMAND_FIELDS.values())
    assert campaign(compare="decided", reject_objective=True).rules.reject_objective
    assert all(name in CampaignConfig.model_fields for name in campaign().rules.model_dump())


def test_candidates_are_parsed_and_expanded() -> None:
    parsed = parse_candidates(
        '[[candidates]]\nname = "s"\nbase = "b.yaml"\n'
        '[candidates.overrides]\ngate_soft_targets = "t/{generation}.npz"\nnested = { a = ["{generation}"] }\n'
    )
    student = parsed.candidates[0]
    assert student.soft_targets(7) == "t/007.npz"
    assert parsed.digest != parse_candidates("candidates = []").digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[candidates]]\nname = "a b"\nbase = "x"', "c.toml:2: candidates[1].name"),
        ('[[candidates]]\nname = "a"\nbase = "x"\noverrides = { seed = 1 }', "seed are set by the campaign"),
        ('[[candidates]]\nname = "a"\nbase = "x"\n[[candidates]]\nname = "A"\nbase = "x"', "must differ"),
        ('[[candidate]]\nname = "a"', "did you mean candidates?"),
        ('[[candidates]]\nname = "a"\nbasis = "x"', "c.toml:3: candidates[1].basis: unknown key; did you mean base?"),
        ('[[candidates]]\nname = "a"\nbase = "x"\noverrides = { gate_soft_targets = 3 }', "path of a soft-target file"),
    ],
)
def test_a_broken_candidates_file_says_what_and_where(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_candidates(text, "c.toml")
    assert said in str(caught.value)


def test_a_training_config_is_base_then_overrides_then_split_and_seed() -> None:
    config = render_config({"a": {"x": 1}, "seed": 0}, {"a": {"y": 2}}, split="s", seed=5)
    assert config == {"a": {"y": 2}, "seed": 5, "split": "s"}
    assert config_text(config) == config_text(dict(reversed(config.items())))
    with pytest.raises(ValueError, match="JSON"):
        config_text({"a": float("nan")})
