"""What doctor reads of accounts, QOS and reservations: outputs as Slurm printed them, and ones that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.controller.doctor.access import (
    Association,
    Reservation,
    read_associations,
    read_cached,
    read_reservations,
)

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "slurm" / "22.05"


def printed(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text().split("--- stdout\n")[1].split("--- stderr\n")[0]


def test_associations_have_their_caps_and_qos_with_the_default_first() -> None:
    assert read_associations(printed("sacctmgr-associations")) == [Association("root", None, ("fast", "normal"))]
    assert read_associations("lab|77|long,normal|normal\nlab-b|||\n") == [
        Association("lab", 77, ("normal", "long")),
        Association("lab-b"),
    ]


def test_the_controllers_own_copy_names_the_users_accounts_and_no_one_elses() -> None:
    text = printed("scontrol-assoc-mgr")
    assert read_cached(text, "root") == [Association("root")]
    assert read_cached(text, "ada") == []


def test_reservations_are_for_users_and_accounts() -> None:
    friday, other = read_reservations(printed("scontrol-reservation"))
    assert friday == Reservation("friday", ("root",), (), "ACTIVE", "2026-11-30T03:37:57")
    assert friday.is_for("root", []) and not friday.is_for("ada", ["lab"])
    assert other.state == "INACTIVE" and not other.is_for("root", [])
    [ours] = read_reservations("ReservationName=r Users=(null) Accounts=lab,lab-b State=ACTIVE")
    assert ours.is_for("ada", ["lab-b"]) and not ours.is_for("ada", [])
    [without] = read_reservations("ReservationName=r Users=-ada Accounts=-lab State=ACTIVE")
    assert not without.is_for("ada", ["lab"])
    assert read_reservations(printed("scontrol-no-reservation")) == []


@pytest.mark.parametrize("text", ["", "\n", "a|b\n", "|||\n", "=\n", "sacctmgr: error: no such thing\n", "a|b|c|d|e\n"])
def test_what_is_no_answer_names_nothing(text: str) -> None:
    assert read_associations(text) == [] and read_cached(text, "root") == [] and read_reservations(text) == []
