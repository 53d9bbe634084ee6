"""Whose runs are seen: the account that the process has, not the one that its environment names."""

from __future__ import annotations

import os
import pwd

import pytest

from outerloop.controller.deployment import account


def test_variables_left_over_from_sudo_make_nobody_else_of_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("LOGNAME", "somebody")
    assert account() == pwd.getpwuid(os.geteuid()).pw_name


def test_a_node_whose_password_database_lacks_us_goes_by_the_environment_then_by_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("LOGNAME", "ada")
    assert account() == "ada"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert account() == f"uid-{os.getuid()}"
