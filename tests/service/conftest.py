"""A service with its own account, two submitters, one more account, and a target: everything real, on this machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.postgres.conftest import database, pg_url, template_database
from tests.service.accounts import FIRST_UID, Account
from tests.service.world import ServiceWorld

__all__ = ["database", "pg_url", "template_database"]


@pytest.fixture
def service(database: str) -> Iterator[ServiceWorld]:
    folder = Path(tempfile.mkdtemp(prefix="ol-service-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "interpreter").mkdir(mode=0o755)
    # The server's account keeps its socket to itself and root; its password is what protects it here.
    run = Path(str(make_url(database).query["host"]))
    run.chmod(0o711)
    for socket in run.glob(".s.PGSQL.*[0-9]"):
        socket.chmod(0o777)
    accounts = {
        name: Account(name, FIRST_UID + number, folder / name, folder / "interpreter").make()
        for number, name in enumerate(("svc", "ada", "bob", "eve"))
    }
    try:
        yield ServiceWorld(folder, database, accounts)
    finally:
        assert not list((folder / "interpreter").iterdir()), "a bind mount is left: nothing is removed"
        shutil.rmtree(folder)
