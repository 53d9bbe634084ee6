"""Write the pages of docs/reference/ from the code: commands, settings, files, events, the view's addresses, effects.

    python docs/generate_reference.py            writes the pages
    python docs/generate_reference.py --check    exits 1 and names the pages that are not what this would write

Pages depend on the code alone: no home folders, no dates, no number of this machine.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import generate_cli
from model_tables import cell, code, model_tables
from pydantic import BaseModel

FOLDER = Path(__file__).parent / "reference"


def _page(title: str, lead: str, *parts: str) -> str:
    note = "<!-- Written by docs/generate_reference.py; edit the code instead. -->"
    return "\n\n".join([f"# {title}", note, lead.strip(), *(part.strip() for part in parts)]) + "\n"


MACHINE = {
    "state": "`~/outerloop`",
    "python": "the one that runs",
    "local.cpus": "this machine's",
}


def settings() -> str:
    from outerloop.settings import Settings

    return _page(
        "Settings",
        """
`config.toml`: the file that `OUTERLOOP_CONFIG` names, else `~/.config/outerloop/config.toml` (`XDG_CONFIG_HOME` is
honoured). `outerloop init` writes it with every setting explained; `outerloop schema config` prints a schema for
editors.

Every key is an environment variable, too: `OUTERLOOP_` and the key in capitals, tables separated by two underscores,
such as `OUTERLOOP_STATE`, `OUTERLOOP_SLURM__BIN_DIR` or `OUTERLOOP_LANES__GPU__PARTITION`. A list is what a shell would
make of the text. An argument beats the environment, which beats the file, which beats the site's profile, which
beats the defaults.
""",
        model_tables(Settings, "Top of the file", said=False, defaults=MACHINE),
    )


def site_profile() -> str:
    from outerloop.site_profile import SHIPPED, SiteFacts

    names = ", ".join(f"`{path.stem}`" for path in sorted(SHIPPED.glob("*.toml")))
    return _page(
        "Site profile",
        f"""
What a site spells differently, in a file below `config.toml`: `site.toml` beside it, or the path or the shipped name
that `site` gives ({names}). `outerloop doctor --write` writes one from what it found. A profile may hold
`[slurm]`, `[wake]` and `[lanes.NAME]`, with the keys that [settings](settings.md) has for them, and `[site]`:
""",
        model_tables(SiteFacts, "`[site]`"),
    )


def contract() -> str:
    from outerloop.contract import Contract

    return _page(
        "Contract",
        """
`.outerloop.toml` at the top of a target, read from the base commit. How to write one:
[write a contract](../how-to/write-a-contract.md), where the keys of `rule` are, too. `outerloop contract check` says
what is wrong with one, with lines; `outerloop schema contract` prints a schema for editors.
""",
        model_tables(Contract, "Top of the file"),
    )


def campaign() -> str:
    from outerloop.champion.candidates import CandidatesFile
    from outerloop.champion.config import COMMAND_FIELDS, CampaignConfig

    fields = [
        "## Fields of commands",
        "",
        "A command may use these in braces.",
        "",
        "| command | fields |",
        "|---|---|",
    ]
    for name, (allowed, required) in COMMAND_FIELDS.items():
        listed = ", ".join(f"`{field}`" + (" (required)" if field in required else "") for field in sorted(allowed))
        fields.append(f"| `{name}` | {listed} |")
    return _page(
        "Campaign files",
        """
`campaign.toml`, given to `outerloop submit campaign`, and the candidates file that it names. How they are used:
[run a campaign](../how-to/run-a-campaign.md). `outerloop schema campaign` and `outerloop schema candidates` print
schemas for editors.
""",
        model_tables(CampaignConfig, "`campaign.toml`"),
        "\n".join(fields),
        model_tables(CandidatesFile, "The candidates file"),
    )


def challenge() -> str:
    from outerloop.compose.challenge import Challenge
    from outerloop.compose.serving import FLAVORS
    from outerloop.posttrain.config import Config

    flavors = ["## Flavors", "", "| flavor | GPU | GPUs |", "|---|---|---|"]
    flavors += [f"| `{name}` | {flavor.gpu} | {flavor.gpus} |" for name, flavor in FLAVORS.items()]
    return _page(
        "Challenge fragments",
        """
