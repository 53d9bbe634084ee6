"""Pages that have drifted from the code: dead links, commands that do not exist, tables that are not the code's.

What the pages' commands print is tests/e2e/test_tutorial.py's affair; docs/reference/cli.md has a test of its own.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

from outerloop.climb.rule import _KEYS as RULE_KEYS
from outerloop.compute import reasons
from outerloop.contract import Benchmark, Budgets, EnvironmentSpec, GuardSpec, InputSpec, RegressionSpec, Scope
from outerloop.dispatch import evidence
from outerloop.effects import EFFECTS
from outerloop.slots.identity import Determinants
from tests.e2e.documents import REASONS, console_blocks, invocations

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
PAGES = sorted([TOP / "README.md", TOP / "CHANGELOG.md", *DOCS.glob("*.md"), *DOCS.glob("*/*.md")])
EXPLANATION = DOCS / "explanation"
CONTRACT_PAGE = DOCS / "how-to" / "write-a-contract.md"

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_OUR_MACHINES = re.compile(r"/work\b|/tmp/(?!ol-)|/root\b|/home/(?!ada\b)\w+|/mnt/|\bvm\b(?= job)")


def named(page: Path) -> str:
    return page.relative_to(TOP).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_every_relative_link_resolves(page: Path) -> None:
    """Links to other machines are not followed: a build must not depend on them. They must be encrypted ones."""
    for target in _LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            assert target.startswith(("https://", "mailto:")), target
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@every_page
def test_no_page_names_our_machines(page: Path) -> None:
    found = _OUR_MACHINES.search(page.read_text(encoding="utf-8"))
    assert found is None, found


def invoked(page: Path) -> Iterator[list[str]]:
    """Every command of a page's console blocks, run or not, and every `outerloop …` of its inline code, as words."""
    text = page.read_text(encoding="utf-8")
    for block in console_blocks(text):
        for command in block.commands:
            yield from invocations(command.text.replace("\\\n", " "))
    for code in re.findall(r"`(outerloop [^`\n]+)`", prose(page)):
        yield shlex.split(code)


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `outerloop` of every such command of a page."""
    for words in invoked(page):
        if Path(words[0]).name == "outerloop":
            yield words[1:]


def command_of(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that these words name, and the words that are left for it."""
    from outerloop.cli import app

    where: click.Command = app
    context = click.Context(app, info_name="outerloop")
    rest = list(words)
    while isinstance(where, click.Group) and rest and not rest[0].startswith("-"):
        inner = where.get_command(context, rest[0])
        if inner is None and words[0] == "plan":  # its own first word is a request unless it is a subcommand
            inner = where.get_command(context, "request")
            assert inner is not None
            return inner, click.Context(inner, parent=context), rest
        assert inner is not None, f"outerloop {' '.join(words)}: there is no {rest[0]}"
        where, rest = inner, rest[1:]
        context = click.Context(where, parent=context)
    if isinstance(where, click.Group) and words[:1] == ["plan"]:
        inner = where.get_command(context, "request")
        assert inner is not None
        where = inner
    return where, context, rest


@every_page
def test_every_command_and_option_exists(page: Path) -> None:
    """Options are parsed as the command itself would parse them, so one that lost its value is found, too."""
    for words in commands(page):
        where, context, rest = command_of(words)
        if isinstance(where, click.Group) or "--help" in rest:
            continue
        try:
            where.make_parser(context).parse_args(rest)
        except click.NoSuchOption as error:
            raise AssertionError(f"outerloop {' '.join(words)}: {error.format_message()}") from None
        except click.BadOptionUsage as error:
            # prose names an option without its value: `submit climb --candidates`
            assert words[-1] == error.option_name, f"outerloop {' '.join(words)}: {error.format_message()}"


