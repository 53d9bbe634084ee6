"""Attacks `campaign plot`'s picture: labels that collide, marks in the wrong place, hostile names, huge campaigns."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs the extra `plot`")

from matplotlib.figure import Figure
from matplotlib.text import Text

from outerloop.champion import plot_data
from outerloop.champion.events import ChampionEvent, EvalEvent, ReserveCheckEvent
from outerloop.cli.campaign_drawing import draw, rendered
from tests.unit.champion.world import World, campaign


@pytest.fixture(scope="module")
def played() -> tuple[World, dict[str, Any]]:
    """A campaign of three generations with every kind of reserve check but a passed one."""
    config = campaign(
        max_rounds=14, saturation_evals=12, teacher_after_round=1, ensemble_from_round=2, compare="decided",
        parallel=3, alpha=0.2,
    )  # fmt: skip
    world = World(config, salt=3)
    data = plot_data(world.run())
    assert len(data["generations"]) == 3
    assert {check["status"] for check in data["reserve_checks"]} >= {"luck", "stale", "not_run"}
    return world, data


def texts(figure: Figure) -> list[Text]:
    """Every text that is drawn, in its final place."""
    figure.draw_without_rendering()
    found: list[Text] = [*figure.texts]
    for legend in [*figure.legends, *(axes.get_legend() for axes in figure.axes)]:
        found += [legend.get_title(), *legend.get_texts()] if legend is not None else []
    for axes in figure.axes:
        found += [axes.title, *axes.texts]
        if not axes.axison:
            continue
        for axis in (axes.xaxis, axes.yaxis):
            found.append(axis.label)
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks(len(axis.get_majorticklocs())):
                if low <= tick.get_loc() <= high and tick.label1.get_visible():
                    found.append(tick.label1)
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def collisions(figure: Figure) -> list[tuple[str, str]]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    # Half a pixel of rounding is no collision.
    return [(a, b) for (a, one), (b, two) in itertools.combinations(boxes, 2) if one.padded(-0.5).overlaps(two)]


def test_no_label_lies_on_another_or_outside(played: tuple[World, dict[str, Any]]) -> None:
    figure = draw(played[1], "digits")
    assert {"0", "generation 1: initial", "champion"} <= {text.get_text() for text in texts(figure)}
    assert collisions(figure) == []
    page = figure.bbox
    for text in texts(figure):
        box = text.get_window_extent()
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1, text
    # And the check finds one that does.
    figure.text(0.5, 0.98, "on top of the title")
    assert collisions(figure) != []


def test_every_point_step_and_check_stands_where_the_ledger_puts_it(played: tuple[World, dict[str, Any]]) -> None:
    world, data = played
    first = draw(data, "digits").axes[0]
    by_label: dict[str, list[tuple[float, float]]] = {}
    for collection in first.collections:
        label = str(collection.get_label())
        by_label.setdefault(label, []).extend(map(tuple, collection.get_offsets().tolist()))
    shown = sorted(by_label["checkpoint"] + by_label["ensemble"])
    scored = [e for e in world.ledger if isinstance(e, EvalEvent) and e.role == "test" and e.status == "scored"]
    rows = [event.decided["fail_to_pass_count"] for event in scored if event.decided is not None]
    assert shown == [(float(x), float(y)) for x, y in enumerate(rows, start=1)]
    # Champions, whose evaluations the ledger names, in all three generations.
    order = {e.seq: x for x, e in enumerate((e for e in scored if e.decided is not None), start=1)}
    crowned = [e for e in world.ledger if isinstance(e, ChampionEvent)]
    stars = [
        point
        for collection in first.collections
        if len(collection.get_paths()[0].vertices) in (10, 11, 12)  # a star
        for point in map(tuple, collection.get_offsets().tolist())
    ]
    assert sorted(stars) == sorted((float(order[e.eval_seq]), float(e.counts[0])) for e in crowned)
    # Reserve checks: the reserve's errors at the size of the test set.
    lucky = [e for e in world.ledger if isinstance(e, ReserveCheckEvent) and e.status == "luck"]
    heights = sorted(e.lines[0].reserve_count * e.lines[0].test_total / e.lines[0].reserve_total for e in lucky)
    shown_checks = [
        point[1]
        for collection in first.collections
        if len(collection.get_paths()[0].vertices) in (13, 14) and tuple(collection.get_facecolor()[0][:3]) == (0, 0, 0)
        for point in collection.get_offsets().tolist()
    ]
    assert sorted(shown_checks) == pytest.approx(heights)


def test_the_same_campaign_gives_the_same_file(played: tuple[World, dict[str, Any]]) -> None:
    figures = [draw(played[1], "digits") for _ in range(2)]
    for suffix, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        one, two = (rendered(figure, suffix) for figure in figures)
        assert one == two and one.startswith(begin)
    said = " ".join(re.findall(r"<!-- (.*?) -->", one.decode()))
    for words in ("generation 2: reserve failed", "reserve check: luck", "test evaluation, in order of arrival"):
        assert words in said, said


@pytest.mark.parametrize("name", ["$x_{", "a\nb\x1b[31m", "\\frac{1}{0}$$", "n" * 300, "−→é漢字"[:3], "%s {0}"])
def test_hostile_texts_are_drawn_as_they_are(played: tuple[World, dict[str, Any]], name: str) -> None:
    data = dict(played[1])
    data["generations"] = [{**event, "reason": name} for event in data["generations"]]
    data["gate_curves"] = [{"subject": name, "points": [[0.0, 1.0], [1.0, 0.0]]}]
    figure = draw(data, name)
    assert rendered(figure, "svg")
    assert collisions(figure) == []


def many(count: int, generations: int) -> dict[str, Any]:
    share = count // generations
    opened = [{"seq": n * share + 1, "generation": n + 1, "reason": "max_reserve_checks"} for n in range(generations)]
    points = [
        {
            "seq": seq,
            "generation": (seq - 1) // share + 1,
            "round": 1,
            "subject": f"champ-{seq}/m-0001",
            "run_id": f"champ-{seq}",
            "checkpoint": "m-0001",
            "counts": {"fail_to_pass": seq * 7919 % 400, "pass_to_fail": seq * 104729 % 400},
            "totals": {"fail_to_pass": 4000, "pass_to_fail": 4000},
            "on_front": False,
            "gate_auc": None,
        }
        for seq in range(1, share * generations + 1)
    ]
    return {
        "objectives": ["fail_to_pass", "pass_to_fail"],
        "evaluations": points,
        "failed": 0,
        "front": [],
        "champions": [],
        "generations": opened,
        "reserve_checks": [],
        "gate_curves": [],
    }


def test_many_generations_do_not_write_over_each_other() -> None:
    assert collisions(draw(many(600, 60), "long")) == []


def test_fifty_thousand_evaluations_are_a_file_that_opens() -> None:
    assert len(rendered(draw(many(50_000, 5), "huge"), "svg")) < 2_000_000


@pytest.mark.parametrize("names", [["fail_to_pass"], ["a", "b", "rejected_total"], ["a", "b", "c", "d", "e", "f"]])
def test_other_numbers_of_objectives(names: list[str]) -> None:
    data = many(30, 2)
    data["objectives"] = names
    for point in data["evaluations"]:
        point["counts"] = dict.fromkeys(names, 3)
        point["totals"] = dict.fromkeys(names, 30)
    figure = draw(data, "some")
    assert collisions(figure) == []
    assert len(figure.axes) == min(len(names), 4) + 2


def test_a_campaign_without_an_evaluation_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="no test evaluation yet"):
        draw({**many(30, 2), "evaluations": []}, "none")
