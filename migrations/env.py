"""Alembic's entry: runs the revisions over the connection that `outerloop.record.migrate` hands in.

Covered: upgrades and the comparison with the models, one at a time per database. Not covered: choosing the database.
"""

from __future__ import annotations

from alembic import context

from outerloop.record.migrate import UPGRADE_LOCK, connect
from outerloop.record.models import Base


def run() -> None:
    """Run what alembic was asked for, in one transaction, while no other process upgrades this database."""
    if context.is_offline_mode():
        raise SystemExit("offline mode (--sql) is not supported: a revision may have to look at the data")
    url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True).get("url")
    if not url:
        raise SystemExit("no database: run `outerloop db upgrade`, or alembic with -x url=…")
    with connect(url) as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=False,
        )
        with context.begin_transaction():
            # held until the commit, so that a second upgrade finds the work done
            connection.exec_driver_sql("select pg_advisory_xact_lock(%(key)s)", {"key": UPGRADE_LOCK})
            context.run_migrations()


run()
