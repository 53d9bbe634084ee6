"""Numbers as a person reads them. Used by sentences, findings and `explain`; never by a decision."""

from __future__ import annotations

import decimal
from decimal import Decimal

SHOWN_DIGITS = 12
_SHOWN = decimal.Context(prec=SHOWN_DIGITS, Emin=-999_999, Emax=999_999)


def number(value: Decimal) -> str:
    """The value with at most 12 significant digits, in plain notation unless that gets long."""
    if not value.is_finite():
        return str(value)
    rounded = _SHOWN.plus(value)
    if rounded.is_zero():
        return "0"
    if not -6 <= rounded.adjusted() <= 15:
        return f"{rounded.normalize(_SHOWN):e}"
    plain = f"{rounded:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def signed(value: Decimal) -> str:
    """The value with its sign always shown (0 has none)."""
    text = number(value)
    return text if value.is_signed() or value.is_zero() else f"+{text}"


def percent(fraction: Decimal | float) -> str:
    """A fraction as a percentage with three significant digits."""
    share = float(fraction) * 100
    return f"{share:.3g} %" if abs(share) < 1000 else f"{share:.0f} %"


def plural(count: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
