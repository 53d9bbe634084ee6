"""Parameters of statements that are built once.

SQLAlchemy takes two to five times as long to build a statement and to look its text up as to send it, so what every
pass and every tick asks is built when its module is imported, with named parameters for what differs (docs/log.md has
the figures). Not covered: statements of which the parts differ from call to call.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ColumnElement, any_, bindparam, cast
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute

__all__ = ["is_among"]


def is_among(column: InstrumentedAttribute[int], name: str) -> ColumnElement[bool]:
    """`column in ids`, where the ids are a list given as the parameter `name` when the statement is executed."""
    return column == any_(cast(bindparam(name, type_=ARRAY(BigInteger)), ARRAY(BigInteger)))
