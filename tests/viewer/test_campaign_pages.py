"""Attacks on the pages of campaigns: torn and missing events, NaN, names that are markup, a history that was replaced.

The ledger is that of the recorded campaign, so what is torn is a real one. Not covered: browsers (test_browser.py).
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from outerloop.champion import ChampionEvent, events_from_jsonl, fold, front_table, plot_data
from tests.rows import World
from tests.viewer.serving import Asking, viewing
from tests.viewer.test_demo import recorded_ledger
from tests.viewer.test_pages import EVIL, harmless_page

RUN = "s-recorded"
PLACES = (f"/campaigns/{RUN}", f"/campaigns/{RUN}/events", "/campaigns", f"/runs/{RUN}")
DATA = (
    "/api/campaigns",
    f"/api/campaigns/{RUN}",
    f"/api/campaigns/{RUN}/events",
    *(f"/api/charts/campaigns/{RUN}/{name}" for name in ("front", "history", "curves")),
)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return recorded_ledger()


def campaign(world: World, lines: list[str], **columns: Any) -> None:
    """A campaign with this ledger, whose request cannot be read, unless one is given."""
    world.run(RUN, kind="campaign", benchmark=columns.pop("benchmark", "digits"), **columns)
    write(world, lines)


def write(world: World, lines: list[str], first: int = 1) -> None:
    rows = []
    for seq, line in enumerate(lines, start=first):
        try:
            kind = json.loads(line)["kind"]
        except (ValueError, TypeError):
            kind = "eval"
        rows.append({"run": RUN, "seq": seq, "kind": kind, "line": line})
    with world.session() as session:
        session.execute(
            text("insert into campaign_events (run_id, seq, kind, line) values (:run, :seq, :kind, :line)"), rows
        )


def everything(asking: Asking) -> dict[str, str]:
    """Every page's text; nothing may be an error page or no JSON."""
    found = {path: harmless_page(asking, path).text for path in PLACES}
    for path in DATA:
        answer = asking.get(path)
        assert answer.status == 200 and answer.json is not None, path
    return found


def test_a_page_says_what_the_fold_says(world: World, lines: list[str]) -> None:
    state = fold(events_from_jsonl("".join(lines)))
    campaign(world, lines)
    with viewing(world) as asking:
        pages = everything(asking)
        told = asking.get(f"/api/campaigns/{RUN}").json
        assert [item["subject"] for item in told["generation_shown"]["front"]] == [
            item["subject"] for item in front_table(state)
        ]
        assert [step["seq"] for step in told["champions"]] == [event.seq for event in state.champions]
        first = asking.get(f"/api/campaigns/{RUN}?generation=1").json["generation_shown"]
        of_first = [e for e in plot_data(state)["evaluations"] if e["generation"] == 1]
        assert [point["seq"] for point in first["evaluations"]] == [e["seq"] for e in of_first]
        assert first["champion"]["subject"] == [e.subject for e in state.champions if e.generation == 1][-1]
        assert {line["status"] for line in told["reserve_checks"]} >= {"luck", "passed"}
        assert f"all {len(lines)}" in pages[f"/campaigns/{RUN}"]
        assert state.champions[-1].subject in pages["/campaigns"]
        page = asking.get(f"/api/campaigns/{RUN}/events?kind=eval&limit=7&offset=3").json
        evals = [e.seq for e in reversed(events_from_jsonl("".join(lines))) if e.kind == "eval"]
        assert [item["seq"] for item in page["events"]] == evals[3:10] and page["total"] == len(evals)


def test_a_torn_event_ends_the_page_there(world: World, lines: list[str]) -> None:
    campaign(world, lines)
    with viewing(world) as asking:
        for torn in ("{", "null", '{"kind":"nosuch","seq":60}', lines[58]):
            with world.session() as session:
                session.execute(
                    text("update campaign_events set line = :line where run_id = :run and seq = 60"),
                    {"run": RUN, "line": torn},
                )
            pages = everything(asking)
            assert "event 60 can't be read" in pages[f"/campaigns/{RUN}"], torn
            assert "as of event 59" in pages[f"/campaigns/{RUN}"]
            told = asking.get(f"/api/campaigns/{RUN}").json
            assert told["events"] == 59 and told["generation_shown"]["evaluations"]