@every_page
def test_every_file_module_and_make_target_of_a_command_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for program, *rest in invoked(page):
        if program == "make":
            asked = {word for word in rest if "=" not in word and not word.startswith("-")}
            assert asked <= targets, f"make {' '.join(rest)}"
        elif Path(program).name in {"python", "python3"} and rest[:1] == ["-m"] and rest[1].startswith("outerloop"):
            assert importlib.util.find_spec(rest[1]) is not None, f"{program} {' '.join(rest)}"
        else:
            for word in (program, *rest):
                if word.startswith(("docs/", "configs/", "slurm/", "tests/")):
                    assert (TOP / word).exists(), f"{program} {' '.join(rest)}"


LANGUAGES = frozenset({"console", "text", "toml", "json", "yaml", "python", "js"})
"""Of fenced blocks. Commands stand in console blocks alone, as only these are run; usage lines have no language."""

EXECUTED = {
    "README.md": "tests/e2e/test_tutorial.py",
    "docs/tutorial/index.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/recover.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/submit-many-candidates.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/write-a-contract.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/add-a-lane.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/post-training-challenge.md": "tests/e2e/test_tutorial.py",
    "docs/how-to/plan-a-training.md": "tests/unit/planner/test_how_to.py",
}
"""Page -> the test that runs all of its blocks that do not say why not."""

STRANGER = "tests/stranger/first_verdict.py"
NIGHTLY = "tests/e2e/test_manual_nightly.py"
SLURM = "tests/slurm/test_manual.py"
SERVICE = "tests/service/test_manual.py"
NEVER = {
    ("docs/how-to/look-in-a-browser.md", "ssh -L 8765:localhost:8765 login1"): "needs two machines; its other command,"
    " `outerloop view --token`, is run by " + NIGHTLY,
    (
        "docs/how-to/post-training-challenge.md",
        "python -m outerloop.posttrain entry.toml --out run --vllm",
    ): "needs a GPU and 3 GB of vLLM; `make test-gpu` and, on the CPU, `make test-vllm` serve with it",
}
"""(page, how the first command begins) of each block that no test types as it is -> why, and what is tested instead."""
ELSEWHERE = {
    ("README.md", "sudo apt-get update"): STRANGER,
    ("README.md", "python3 -m venv .venv"): STRANGER,
    ("docs/how-to/install-on-a-site.md", "python3 -m venv .venv"): STRANGER,  # the README's words, which is checked
    ("docs/how-to/install-on-a-site.md", "outerloop init --state ~/outerloop"): SLURM,
    ("docs/how-to/look-in-a-browser.md", "pip install 'outerloop-slurm[view]'"): NIGHTLY,
    ("docs/how-to/post-training-challenge.md", "pip install 'outerloop-slurm[posttrain]'"): NIGHTLY,
    ("docs/how-to/post-training-challenge.md", "outerloop challenge judge tiny-sums"): NIGHTLY,
    ("docs/how-to/post-training-challenge.md", "outerloop compose render tiny-sums --suite"): NIGHTLY,
    ("docs/how-to/run-a-campaign.md", "outerloop submit campaign digits.toml"): NIGHTLY,
    ("docs/how-to/run-a-campaign.md", "outerloop logs s-0123456789"): NIGHTLY,
    ("docs/how-to/submit-a-training.md", "outerloop plan --model llama-3.1-8b"): SLURM,
    ("docs/how-to/submit-a-training.md", "outerloop show RUN"): SLURM,
    ("docs/how-to/post-training-challenge.md", "HF_TOKEN=… python -m outerloop.posttrain.fetch"): NIGHTLY,
    ("docs/how-to/serve-other-accounts.md", "outerloop init --state /srv/outerloop/state"): SERVICE,
    ("docs/how-to/serve-other-accounts.md", "outerloop db grant outerloop_service"): SERVICE,
    ("docs/how-to/training-helper.md", "OUTERLOOP_CKPT_DIR=ckpt"): NIGHTLY,
}
"""The same for blocks that are only shown to most tests -> the test that types them, by night or in a clean system."""


