"""Database roles with least rights: what a login may do with the record.

Covered: granting one of four profiles to a role that exists, and taking away whatever it had before. Not covered:
making roles and how they log in (the database's administrator; peer authentication needs no password).

| profile | may |
|---|---|
| service | read and write every row; make, change or drop no table |
| viewer | read every row |
| submitter | read the view `submitted_runs`: its own runs, without what a ladder withholds |
| researcher | read and write the rows of its own deployments, of a record that several personal deployments share |

A submitter's and a researcher's role is named like the Unix account: the view shows the rows whose submitter is the
role that logged in, and row-level security leaves a researcher the rows of realms that are that account's.
Nothing here is part of a migration: the grants are given again after an upgrade that brings tables.
"""

from __future__ import annotations

from typing import Literal, get_args

from sqlalchemy import text

from outerloop.record.migrate import connect

__all__ = ["PROFILES", "Profile", "RoleError", "grant"]

Profile = Literal["service", "viewer", "submitter", "researcher"]
PROFILES: tuple[str, ...] = get_args(Profile)

VIEW = "submitted_runs"

# security_barrier: a function in the query's own conditions must see no row that the view leaves out (PostgreSQL
# manual, 41.5 Rules and Privileges). session_user: `set role` changes nothing about whose rows they are.
_VIEW_SQL = f"""
create view {VIEW} with (security_barrier) as
select r.id, r.kind, r.target, r.benchmark, r.candidate_commit, r.base_commit, r.label, r.state,
       r.created_at, r.ended_at, s.sealed,
       case when s.sealed then null else r.state_reason end as state_reason,
       case when s.sealed then null else r.verdict end as verdict,
       case when s.sealed then null else r.verdict_reason end as verdict_reason,
       case when s.sealed then null else r.sentence end as sentence
  from runs r
 cross join lateral (select coalesce((r.request ->> 'sealed')::boolean, false) as sealed) s
 where r.submitter = session_user
"""

_OF_REALM = "realm_id in (select id from realms where owner = session_user)"
# Below a run, whose own rows the same role sees.
_OF_RUN = "exists (select 1 from runs where runs.id = run_id)"
_OWN_ROWS = {
    "realms": "owner = session_user",
    **dict.fromkeys(("arrays", "attempts", "champions", "heartbeats", "runs", "slots", "wakes"), _OF_REALM),
    **dict.fromkeys(("awaits", "campaign_events", "events", "leases", "measures"), _OF_RUN),
}
"""Table -> which of its rows are those of the account that logged in. Every table of the record is here (a test)."""

# Everybody else sees what the grants above let: a restrictive policy binds the roles that it names, and no other.
_EVERYBODY = (
    "alter table {table} enable row level security",
    "drop policy if exists everybody on {table}",
    "create policy everybody on {table} using (true) with check (true)",
)
_FREE = "drop policy if exists {policy} on {table}"
_BIND = "create policy {policy} on {table} as restrictive to {role} using ({own}) with check ({own})"

_READ = ("grant usage on schema public to {role}", "grant select on all tables in schema public to {role}")
_GRANTS: dict[str, tuple[str, ...]] = {
    "viewer": (*_READ, "alter default privileges in schema public grant select on tables to {role}"),
    "service": (
        "grant usage on schema public to {role}",
        "grant select, insert, update, delete on all tables in schema public to {role}",
        "grant usage, select on all sequences in schema public to {role}",
        "alter default privileges in schema public grant select, insert, update, delete on tables to {role}",
        "alter default privileges in schema public grant usage, select on sequences to {role}",
    ),
    "submitter": ("grant usage on schema public to {role}", f"grant select on {VIEW} to {{role}}"),
    "researcher": (
        "grant usage on schema public to {role}",
        "grant select, insert, update, delete on all tables in schema public to {role}",
        "revoke insert, update, delete on alembic_version from {role}",
        "grant usage, select on all sequences in schema public to {role}",
    ),
}
_REVOKES = (
    "revoke all on all tables in schema public from {role}",
    "revoke all on all sequences in schema public from {role}",
    "revoke all on schema public from {role}",
    "alter default privileges in schema public revoke all on tables from {role}",
    "alter default privileges in schema public revoke all on sequences from {role}",
)


class RoleError(ValueError):
    """The role can't be given these rights; the text says why and what to do."""


def grant(url: str, role: str, profile: Profile) -> None:
    """Give `role` exactly the rights of `profile`, in one transaction; what it had before is taken away.

    Raises RoleError for a role that does not exist or that no grant can bind, and SQLAlchemy's errors.
    """
    with connect(url) as connection:
        facts = connection.execute(
            text("select rolsuper, rolname = current_user as own from pg_roles where rolname = :r"), {"r": role}
        ).one_or_none()
        quote = connection.dialect.identifier_preparer.quote_identifier
        if facts is None:
            raise RoleError(
                f"there is no role {role}; the database's administrator makes it: create role {quote(role)} login"
            )
        if facts.rolsuper:
            raise RoleError(f"{role} is a superuser, whom no grant restrains; take a role of its own")
        if facts.own:
            raise RoleError(
                f"{role} is the role that owns the tables (the one in database_url): it would lock itself out"
            )
        owner = connection.execute(
            text("select tableowner from pg_tables where tablename = 'runs'")
        ).scalar_one_or_none()
        if owner is None:
            raise RoleError("the record has no tables yet: run `outerloop db upgrade`")
        name = quote(role)
        # Before version 15 every role may make tables in the schema public (release notes of PostgreSQL 15).
        connection.execute(text("revoke create on schema public from public"))
        if connection.execute(text("select to_regclass(:v)"), {"v": VIEW}).scalar_one() is None:
            connection.execute(text(_VIEW_SQL))
        for statement in (*_REVOKES, *_GRANTS[profile]):
            connection.execute(text(statement.format(role=name)))
        policy = quote(f"own_{role}")
        for table, own in _OWN_ROWS.items():
            statements = [_FREE] if profile != "researcher" else [*_EVERYBODY, _FREE, _BIND]
            for statement in statements:
                connection.execute(text(statement.format(table=table, policy=policy, role=name, own=own)))
        connection.commit()
