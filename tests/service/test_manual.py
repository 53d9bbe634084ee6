"""The how-to page of a service, typed as it is shown: by an account of its own, into /srv, and by one that submits.

By night, and only as root where there is no /srv/outerloop yet: it is made for the test and removed after it. The
accounts have no line in the password database, so their names on the page are replaced by those that the kernel's
numbers give. Not covered: making the roles of a site's Postgres, which the page leaves to its administrator.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.documents import Block, Shell, console_blocks
from tests.postgres.conftest import _execute
from tests.postgres.test_roles import PASSWORD, login
from tests.service.accounts import Account, needs_root, nightly
from tests.service.world import ServiceWorld

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve-other-accounts.md"
TEXT = PAGE.read_text(encoding="utf-8")
SRV = Path("/srv/outerloop")
ROLES = ("outerloop_service", "dashboard", "ada")
"""Those of the page's grants."""
PATIENCE_SECONDS = 600.0

pytestmark = [needs_root, nightly, pytest.mark.timeout(1200)]


def block(first: str) -> Block:
    [found] = [block for block in console_blocks(TEXT) if block.commands[0].text.startswith(first)]
    return found


def shell(account: Account, folder: Path, **more: str) -> Shell:
    """A bash of this account in which `outerloop` is this checkout's."""
    program = account.command(["bash", "--noprofile", "--norc"])
    made = Shell(folder, account.environment(**more), seconds=PATIENCE_SECONDS, program=program)
    made.run(f'outerloop() {{ {shlex.quote(sys.executable)} -m outerloop.cli "$@"; }}')
    return made


def typed(shell: Shell, text: str, code: int = 0) -> str:
    ended, output = shell.run(text)
    assert ended == code, f"$ {text} ended with {ended}:\n{output}"
    return output


@pytest.fixture
def srv(service: ServiceWorld) -> Iterator[ServiceWorld]:
    """/srv/outerloop with the operator's clone of a target, all of it the service's account's."""
    if SRV.exists() or not SRV.parent.is_dir():
        pytest.skip(f"there is a {SRV} that is not this test's, or no {SRV.parent}")
    SRV.mkdir(mode=0o755)
    try:
        shutil.copytree(service.target, SRV / "targets" / "tsp")
        service.svc.own(SRV)
        yield service
    finally:
        shutil.rmtree(SRV)


@pytest.fixture
def roles(database: str) -> Iterator[str]:
    for role in ROLES:
        _execute(database, f"create role {role} login password '{PASSWORD}'")
    try:
        yield database
    finally:
        for role in ROLES:
            _execute(database, f"drop owned by {role}")
            _execute(database, f"drop role {role}")


def called(text: str, world: ServiceWorld) -> str:
    """The page's TOML with this machine's accounts in it."""
    names = {"outerloop": world.svc, "ada": world.ada, "bob": world.bob}
    for shown, account in names.items():
        text = text.replace(f'"{shown}"', f'"{account.unix}"').replace(f"limits.{shown}]", f"limits.{account.unix}]")
    return text


def configured(world: ServiceWorld) -> None:
    """Put what the page says about submitters and targets into what `init` has written."""
    operator, submitter, *_ = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    config = world.svc.home / ".config/outerloop/config.toml"
    written = config.read_text()
    assert 'mode = "service"' in written and 'isolation = "bwrap"' in written and f'spool = "{SRV}/spool"' in written
    own = [line for line in written.partition("\n[")[0].splitlines() if not re.match(r"(mode|isolation) = |#", line)]
    config.write_text("\n".join([*own, f'database_url = "{world.database}"', called(operator, world)]))
    for account in (world.ada, world.bob):
        (account.home / ".config/outerloop/config.toml").write_text(submitter)


def test_the_pages_commands_make_a_service_that_answers(srv: ServiceWorld) -> None:
    world = srv
    with shell(world.svc, world.svc.home, OUTERLOOP_DATABASE_URL=world.database) as operator:
        init, doctor = block("outerloop init").commands
        typed(operator, f"{init.text} --backend local")  # Slurm's programs are here, and no cluster answers them
        assert (SRV / "state").stat().st_mode & 0o777 == 0o700 and (SRV / "spool" / "incoming").is_dir()
        configured(world)
        # Nothing has ticked yet, which the doctor says; what the page's settings are is good
        _code, told = operator.run(doctor.text)
        assert "Traceback" not in told and not re.search(r"^FAIL", told, re.MULTILINE), told
        clone = world.clone(world.ada, {"better": {"src/cost": "8\n"}})
        typed(operator, "outerloop tick --quiet")
        with shell(world.ada, clone) as submitter:
            typed(submitter, "outerloop submit climb speed --candidate better")
            world.until(lambda: "accepted" in typed(submitter, "outerloop status"), "ada's verdict")
            run = re.search(r"\bc-[0-9a-f]{10}\b", typed(submitter, "outerloop status"))
            assert run is not None and "fell by 2" in typed(submitter, f"outerloop explain {run[0]}")


def test_the_pages_grants_bind(roles: str, service: ServiceWorld) -> None:
    with shell(service.svc, service.svc.home, OUTERLOOP_DATABASE_URL=roles) as operator:
        for command in block("outerloop db grant").commands:
            typed(operator, command.text)
    with login(roles, "outerloop_service") as connection:
        connection.execute("update runs set label = 'x'")
    with login(roles, "dashboard") as connection:
        connection.execute("select * from runs")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("update runs set label = 'x'")
    with login(roles, "ada") as connection:
        connection.execute("select * from submitted_runs")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from runs")
