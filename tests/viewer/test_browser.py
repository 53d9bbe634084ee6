"""A person's browser, Debian's Chromium, on every page of a record that real runs filled.

Attacked here: errors in the console, charts that stay empty, pages wider than the screen, pages that stand still while
runs move, keys that lead nowhere, pages that need a script, words that are not there in the dark. Screenshots of every
page at both widths, light and dark, are kept in .screenshots/ (`OUTERLOOP_SCREENSHOTS` names another folder).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outerloop.controller.deployment import account
from outerloop.viewer.app import folder_app, record_app
from outerloop.viewer.folder import recognised
from outerloop.viewer.source import Source
from tests.controller_rig.campaigns import CampaignWorld
from tests.postgres.conftest import _database_url, _execute
from tests.viewer.real import describe, fill, verdicts
from tests.viewer.serving import Asking, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOP = Path(__file__).resolve().parents[2]
WIDTHS = (1280, 400)
SCHEMES = ("light", "dark")
PATIENCE_MS = 60_000
EMPTY_CHART = "[data-chart]:not(:has(svg.main-svg))"
CONTRAST = 4.5
"""WCAG 2.2, 1.4.3: between text of ordinary size and its ground."""


@dataclass
class Shown:
    """The served record of real runs, and a browser."""

    world: CampaignWorld
    runs: dict[str, str]
    asking: Asking
    browser: Browser
    shots: Path
    said: list[str] = field(default_factory=list)
    """What a page's console said at the level of a warning or worse, and what failed to load."""

    @property
    def target(self) -> str:
        return self.world.run(self.runs["better"]).target

    def pages(self) -> dict[str, str]:
        run = self.runs
        return {
            "overview": "/",
            "runs": "/runs",
            "runs-filtered": "/runs?state=ended&verdict=rejected&author=nobody",
            "run-accepted": f"/runs/{run['better']}",
            "run-rejected": f"/runs/{run['bigger']}",
            "run-failed": f"/runs/{run['crash']}",
            "run-waiting": f"/runs/{run['waiting']}",
            "training": f"/runs/{run['training']}",
            "training-planned": f"/runs/{run['tune']}",
            "logs": f"/runs/{run['crash']}/logs",
            "benchmarks": "/benchmarks",
            "benchmark": f"/benchmarks/{self.target}/speed",
            "campaigns": "/campaigns",
            "campaign": f"/campaigns/{run['campaign']}",
            "campaign-first": f"/campaigns/{run['campaign']}?generation=1",
            "campaign-events": f"/campaigns/{run['campaign']}/events",
            "campaign-run": f"/runs/{run['campaign']}",
            "trainings": "/trainings",
            "queue": "/queue",
            "plans": "/plans",
        }

    @contextmanager
    def page(self, *, width: int = 1280, scheme: str = "light", **options: Any) -> Iterator[Page]:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
            **options,
        )
        context.set_default_timeout(PATIENCE_MS)
        try:
            page = context.new_page()
            page.on("console", lambda message: self._hear(message.type, message.text, page.url))
            page.on("pageerror", lambda error: self.said.append(f"{page.url}: {error}"))
            page.on("requestfailed", lambda request: self._miss(request.url, request.failure or ""))
            yield page
        finally:
            context.close()

    def _hear(self, level: str, text: str, url: str) -> None:
        if level in {"error", "warning"}:
            self.said.append(f"{url}: {level}: {text}")

    def _miss(self, url: str, why: str) -> None:
        # Going to another page ends what the page before was still asking for.
        if "ERR_ABORTED" not in why:
            self.said.append(f"{url}: {why}")

    def open(self, page: Page, path: str) -> None:
        answer = page.goto(f"http://127.0.0.1:{self.asking.address.port}{path}", wait_until="load")
        assert answer is not None and answer.status == 200, path
        page.wait_for_selector(EMPTY_CHART, state="detached")


