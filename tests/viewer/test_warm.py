"""What a server pays before it listens: pages of every kind are made once, and nothing that is wrong stops it."""

from __future__ import annotations

import pytest
from sqlalchemy import event, make_url
from sqlalchemy.engine import Engine

from outerloop.record.store import RecordUnavailable
from outerloop.viewer import answers
from outerloop.viewer.app import record_app
from outerloop.viewer.serve import bind, serve
from outerloop.viewer.source import Source
from outerloop.viewer.warm import FIXED, warm
from tests.rows import World
from tests.viewer.serving import source_of
from tests.viewer.test_pages import filled


def compiled(source: Source) -> int:
    """How many statements this source's records have compiled and kept."""
    assert source._first is not None
    return len(source._first[1]._engine._compiled_cache or ())


def test_the_first_reader_compiles_nothing(world: World) -> None:
    filled(world)
    source = source_of(world)
    app = record_app(source)
    answers._templates.cache_clear()
    assert warm(app) > len(FIXED) + 5
    known = answers._templates().cache
    assert known is not None and len(known) == len(answers._templates().list_templates())
    before = compiled(source)
    assert before
    assert warm(app) > len(FIXED) + 5
    # A list of states is another statement the second time it is asked for; nothing else is.
    assert compiled(source) - before <= before // 10
    before = compiled(source)
    with source.looking() as one, source.looking() as other:  # two readers at once: the second compiles nothing, too
        assert one.record is not other.record
    assert warm(app) > len(FIXED) and compiled(source) == before
    source.close()


def test_an_empty_record_and_no_time_are_enough(world: World) -> None:
    source = source_of(world)
    assert warm(record_app(source)) == len(FIXED)
    assert warm(record_app(source), seconds=0) == 0
    source.close()


def test_a_record_that_is_away_stops_no_server(world: World) -> None:
    url = make_url(world.url).set(database="nosuch").render_as_string(hide_password=False)
    source = source_of(world, url=url)
    with pytest.raises(RecordUnavailable), source.looking():
        pass
    assert warm(record_app(source)) == 0


def test_the_server_is_warm_before_it_says_that_it_listens(world: World) -> None:
    """Every page was asked of the database when the address is printed."""
    filled(world)
    sent: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_more: object) -> None:
        sent.append(statement)

    class Listens(Exception):
        pass

    def ready(_url: str) -> None:
        raise Listens

    source = source_of(world)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        with pytest.raises(Listens):
            serve(record_app(source), bind("127.0.0.1", 0), ready=ready)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        source.close()
    for table in ("runs", "measures", "attempts", "champions", "heartbeats", "campaign_events"):
        assert any(table in statement for statement in sent), table
