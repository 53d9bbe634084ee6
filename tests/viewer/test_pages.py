"""Attacks from inside: names that are markup, logs that never end, numbers that are none, rows that fit nothing."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import psycopg
from sqlalchemy import make_url
from sqlalchemy import text as sql

from outerloop.slots import SlotDirectory
from tests.rows import TARGET, World, at
from tests.viewer.serving import Asking, viewing

EVIL = "<script>alert(1)</script>\"'&`${x}\u202e\x1b[31m{{1313*77}}"
PAGES = ("/", "/runs", "/benchmarks", "/campaigns", "/trainings", "/queue", "/plans")
LISTS = (
    "/api/status",
    "/api/runs",
    "/api/benchmarks",
    "/api/champions",
    "/api/campaigns",
    "/api/queue",
    "/api/plans",
)
CHARTS = ("/api/charts/days",)


class Markup(HTMLParser):
    """The scripts, handlers and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.handlers += [name for name in given if name.startswith("on")]
        self.handlers += [str(value) for value in given.values() if str(value).startswith("javascript:")]
        if given.get("id"):
            self.ids.append(str(given["id"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless_page(asking: Asking, path: str, *, status: int = 200) -> Markup:
    answer = asking.get(path)
    assert answer.status == status, f"{path}: {answer.status} {answer.text[:2000]}"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Markup(answer.text)
    assert all(source and source.startswith("/static/") for source in page.scripts), path
    assert page.handlers == [], path
    assert len(page.ids) == len(set(page.ids)), path
    assert "\u202e" not in answer.text and "\x1b" not in answer.text
    assert "101101" not in page.text  # 1313*77: a template within a name would have computed it
    return page


def filled(world: World) -> None:
    """Runs in every state."""
    world.accepted()
    world.champion(1, "c-acce000001", "7542.0", "368")
    world.run("c-wait", state="waiting", state_reason="JOBS")
    world.round("c-wait")
    world.attempt(world.measure("c-wait", "baseline"), slurm_state="running", node="n7")
    world.attempt(world.measure("c-wait", "candidate"), slurm_state="pending", slurm_reason="Priority")
    world.run("c-bloc", state="blocked", state_reason="CONTRACT", state_detail="gone")
    world.run("s-loop", kind="campaign", benchmark="digits", state="waiting", state_reason="JOBS")
    world.run("x-other", kind="entry", benchmark="sums", state="queued", state_reason="")
    world.attempt(world.measure("x-other", "whatever"), slurm_state="running", node="n8")
    world.event("x-other", "of a later version", {"deep": [{"x": None}]})
    world.run("c-fail")
    world.end("c-fail", "failed", "scope", "failed (scope): the candidate changes bench/score.py")
    world.tick(10)


def test_every_page_answers_for_an_empty_record(world: World) -> None:
    with viewing(world) as asking:
        for path in PAGES:
            harmless_page(asking, path)
        for path in (*LISTS, *CHARTS):
            assert asking.get(path).status == 200 and asking.get(path).json is not None


def test_every_page_says_what_is_there(world: World) -> None:
    filled(world)
    with viewing(world) as asking:
        assert "Pending in the queue: Priority" not in harmless_page(asking, "/").text  # one of its jobs runs
        overview = harmless_page(asking, "/").text
        assert "Run c-bloc is blocked (CONTRACT)" in overview and "Waiting for running jobs" in overview
        assert "other jobs have a higher priority" in overview.lower() or "Priority" in overview
        runs = harmless_page(asking, "/runs").text
        assert all(run in runs for run in ("c-acce000001", "c-wait", "c-bloc", "c-fail"))
        run = harmless_page(asking, "/runs/c-acce000001").text
        for told in ("accepted: over 1 pair", "7542.0", "4711", "What would have changed it", "verdict: accepted"):
            assert told in run, told
        assert "n7" in harmless_page(asking, "/runs/c-wait").text
        other = harmless_page(asking, "/runs/x-other").text
        assert "sums" in other and "n8" in other and "whatever" in other
        assert "outerloop retry c-bloc" in harmless_page(asking, "/runs/c-bloc").text
        assert "What entries to challenges train" in harmless_page(asking, "/trainings").text
        assert "x-other" in harmless_page(asking, "/runs?kind=entry").text
        benchmark = harmless_page(asking, f"/benchmarks/{TARGET}/tsp").text
        assert "Champion number 1" in benchmark and "7542.0" in benchmark
        queue = harmless_page(asking, "/queue").text
        assert "running" in queue and "Priority" in queue and "c-wait" in queue
        assert "c-wait" not in harmless_page(asking, "/queue?state=settled").text
        for path in (*LISTS, *CHARTS, f"/api/benchmarks/{TARGET}/tsp", f"/api/charts/benchmarks/{TARGET}/tsp"):
            assert asking.get(path).status == 200, path
        argument = asking.get("/api/runs/c-acce000001/argument").json
        assert argument["verdict"]["outcome"] == "accepted" and argument["argument"][0]["title"] == "Asked"
        assert asking.get("/api/runs/c-acce000001").json["row"]["verdict"] == "accepted"
        chart = asking.get(f"/api/charts/benchmarks/{TARGET}/tsp").json
        assert [trace["name"] for trace in chart["data"]] == ["accepted", "champion"]
        assert chart["data"][1]["y"] == [7542.0]


def test_names_that_are_markup_stay_text(world: World) -> None:
    name = EVIL.replace("\x1b[31m", "")  # Postgres takes it, a terminal would not
    world.run(
        "c-evil",
        benchmark=name,
        label=EVIL,
        submitter=name,
        state="blocked",
        state_reason=name,
        state_detail=EVIL,
        last_error=EVIL,
    )
    slot = world.measure("c-evil", name, benchmark=name, slot={"state": "failed", "reason": name, "detail": EVIL})
    world.attempt(slot, outcome=name, reason=name, detail=EVIL, node=name, job_id=name)
    live = world.measure("c-evil", "candidate", benchmark=name)
    world.attempt(live, slurm_state=name, slurm_reason=name, node=name)
    world.event("c-evil", name, {"x": EVIL})
    world.champion(1, "c-evil", name, name, benchmark=name, label=EVIL)
    world.run("c-end", benchmark=name)
    evidence = {"findings": {"climbed": {"metric": EVIL, "direction": name, "mean_base": name, "mean_candidate": name}}}
    world.end("c-end", "rejected", name, EVIL, evidence)
    with viewing(world) as asking:
        place = f"/benchmarks/{TARGET}/{quote(name, safe='')}"
        for path in (*PAGES, "/runs/c-evil", "/runs/c-end", "/runs/c-evil/logs", place):
            page = harmless_page(asking, path)
            if path not in ("/campaigns", "/trainings", "/plans"):
                assert "alert(1)" in page.text, path
        for path in (f"/runs?text={quote(EVIL, safe='')}", f"/queue?reason={quote(name, safe='')}"):
            harmless_page(asking, path)
        for path in (*LISTS, "/api/runs/c-evil", "/api/runs/c-end/argument", f"/api/charts{place}"):
            answer = asking.get(path)
            assert answer.status == 200, (path, answer.text)
            assert answer.headers["content-type"] == "application/json"
            assert answer.json is not None
        # The chart library renders some tags in texts: none may be left.
        assert "<" not in json.dumps(asking.get(f"/api/charts{place}").json).replace("<extra>", "").replace(
            "</extra>", ""
        ).replace("<br>", "")


def a_log(world: World, role: str = "candidate") -> Path:
    """The folder of the logs of a run's measure."""
    world.run("c-log", state="waiting", state_reason="JOBS")
    slot = {"digest": "ab" * 32}
    world.attempt(world.measure("c-log", role, slot=slot), slurm_state="running")
    folder = SlotDirectory(world.root.slot("ab" * 32), "ab" * 32).logs(1)
    folder.mkdir(parents=True)
    return folder


def test_two_gigabytes_of_log_cost_their_end_only(world: World) -> None:
    path = a_log(world) / "stdout.log"
    with path.open("wb") as stream:
        stream.truncate(2 << 30)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\n" + EVIL.encode() + b"\nthe end\n")
    with viewing(world) as asking:
        page = harmless_page(asking, "/runs/c-log")
        assert "the end" in page.text and "2.15 GB" in page.text
        whole = asking.get("/runs/c-log/logs?lines=5000")
        assert whole.status == 200 and len(whole.body) < 4 << 20
        stream_ = asking.get("/api/runs/c-log/logs").json["streams"]["stdout.log"]
        assert stream_["cut"] and stream_["bytes"] > 2 << 30


def test_logs_that_lead_elsewhere_are_not_read(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0\n")
    folder = a_log(world)
    (folder / "stdout.log").symlink_to(secret)
    os.mkfifo(folder / "stderr.log")
    (folder / "score.stdout.log").mkdir()
    inside = world.state / "arrays" / "a" / "slurm.log.3"
    inside.parent.mkdir(parents=True)
    inside.write_text("from the array\n")
    (folder / "slurm.log").symlink_to(inside)
    with viewing(world) as asking:
        page = harmless_page(asking, "/runs/c-log")
        assert "root:" not in page.text
        assert "from the array" in page.text


def test_torn_slots_do_not_break_a_page(world: World) -> None:
    filled(world)
    world.run("c-torn", state="waiting", state_reason="JOBS")
    for number, content in enumerate((b"", b'{"schema": 1, "dig', b"[]", b"\xff\xfe\x00", b"null")):
        digest = f"{number:x}e" * 32
        world.attempt(world.measure("c-torn", f"candidate-{number}", slot={"digest": digest, "result": {"metric": 5}}))
        folder = SlotDirectory(world.root.slot(digest), digest)
        folder.logs(1).mkdir(parents=True)
        for name in ("spec.json", "accepted", "attempts/1/claim.json", "attempts/1/result.json"):
            (folder.path / name).write_bytes(content)
        (folder.logs(1) / "stdout.log").write_bytes(content)
    world.measure("c-torn", "gone", slot={"digest": "../../etc"})
    with viewing(world) as asking:
        harmless_page(asking, "/runs/c-torn")
        for number in range(5):
            harmless_page(asking, f"/runs/c-torn/logs?role=candidate-{number}")
        harmless_page(asking, "/runs/c-torn/logs?role=gone")
        assert asking.get("/api/runs/c-torn").status == 200


def test_values_that_are_no_numbers_are_drawn_as_gaps(world: World) -> None:
    for number, value in enumerate(("NaN", "Infinity", "1e9999", "", "abc", "7.5")):
        run = f"c-odd{number}"
        world.run(run)
        climbed = {"metric": "m", "direction": "min", "mean_base": "1", "mean_candidate": value, "gain": "NaN"}
        world.end(run, "rejected", "no-improvement", "rejected", {"findings": {"climbed": climbed}})
        world.champion(number + 1, run, value or "x", "NaN", accepted_at=at(number))
    with viewing(world) as asking:
        chart = asking.get(f"/api/charts/benchmarks/{TARGET}/tsp").json
        champions = next(trace for trace in chart["data"] if trace["name"] == "champion")
        assert champions["y"] == [None, None, None, None, None, 7.5]
        for path in ("/benchmarks", f"/benchmarks/{TARGET}/tsp", *(f"/runs/c-odd{n}" for n in range(6))):
            harmless_page(asking, path)


def test_evidence_of_another_shape_leaves_the_page_standing(world: World) -> None:
    for number, evidence in enumerate(({}, {"findings": []}, {"findings": {"climbed": "x"}}, {"outcome": 5})):
        world.run(f"c-sh{number}")
        world.round(f"c-sh{number}")
        world.value(f"c-sh{number}", "candidate", "5")
        world.end(f"c-sh{number}", "rejected", "x", "rejected: x", evidence)
    with viewing(world) as asking:
        for number in range(4):
            harmless_page(asking, f"/runs/c-sh{number}")
            assert asking.get(f"/api/runs/c-sh{number}/argument").status == 200
            assert asking.get(f"/api/charts/runs/c-sh{number}/pairs").status == 200
            assert asking.get(f"/api/charts/runs/c-sh{number}/looks").status == 200


def test_lists_are_filtered_and_paged(world: World) -> None:
    for number in range(7):
        world.run(f"c-{number}", created_at=at(number), submitter="ada" if number % 2 else "bob")
    world.run("c-t", kind="training", benchmark="sft")
    world.end("c-0", "rejected", "no-improvement", "rejected: x")

    def ids(query: str) -> list[str]:
        return sorted(run["id"] for run in asking.get(f"/api/runs?{query}").json["runs"])

    with viewing(world) as asking:
        assert ids("author=bob") == ["c-0", "c-2", "c-4", "c-6"]
        assert ids("kind=training") == ["c-t"]
        assert ids("state=ended") == ids("verdict=rejected") == ["c-0"]
        assert ids("text=sft&kind=climb") == []
        first = asking.get("/api/runs?limit=3").json
        assert (len(first["runs"]), first["total"], first["next_offset"]) == (3, 8, 3)
        page = harmless_page(asking, "/runs?limit=3&offset=3&kind=climb")
        assert "4 to 6 of 7" in page.text
        text = asking.get("/runs?limit=3&offset=3&kind=climb").text
        assert 'href="/runs?limit=3&amp;offset=6&amp;kind=climb"' in text
        assert 'href="/runs?limit=3&amp;kind=climb"' in text
        for query in ("limit=x", "offset=-1", "state=nosuch", "kind=nosuch", "verdict=nosuch", "limit=9999999999999"):
            refused = asking.get(f"/api/runs?{query}")
            assert refused.status == 400 and "error" in refused.json, query
        assert "No run fits" in harmless_page(asking, "/runs?text=nosuch").text


def test_what_is_not_there_is_said(world: World) -> None:
    world.run("c-1")
    with viewing(world) as asking:
        assert "There is no run c-nope" in harmless_page(asking, "/runs/c-nope", status=404).text
        assert "no page /nope" in harmless_page(asking, "/nope", status=404).text
        assert "no measure x" in harmless_page(asking, "/runs/c-1/logs?role=x", status=404).text
        assert "Nobody ever asked" in harmless_page(asking, "/benchmarks/t/b", status=404).text
        assert asking.get("/api/runs/c-nope").json["error"] == "Not found"
        assert asking.get("/api/charts/runs/c-1/nope").status == 404


def test_another_realm_is_not_shown(world: World) -> None:
    from dataclasses import replace

    from outerloop.viewer.app import record_app
    from tests.viewer.serving import served, source_of

    filled(world)
    with served(record_app(replace(source_of(world), owner="somebody-else"))) as asking:
        assert asking.get("/api/runs").json["total"] == 0
        assert asking.get("/api/queue").json["total"] == 0
        assert asking.get("/api/benchmarks").json["total"] == 0
        assert asking.get(f"/benchmarks/{TARGET}/tsp").status == 404


def test_select_is_all_that_it_needs(world: World) -> None:
    filled(world)
    owner = make_url(world.url).set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"viewer_{make_url(world.url).database}"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"create role {name} login password 'look'")  # type: ignore[arg-type]
        connection.execute(f"grant select on all tables in schema public to {name}")  # type: ignore[arg-type]
    try:
        url = make_url(world.url).set(username=name, password="look").render_as_string(hide_password=False)
        with viewing(world, url=url) as asking:
            for path in (
                *PAGES,
                *LISTS,
                *CHARTS,
                "/runs/c-acce000001",
                "/runs/c-wait/logs",
                "/campaigns/s-loop",
                "/campaigns/s-loop/events",
                "/api/charts/campaigns/s-loop/front",
                f"/benchmarks/{TARGET}/tsp",
            ):
                assert asking.get(path).status == 200, path
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(f"revoke select on champions from {name}")  # type: ignore[arg-type]
        with viewing(world, url=url) as asking:
            refused = asking.get("/benchmarks")
            assert refused.status == 503 and "may not be read" in refused.text and "champions" in refused.text
            assert asking.get("/runs").status == 200
    finally:
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(f"drop owned by {name}")  # type: ignore[arg-type]
            connection.execute(f"drop role {name}")  # type: ignore[arg-type]


def test_a_record_that_is_away_is_said_and_found_again(world: World) -> None:
    world.run("c-1")
    plain = make_url(world.url).set(drivername="postgresql", database="postgres")
    database = make_url(world.url).database
    with (
        viewing(world) as asking,
        psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as connection,
    ):
        assert asking.get("/runs").status == 200
        connection.execute(f"alter database {database} allow_connections false")  # type: ignore[arg-type]
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
        away = asking.get("/runs")
        assert away.status == 503 and "does not answer" in away.text and 'data-live="3"' in away.text
        assert asking.get("/api/runs").status == 503
        connection.execute(f"alter database {database} allow_connections true")  # type: ignore[arg-type]
        assert asking.get("/runs").status == 200


def test_many_at_once_share_few_connections(world: World) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from outerloop.viewer.source import CONNECTIONS

    filled(world)
    plain = make_url(world.url).set(drivername="postgresql", database="postgres")
    with viewing(world) as asking, ThreadPoolExecutor(16) as pool:
        before = set(pool.map(lambda _n: asking.get("/api/runs").status, range(48)))
        assert before == {200}
        with psycopg.connect(plain.render_as_string(hide_password=False)) as connection:
            [count] = connection.execute(
                "select count(*) from pg_stat_activity where datname = %s and application_name = 'outerloop'",
                [make_url(world.url).database],
            ).fetchone() or (0,)
        assert count <= CONNECTIONS + 1  # the world's own


def test_tables_are_there_without_a_script(world: World) -> None:
    """The page that a text browser gets has every row."""
    filled(world)
    with viewing(world) as asking:
        for path in ("/", "/runs", "/runs/c-wait"):
            text = asking.get(path).text
            assert '<noscript><meta http-equiv="refresh"' in text
            assert "c-wait" in Markup(text).text


def sealed_world(world: World) -> list[str]:
    """Runs of a benchmark with a ladder; returns texts that hidden data decided."""
    world.accepted()
    world.champion(1, "c-acce000001", "7542.0", "368")
    world.run("c-rej")
    world.value("c-rej", "baseline-2", "7911.5")
    failed = {"state": "failed", "failure_class": "candidate", "reason": "EXIT_77", "detail": "truth is 1 0 1"}
    slot = world.measure("c-rej", "candidate", slot=failed)
    world.attempt(slot, outcome="failed", reason="EXIT_77", detail="truth is 1 0 1")
    world.event("c-rej", "ladder", {"round": 0, "improved": False, "best": 0.125, "items": 8})
    world.event("c-rej", "look", {"round": 0, "pairs": 8, "llr": 1.375, "lower": -2, "upper": 2})
    world.end("c-rej", "rejected", "no-improvement", "rejected: fell by 8.25", {"findings": {"mean": "7919.75"}})
    world.run("c-err", state="waiting", last_error="ValueError: losses 0.625", state_detail="losses 0.625")
    with world.session() as session:
        session.execute(sql("update runs set request = request || '{\"sealed\": true}'"))
        digests = session.execute(sql("select digest from slots")).scalars().all()
    for digest in digests:
        log = SlotDirectory(world.root.slot(digest), digest).logs(1) / "stdout.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("the truth is 1 1 0\n")
    return [
        *("7542", "7910", "368", "4.65", "7911.5", "8.25", "7919.75", "1.375", "0.125", "0.625"),
        *("truth is", "EXIT_77", "no-improvement", "What would have changed it"),
    ]


def test_what_a_ladder_withholds_is_on_no_page_and_in_no_answer(world: World) -> None:
    secret = sealed_world(world)
    runs = ("c-acce000001", "c-rej", "c-err")
    paths = [*PAGES, *LISTS, *CHARTS]
    paths += [f"/runs?verdict={verdict}" for verdict in ("accepted", "rejected")]
    for prefix in ("", "/api"):
        paths += [f"{prefix}/benchmarks/{TARGET}/tsp", *(f"{prefix}/runs/{run}" for run in runs)]
        paths += [f"{prefix}/runs/{run}/logs" for run in runs]
        paths += [f"{prefix}/runs/c-rej/logs?role=candidate&attempt=1"]
    paths += [f"/api/runs/{run}/argument" for run in runs]
    paths += [f"/api/charts/runs/{run}/{chart}" for run in runs for chart in ("pairs", "looks")]
    paths += [f"/api/charts/benchmarks/{TARGET}/tsp"]
    with viewing(world) as asking:
        for path in paths:
            answer = asking.get(path)
            assert answer.status == 200, f"{path}: {answer.status}"
            assert [text for text in secret if text in answer.text] == [], path
        told = harmless_page(asking, "/runs/c-acce000001").text
        assert "accepted" in told and "the benchmark has a ladder" in told
        assert "a ladder" in harmless_page(asking, "/runs/c-acce000001/logs").text
        assert asking.get("/api/runs/c-rej").json["row"]["verdict_reason"] == "ladder"
        assert "withheld" in harmless_page(asking, f"/benchmarks/{TARGET}/tsp").text


def test_the_same_world_unsealed_shows_it_all(world: World) -> None:
    """The search above can fail."""
    secret = sealed_world(world)
    with world.session() as session:
        session.execute(sql("update runs set request = request || '{\"sealed\": false}'"))
    with viewing(world) as asking:
        paths = ["/runs", "/benchmarks", "/api/champions", "/api/runs"]
        paths += [f"/runs/{run}" for run in ("c-acce000001", "c-rej")] + ["/api/runs/c-rej", "/api/runs/c-err"]
        every = " ".join(asking.get(path).text for path in paths)
    assert [text for text in secret if text not in every] == []