def chromium() -> str:
    """The browser's program. The tests are skipped without one, unless it is required."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
    if not found and not os.environ.get("OUTERLOOP_REQUIRE_BROWSER"):
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    assert found, "chromium is required: bash .ci/setup test installs it"
    return found


@pytest.fixture(scope="module")
def shown(pg_url: str, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    program = chromium()
    from playwright.sync_api import sync_playwright

    _execute(pg_url, f"create database browsed template {template_database}")
    world = CampaignWorld(tmp_path_factory.mktemp("browsed") / "w", _database_url(pg_url, "browsed"))
    runs = fill(world)
    became = verdicts(world, runs)
    expected = {"better": "accepted", "same": "rejected", "bigger": "rejected", "crash": "failed", "best": "accepted"}
    finished = dict.fromkeys(("training", "sweep", "tune", "campaign"), "finished")
    assert became == {**expected, **finished, "waiting": "waiting"}, world.describe()
    source = Source(
        url=lambda: _database_url(pg_url, "browsed"), owner=account(), root=world.state, cadence_seconds=300.0
    )
    shots = Path(os.environ.get("OUTERLOOP_SCREENSHOTS") or TOP / ".screenshots")
    shots.mkdir(parents=True, exist_ok=True)
    with served(record_app(source)) as asking, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield Shown(world, runs, asking, browser, shots)
        finally:
            browser.close()
    _execute(pg_url, "drop database browsed with (force)")


@pytest.fixture(autouse=True)
def quiet(shown: Shown) -> Iterator[None]:
    """No test's pages may complain."""
    shown.said.clear()
    yield
    assert shown.said == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_drawn_and_fits_and_can_be_read(shown: Shown, width: int) -> None:
    """Each page is loaded at one width in the light; the dark is then asked for, as a screen does in the evening."""
    pale = (Path(__file__).parent / "contrast.js").read_text()
    with shown.page(width=width, scheme=SCHEMES[0]) as page:
        for name, path in shown.pages().items():
            page.emulate_media(color_scheme=SCHEMES[0])  # type: ignore[arg-type]
            shown.open(page, path)
            assert page.locator("h1").count() == 1, path
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                page.wait_for_selector(EMPTY_CHART, state="detached")
                page.screenshot(path=shown.shots / f"{name}-{width}-{scheme}.png", full_page=True)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} wide on a screen of {width}"
                assert page.evaluate(pale, CONTRAST) == [], f"{path} in the {scheme}"


def test_a_page_that_is_loaded_in_the_dark_is_dark(shown: Shown) -> None:
    with shown.page(scheme="dark") as page:
        shown.open(page, f"/runs/{shown.runs['training']}")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(int(part) for part in re.findall(r"\d+", ground)[:3]) < 3 * 64, ground
        page.screenshot(path=shown.shots / "training-loaded-dark.png", full_page=True)


def test_charts_show_the_numbers_of_the_tables(shown: Shown) -> None:
    with shown.page() as page:
        shown.open(page, f"/benchmarks/{shown.target}/speed")
        drawn = page.evaluate("document.querySelector('[data-chart]').data.map(t => [t.name, t.y])")
        assert dict(drawn)["champion"] == [8, 5]
        assert sorted(dict(drawn)["rejected"]) == [8, 10]
        shown.open(page, f"/runs/{shown.runs['training']}")
        curves = page.evaluate("document.querySelector('[data-chart]').data.map(t => [t.name, t.x.length, t.y[20]])")
        assert curves == [["loss", 40, None]], describe(shown.world.folder)
        text = page.locator("main").inner_text()
        assert "1 not finite" in text and "whole" in text and "Machines, workers, ranks" in text


def test_a_campaign_is_told_as_its_ledger_has_it(shown: Shown) -> None:
    run = shown.runs["campaign"]
    ledger = shown.world.ledger(run)
    crowned = [event for event in ledger if event.kind == "champion"]
    with shown.page() as page:
        shown.open(page, f"/campaigns/{run}?generation=1")
        drawn = page.evaluate("[...document.querySelectorAll('[data-chart]')].map(c => c.data)")
        front, curves, history = ({trace["name"]: trace for trace in chart} for chart in drawn)
        of_first = [event for event in crowned if event.generation == 1]
        assert [front["champion"]["x"], front["champion"]["y"]] == [[n] for n in of_first[-1].counts]
        assert curves[f"champion {of_first[-1].subject}"]["x"] == [0, 10, 50, 100]
        assert "reserve check: luck" in history and "ensemble" in history
        text = page.locator("main").inner_text()
        for event in crowned:
            assert event.subject in text
        table = page.locator("#steps ~ * tbody tr")
        assert table.count() == len(crowned)
        for told in ("Reserve checks", "luck", "Teacher", "Ensembles", "Packages", "generation 2", "on the front"):
            assert told in text, told
        page.get_by_role("link", name=f"all {len(ledger)}").click()
        page.wait_for_url(re.compile("/events$"))
        assert page.locator(".ledger li").count() == min(50, len(ledger))
        page.get_by_role("link", name=re.compile("^reserve check")).click()
        page.wait_for_url(re.compile("kind=reserve_check$"))
        checks = [event for event in ledger if event.kind == "reserve_check"]
        assert page.locator(".ledger li").count() == len(checks) >= 2