Post-training is put together from TOML fragments: `configs/models/`, `configs/methods/`, `configs/suites/` and
`configs/challenges/`. A fragment's name is its id. A model has `[model]`, a suite `[suite]`, a method every other
table of a pipeline's configuration; `[meta]` is for people: `name`, `status` (`"active"` ones are listed first) and
what else should be shown. `outerloop compose list` shows what there is, `outerloop compose check` what does not fit
together; `outerloop schema challenge` prints a schema for editors. How to:
[set up a challenge](../how-to/post-training-challenge.md).
""",
        model_tables(Challenge, "A challenge"),
        "\n".join(flavors),
        model_tables(Config, "A pipeline's configuration"),
    )


def plan() -> str:
    from outerloop.planner.catalog import GPUS
    from outerloop.planner.request import PlanRequest
    from outerloop.planner.shapes import SHAPES

    known = ["## Known names", "", "| what | names |", "|---|---|"]
    known += [f"| models | {', '.join(f'`{name}`' for name in SHAPES)} |"]
    known += [f"| GPUs | {', '.join(f'`{name}`' for name in GPUS)} |"]
    return _page(
        "Plan request",
        """
What `outerloop plan` reads: a TOML or JSON file, or the same as options. How it is used:
[plan a training](../how-to/plan-a-training.md). A price, a link or an amount of work that is not given stays
unknown, and an unknown figure never passes a limit.
""",
        model_tables(PlanRequest, "Top of the file"),
        "\n".join(known),
    )


def events() -> str:
    from outerloop.champion.events import Event
    from outerloop.controller.ledger import EVENTS

    parts = [
        """
Every fact that the inputs do not determine is a file, written once, before its transaction commits:
`runs/<id>/events/<seq>.json`, `{"schema", "run", "seq", "kind", "at", "body"}`. `outerloop db rebuild` folds them;
nothing else is needed to know a verdict again. A campaign has a ledger of its own besides, with more kinds.
""".strip(),
        "## Events of a run",
    ]
    for kind, (said, fields) in EVENTS.items():
        rows = "\n".join(f"| {code(key)} | {cell(meaning)} |" for key, meaning in fields.items())
        parts.append(f"### `{kind}`\n\n{said}\n\n| key | meaning |\n|---|---|\n{rows}")
    parts += [
        "## Events of a campaign",
        "`campaign events RUN` prints them as JSON Lines. Keys that have their default are left out of frequent kinds.",
    ]
    for model in get_args(get_args(Event)[0]):
        parts.append(_event_tables(model))
    return _page("Events", parts[0], *parts[1:])


def _event_tables(model: type[BaseModel]) -> str:
    kind = str(model.model_fields["kind"].default)
    return model_tables(model, f"`{kind}` events", level=3)


def effects() -> str:
    from outerloop.effects import EFFECTS, FAULT_VARIABLE

    rows = "\n".join(f"| {code(name)} | {cell(done)} |" for name, done in EFFECTS.items())
    return _page(
        "Effects",
        f"""