def test_a_missing_event_and_an_empty_ledger(world: World, lines: list[str]) -> None:
    campaign(world, lines[:40])
    write(world, lines[45:50], 46)
    world.run("s-new", kind="campaign", benchmark="fresh", state="queued", state_reason="")
    with viewing(world) as asking:
        assert "event 41 is missing" in everything(asking)[f"/campaigns/{RUN}"]
        assert "Nothing has happened yet" in harmless_page(asking, "/campaigns/s-new").text
        harmless_page(asking, "/campaigns/s-new/events")
        for chart in ("front", "history", "curves"):
            assert asking.get(f"/api/charts/campaigns/s-new/{chart}").json["data"] == []


def test_a_ledger_is_followed_and_one_made_anew_is_noticed(world: World, lines: list[str]) -> None:
    events = events_from_jsonl("".join(lines))
    campaign(world, lines[:50])
    with viewing(world) as asking:
        assert asking.get(f"/api/campaigns/{RUN}").json["events"] == 50
        write(world, lines[50:90], 51)
        told = asking.get(f"/api/campaigns/{RUN}").json
        assert told["events"] == 90
        assert len(told["champions"]) == sum(isinstance(event, ChampionEvent) for event in events[:90])
        with world.session() as session:
            session.execute(text("delete from campaign_events where run_id = :run and seq > 30"), {"run": RUN})
        assert asking.get(f"/api/campaigns/{RUN}").json["events"] == 30


def test_numbers_that_are_none_end_the_page_where_they_stand(world: World, lines: list[str]) -> None:
    odd = []
    for line in lines:
        event = json.loads(line)
        if event["kind"] == "eval" and event.get("gate_auc"):
            event |= {
                "gate_auc": float("nan"),
                "macro_f1": float("inf"),
                "gate_curve": [[0.0, float("nan")], [1.0, 0.0]],
            }
        odd.append(json.dumps(event))
    campaign(world, odd)
    with viewing(world) as asking:
        first = next(n for n, line in enumerate(odd, start=1) if "NaN" in line)
        assert f"event {first} can't be read" in everything(asking)[f"/campaigns/{RUN}"]
        assert asking.get(f"/api/campaigns/{RUN}").json["events"] == first - 1


def test_markup_in_names_stays_text(world: World, lines: list[str]) -> None:
    name = EVIL.replace("\x1b[31m", "")
    spoiled = [line.replace("champ-g001-r0001-wide", json.dumps(name)[1:-1]) for line in lines]
    assert spoiled != lines
    campaign(world, spoiled, benchmark=name, state="blocked", state_reason=name, state_detail=EVIL, label=EVIL)
    world.attempt(world.measure(RUN, name, slot={"state": "failed", "reason": name, "detail": EVIL}), node=name)
    with viewing(world) as asking:
        for path, page in everything(asking).items():
            assert "alert(1)" in page, path
        harmless_page(asking, f"/campaigns/{RUN}?generation=1")
        drawn = json.dumps([asking.get(f"{path}?generation=1").json for path in DATA[3:]])
        for tag in ("<extra>", "</extra>", "<br>"):
            drawn = drawn.replace(tag, "")
        assert "<" not in drawn


def test_what_cannot_be_asked_is_refused(world: World, lines: list[str]) -> None:
    campaign(world, lines)
    world.run("c-1")
    with viewing(world) as asking:
        for path, status in {
            "/campaigns/s-nope": 404,
            "/campaigns/c-1": 404,
            f"/campaigns/{RUN}?generation=99": 404,
            f"/campaigns/{RUN}?generation=x": 400,
            f"/campaigns/{RUN}/events?kind=nosuch": 400,
            f"/campaigns/{RUN}/events?offset=-1": 400,
            f"/campaigns/{quote('../../etc/passwd', safe='')}": 404,
            f"/campaigns/%00{RUN}": 400,
        }.items():
            harmless_page(asking, path, status=status)
            assert "error" in asking.get("/api" + path).json, path
        assert asking.get(f"/api/charts/campaigns/{RUN}/nope").status == 404
        assert asking.get(f"/campaigns/{RUN}", host="evil.example").status == 421