@every_page
def test_every_block_is_run_by_a_test_or_says_why_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    generated = page.is_relative_to(DOCS / "reference")
    for language in re.findall(r"^```(\w*)[^\n]*\n.*?^```$", text, re.DOTALL | re.MULTILINE):
        assert language in LANGUAGES or (generated and not language), f"a block in {language or 'no language'}"
    for block in console_blocks(text):
        where = f"{named(page)}:{block.line}"
        if not block.why_not:
            assert named(page) in EXECUTED, f"{where}: no test runs it, and it does not say why"
        elif block.why_not.startswith("tests/"):
            assert (TOP / block.why_not).is_file(), f"{where}: there is no {block.why_not}"
        else:
            assert block.why_not in REASONS, f"{where}: {block.why_not!r} is no reason of {sorted(REASONS)}"


def test_every_block_that_is_not_run_by_day_has_its_test_or_its_reason() -> None:
    wanted = {**ELSEWHERE, **NEVER}
    used = set()
    for page in PAGES:
        for block in console_blocks(page.read_text(encoding="utf-8")):
            if not block.why_not or block.why_not.startswith("tests/"):
                continue
            keys = [key for key in wanted if key[0] == named(page) and block.commands[0].text.startswith(key[1])]
            assert len(keys) == 1, f"{named(page)}:{block.line}: no test types it, and NEVER does not say why"
            used.update(keys)
    assert used == set(wanted), set(wanted) - used
    for (page_name, first), test in ELSEWHERE.items():
        text = (TOP / test).read_text(encoding="utf-8")
        if test == STRANGER:
            assert "README.md" in text
        else:
            assert Path(page_name).name in text, f"{test} does not type {first!r} of {page_name}"
    installing = [
        [command.text for command in block.commands]
        for name in ("README.md", "docs/how-to/install-on-a-site.md")
        for block in console_blocks((TOP / name).read_text(encoding="utf-8"))
        if block.commands[0].text.startswith("python3 -m venv")
    ]
    assert len(installing) == 2 and installing[0] == installing[1]


def test_the_tests_that_run_pages_name_them() -> None:
    for page, test in EXECUTED.items():
        assert (TOP / page).is_file()
        assert Path(page).name in (TOP / test).read_text(encoding="utf-8"), f"{test} does not run {page}"