Everything durable that outerloop does has a name, and its tests kill a process just before and just after each.
`{FAULT_VARIABLE}=before:NAME:kill` does so by hand (`after:`; `stop` for SIGSTOP; `:N` for the N-th time). What makes
each of them safe: [park and resume](../explanation/park-and-resume.md#point-by-point).
""",
        f"| effect | what has happened when it is done |\n|---|---|\n{rows}",
    )


ADDRESSES = {
    "/api/status": "The worst problem, the last tick, the queue by reason, open runs by what they wait for.",
    "/api/runs": "Runs, newest first.",
    "/api/runs/{run}": "One run: measures, jobs, events, timeline, what can be done next.",
    "/api/runs/{run}/argument": "The argument of its verdict, with every number.",
    "/api/runs/{run}/logs": "The end of the logs of one measure.",
    "/api/benchmarks": "Benchmarks with their champions.",
    "/api/benchmarks/{target}/{benchmark}": "One benchmark: its champions and what was asked of it.",
    "/api/champions": "Champions, newest first.",
    "/api/campaigns": "Campaigns with the newest facts of their ledgers.",
    "/api/campaigns/{run}": "One campaign: generations, champions, reserve checks, jobs, one generation in full.",
    "/api/campaigns/{run}/events": "Its ledger, newest first.",
    "/api/queue": "Live jobs, and how many wait for which reason.",
    "/api/plans": "What plans expected beside what their trainings measured.",
    "/api/charts/days": "What the chart of runs by day draws.",
    "/api/charts/runs/{run}/{chart}": "What a run's chart draws: `pairs`, `looks`, `loss` or `memory`.",
    "/api/charts/campaigns/{run}/{chart}": "What a campaign's chart draws: `front`, `history` or `curves`.",
    "/api/charts/benchmarks/{target}/{benchmark}": "What the chart of a benchmark's champions draws.",
    "/api/folder": "What the folder or file says.",
    "/api/charts/{chart}": "What its chart draws: `loss` or `memory`.",
}
"""What each address answers. The addresses themselves are the application's routes."""


def api() -> str:
    from starlette.routing import Route

    from outerloop.viewer.app import folder_app, record_app

    def table(application: Any) -> str:
        rows = []
        for route in application.routes:
            if isinstance(route, Route) and route.path.startswith("/api/"):
                path = route.path.replace(":path", "")
                said = ADDRESSES.get(path)
                if said is None:
                    raise KeyError(f"{path} is new: say in ADDRESSES of {__file__} what it answers")
                asked = ", ".join(code(name) for name in _queries(route.endpoint))
                rows.append(f"| {code(path)} | {asked} | {cell(said)} |")
        return "| address | may be asked with | answer |\n|---|---|---|\n" + "\n".join(rows)

    class _Nothing:
        path = "."
        note = ""
        root = type("Root", (), {"path": "."})()

    nothing: Any = _Nothing()
    return _page(
        "The view's JSON",
        """
`outerloop view` answers with JSON below `/api/`: GET only, on this machine unless it was told otherwise, from a
connection that cannot write. Decimals and times are text; a number that is not finite is null. A list that takes
`limit` and `offset` says its `total`. An error is `{"error", "detail", "command"}` with the status 400, 404 or
503. Pages and safety: [look in a browser](../how-to/look-in-a-browser.md).
""",
        "## With a record\n\n" + table(record_app(nothing)),
        "## Of one folder or file\n\n" + table(folder_app(nothing)),
    )


def _queries(endpoint: Callable[..., Any]) -> Iterator[str]:
    """The query keys that a handler reads, itself or through functions of the viewer that it calls, in order."""
    module = inspect.getmodule(endpoint)
    assert module is not None
    seen: dict[str, None] = {}
    _read_queries(endpoint, module, seen, set())
    yield from seen


def _read_queries(function: Any, module: ModuleType, found: dict[str, None], done: set[str]) -> None:
    done.add(function.__name__)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        called, arguments = node.func, node.args
        if isinstance(called, ast.Attribute) and called.attr == "get":
            if ast.unparse(called.value).endswith(("query", "query_params")) and _literal(arguments[0]):
                found[_literal(arguments[0])] = None
        elif isinstance(called, ast.Name):
            if len(arguments) > 1 and ast.unparse(arguments[0]) == "request" and _literal(arguments[1]):
                found[_literal(arguments[1])] = None  # a helper that reads one key: number(request, "limit", …)
            inner = getattr(module, called.id, None)
            if inspect.isfunction(inner) and called.id not in done and inner.__module__.startswith("outerloop.viewer"):
                _read_queries(inner, sys.modules[inner.__module__], found, done)


def _literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": generate_cli.page,
    "settings.md": settings,
    "site-profile.md": site_profile,
    "contract.md": contract,
    "campaign.md": campaign,
    "challenge.md": challenge,
    "plan-request.md": plan,
    "events.md": events,
    "api.md": api,
    "effects.md": effects,
}


def main() -> int:
    """Write the pages, or compare them."""
    wanted = {name: make() for name, make in PAGES.items()}
    if "--check" in sys.argv[1:]:
        old = [name for name, text in wanted.items() if not (FOLDER / name).exists() or _there(name) != text]
        for name in old:
            print(f"{FOLDER / name} is not current: run python docs/generate_reference.py", file=sys.stderr)
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _there(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
