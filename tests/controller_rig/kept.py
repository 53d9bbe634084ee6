"""A world as it once was, to be had again: a test of crash points needs the same beginning a hundred times.

Covered: the world's folder, with its times and links, at its own place, and the record's rows with their ids. Sequences
go on, so nothing new gets the id of something old. Not covered: processes, and what a world keeps in memory (nothing).
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Generic, TypeVar

import psycopg
from sqlalchemy import make_url

from tests.controller_rig.world import World

__all__ = ["Kept"]

Some = TypeVar("Some", bound=World)


class Kept(Generic[Some]):
    """What `world` is now; `again()` puts it back and returns it."""

    def __init__(self, world: Some) -> None:
        self.world = world
        self._folder = world.folder.with_name(f"{world.folder.name}.kept")
        url = world.settings.database_url.get_secret_value()
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        subprocess.run(["cp", "-a", str(world.folder), str(self._folder)], check=True)
        with psycopg.connect(self._url) as connection:
            connection.execute("drop schema if exists kept cascade")
            connection.execute("create schema kept")
            known = "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
            self._tables = [str(row[0]) for row in connection.execute(known) if row[0] != "alembic_version"]
            for table in self._tables:
                connection.execute(f"create table kept.{table} as table public.{table}")  # type: ignore[arg-type]

    def again(self) -> Some:
        shutil.rmtree(self.world.folder)
        subprocess.run(["cp", "-a", str(self._folder), str(self.world.folder)], check=True)
        with psycopg.connect(self._url) as connection:
            # Foreign keys and triggers have seen these rows already.
            connection.execute("set session_replication_role = replica")
            connection.execute(f"truncate {', '.join(self._tables)} cascade")  # type: ignore[arg-type]
            for table in self._tables:
                connection.execute(
                    f"insert into public.{table} overriding system value select * from kept.{table}"  # type: ignore[arg-type]
                )
        return self.world