def test_the_checks_of_commands_would_find_something(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ A=b outerloop submit climb x --allowed y > f\nout\n```\n`outerloop nosuch`\n")
    assert list(commands(page)) == [["submit", "climb", "x", "--allowed", "y"], ["nosuch"]]
    with pytest.raises(AssertionError, match="--allowed"):
        test_every_command_and_option_exists(page)
    page.write_text("```console\n$ outerloop show RUN && outerloop submit climb x --base\n```\n")
    assert list(commands(page)) == [["show", "RUN"], ["submit", "climb", "x", "--base"]]
    page.write_text("```console\n$ make nothing\n```\n")
    with pytest.raises(AssertionError, match="make nothing"):
        test_every_file_module_and_make_target_of_a_command_exists(page)


# ------------------------------------------------------------------------------------------ tables and code


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    text = page.read_text(encoding="utf-8")
    _, found, below = text.partition(f"\n{heading}\n")
    assert found, f"{page.name} has no {heading}"
    table: list[list[str]] = []
    for line in below.splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
        elif table:
            break
    return table[2:]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def decisions_of_the_code() -> set[tuple[str, str]]:
    """(action, reason) of every `Decision(…)` in the module; `*` for a reason that is not written there."""
    module = ast.parse(Path(evidence.__file__).read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Decision":
            action = node.args[0]
            assert isinstance(action, ast.Attribute)
            reason = node.args[1] if len(node.args) > 1 else ast.Constant("")
            found.add((action.attr, str(reason.value) if isinstance(reason, ast.Constant) else "*"))
    return found


def test_the_evidence_table_is_the_codes() -> None:
    page = EXPLANATION / "evidence.md"
    shown = set()
    for _evidence, action, reason in rows(page, "## The table"):
        [name] = codes(action)
        shown.add((name, "*" if "its own" in reason else "".join(codes(reason))))
    assert shown == decisions_of_the_code()
    acted = {name for row in rows(page, "## What an action does") for name in codes(row[0])}
    assert acted == {action.name for action in evidence.Action}
    intents = {name for row in rows(page, "## Submissions whose outcome nobody knows") for name in codes(row[1])}
    assert intents == {action.name for action in evidence.IntentAction}


@pytest.mark.parametrize(
    ("lead", "reasons"),
    [("Never the candidate's:", evidence.INFRASTRUCTURE_REASONS), ("Never clears:", reasons.NEVER)],
)
def test_the_lists_of_reasons_are_the_codes(lead: str, reasons: frozenset[str]) -> None:
    text = (EXPLANATION / "evidence.md").read_text(encoding="utf-8")
    assert set(codes(text.partition(f"\n{lead}")[2].partition("\n\n")[0])) == reasons


def test_the_determinants_are_the_codes() -> None:
    shown = [name for row in rows(EXPLANATION / "identity.md", "## Determinants") for name in codes(row[0])]
    assert sorted(shown) == sorted(["schema", *(item.name for item in fields(Determinants))])


def test_every_effect_has_its_argument() -> None:
    shown = [name for row in rows(EXPLANATION / "park-and-resume.md", "## Point by point") for name in codes(row[0])]
    assert sorted(shown) == sorted(EFFECTS)


def spelled(value: Any) -> str:
    """A default as TOML, or empty for none."""
    if value is None or value in ("", (), {}) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def contract_rows(model: type[BaseModel]) -> list[list[str]]:
    """What the page says of each key: name, default, and the field's own description."""
    return [
        [
            f"`{name}`",
            "required" if field.is_required() else spelled(field.get_default(call_default_factory=True)),
            (field.description or "").replace("|", "\\|"),
        ]
        for name, field in model.model_fields.items()
    ]


CONTRACT_TABLES: dict[str, type[BaseModel]] = {
    "### Keys of a benchmark": Benchmark,
    "### `regression`": RegressionSpec,
    "### `guards`": GuardSpec,
    "### `inputs`": InputSpec,
    "## `[environment]`": EnvironmentSpec,
    "## `[scope]`": Scope,
    "## `[budgets]`": Budgets,
}


@pytest.mark.parametrize("heading", CONTRACT_TABLES)
def test_the_contracts_keys_are_the_codes(heading: str) -> None:
    assert rows(CONTRACT_PAGE, heading) == contract_rows(CONTRACT_TABLES[heading])


def test_the_rules_keys_are_the_codes() -> None:
    shown = {codes(row[0])[0]: set(codes(row[1])) for row in rows(CONTRACT_PAGE, "### `rule`")}
    assert shown == {kind: set(keys) for kind, keys in RULE_KEYS.items()}


def test_the_contract_of_the_page_is_one() -> None:
    from outerloop.contract import parse_contract

    example = re.search(r"```toml title=\"\.outerloop\.toml\"\n(.*?)```", CONTRACT_PAGE.read_text(), re.DOTALL)
    assert example is not None
    assert parse_contract(example[1], "page").benchmarks


def test_every_page_is_in_the_navigation() -> None:
    navigation = (TOP / "mkdocs.yml").read_text(encoding="utf-8")
    shown = set(re.findall(r"^ +- .*?([\w./-]+\.md)$", navigation, re.MULTILINE))
    there = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    assert shown == there


def test_the_error_rates_of_the_page_are_the_shipped_ones() -> None:
    spec = importlib.util.spec_from_file_location("generate_error_rates", DOCS / "generate_error_rates.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "measured.md").read_text(encoding="utf-8")
    assert page == module.written(page)
    assert "⚠" in page, "the rates that a rule does not hold are not marked"


def test_what_the_makefile_asks_of_the_setup_script_is_there() -> None:
    """A merge lost one once, and its target ended before it began."""
    asked = set(re.findall(r"\.ci/setup (\w+)", (TOP / "Makefile").read_text()))
    known = set(re.findall(r"^  (\w+)\)", (TOP / ".ci" / "setup").read_text(), re.MULTILINE))
    assert asked and asked <= known, asked - known