def test_pages_follow_a_run_without_reloading(shown: Shown) -> None:
    world = shown.world
    run = world.submit("live")
    with shown.page() as page, shown.page() as overview:
        shown.open(page, f"/runs/{run}")
        shown.open(overview, "/")
        page.evaluate("window.never = 'reloaded'")
        overview.evaluate("window.never = 'reloaded'")
        page.locator("h1 .badge.waiting").wait_for()
        overview.locator(f"[data-region=open] a[href='/runs/{run}']").wait_for()
        # A reader's place is kept: what is opened stays open, what has the focus keeps it.
        overview.locator("#days-table summary").focus()
        overview.keyboard.press("Enter")
        world.ticks_until_rest()
        page.locator("h1 .badge.accepted").wait_for()
        page.get_by_text("accepted: over 1 pair cost fell").first.wait_for()
        overview.locator(f"[data-region=verdicts] a[href='/runs/{run}']").wait_for()
        assert page.evaluate("window.never") == overview.evaluate("window.never") == "reloaded"
        assert overview.locator("#days-table").get_attribute("open") is not None
        assert overview.evaluate("document.activeElement.tagName") == "SUMMARY"
        # What has ended is left in peace.
        page.locator(".pulse.on").wait_for(state="detached")
    shown.runs["waiting"] = shown.runs["live"] = run


def test_the_keyboard_is_enough(shown: Shown) -> None:
    with shown.page() as page:
        shown.open(page, "/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        shown.open(page, "/runs")
        page.keyboard.press("/")
        page.keyboard.type(shown.runs["crash"])
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("text="), wait_until="load")
        link = page.locator("td a.mono")
        assert link.count() == 1
        link.focus()
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/runs/" + shown.runs["crash"]), wait_until="load")
        for _ in range(200):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "PRE":
                break
        else:
            pytest.fail("the log cannot be reached by keyboard, so it cannot be scrolled")


def test_plans_stand_beside_what_was_measured(shown: Shown) -> None:
    with shown.page() as page:
        shown.open(page, "/plans")
        told = page.locator("main").inner_text()
        tune, sweep = (
            page.locator("tbody tr", has=page.locator(f"a[href='/runs/{shown.runs[name]}']")).inner_text()
            for name in ("tune", "sweep")
        )
        assert "llama-3.1-8b" in tune and "64 GB" in tune and "500 ms" in tune and "finished" in tune, tune
        assert "lease_tasks_x" in sweep and "independent tasks" in sweep, sweep
        assert "What the planner learned from them" in told and f"run {shown.runs['tune']}" in told
    reports = {"tune": "Run ", "sweep": "Run lease_tasks_x"}
    for name, heading in reports.items():
        with served(folder_app(recognised(shown.world.folder / f"{name}.json"))) as asking:
            for width, scheme in ((1280, "light"), (400, "dark")):
                with shown.page(width=width, scheme=scheme) as page:
                    answer = page.goto(f"http://127.0.0.1:{asking.address.port}/", wait_until="load")
                    assert answer is not None and answer.status == 200
                    page.screenshot(path=shown.shots / f"plan-{name}-{width}-{scheme}.png", full_page=True)
                    assert page.locator("h1").inner_text().startswith(heading)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                    assert page.evaluate((Path(__file__).parent / "contrast.js").read_text(), CONTRAST) == []


def test_tables_need_no_script(shown: Shown) -> None:
    with shown.page(java_script_enabled=False) as page:
        campaign = f"/campaigns/{shown.runs['campaign']}"
        climbs = ("/", "/runs", f"/runs/{shown.runs['better']}", f"/benchmarks/{shown.target}/speed")
        told = dict.fromkeys(climbs, shown.runs["better"]) | {"/campaigns": "gates", campaign: "champ-g001-r0001"}
        for path, words in told.items():
            page.goto(f"http://127.0.0.1:{shown.asking.address.port}{path}")
            assert words in page.locator("main").inner_text(), path
            assert page.locator(".chart:visible").count() == 0


def test_a_record_that_goes_away_is_said_on_the_page(shown: Shown) -> None:
    with shown.page() as page:
        shown.open(page, "/")
        page.route("**/*", lambda route: route.abort() if route.request.resource_type == "fetch" else route.continue_())
        page.locator(".pulse.away").wait_for()
        assert page.locator(".pulse").inner_text() == "no answer"
        page.unroute("**/*")
        page.locator(".pulse:not(.away)").wait_for()
    shown.said[:] = [line for line in shown.said if "ERR_FAILED" not in line]


def test_a_folder_is_shown_without_a_record(shown: Shown) -> None:
    every = sorted(shown.world.state.path.glob("slots/*/*/attempts/1/r0/out/run.json"))
    outputs = [path for path in every if (path.parent / "metrics.jsonl").exists()]  # a planned one only reports
    assert len(outputs) == 1, every
    folders = {"folder-training": outputs[0].parent, "folder-slot": outputs[0].parents[4]}
    folders["folder-run"] = shown.world.state.run(shown.runs["better"])
    for name, folder in folders.items():
        with served(folder_app(recognised(folder))) as asking, shown.page() as page:
            answer = page.goto(f"http://127.0.0.1:{asking.address.port}/", wait_until="load")
            assert answer is not None and answer.status == 200
            page.wait_for_selector(EMPTY_CHART, state="detached")
            page.screenshot(path=shown.shots / f"{name}-1280-light.png", full_page=True)
            text = page.locator("main").inner_text()
            assert ("accepted: over 1 pair" if name == "folder-run" else "1 not finite") in text, text
