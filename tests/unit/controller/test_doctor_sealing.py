"""What doctor says of held-out rows in a personal deployment."""

from __future__ import annotations

from pathlib import Path

from outerloop.controller.doctor.cron import promise
from outerloop.controller.doctor.finding import FAIL, OK, Site
from outerloop.settings import Settings
from outerloop.slots import StateRoot


def told(state: Path) -> list[tuple[str, str]]:
    site = Site(Settings(state=state), state / "config.toml", StateRoot(state), "local")
    return [(finding.level, finding.sentence) for finding in promise(site) if "held-out" in finding.sentence]


def test_sealing_is_a_convention_on_your_own_account_and_none_where_others_may_enter(tmp_path: Path) -> None:
    assert told(tmp_path) == [], "no entry was submitted yet"
    (tmp_path / "sealed").mkdir(mode=0o700)
    [(level, text)] = told(tmp_path)
    assert level == OK and "a convention" in text
    (tmp_path / "sealed").chmod(0o750)
    [(level, text)] = told(tmp_path)
    assert level == FAIL and "(mode 0750)" in text
