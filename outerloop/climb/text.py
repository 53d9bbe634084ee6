"""Numbers as a person reads them. Used by sentences, findings and `explain`; never by a decision."""

from __future__ import annotations

import decimal
from decimal import Decimal

# A number that a program printed, or the sum of a few, has at most this many digits and is shown whole.
MEASURED_DIGITS = 20
# A binary float holds 15 decimal digits and is printed with up to 17 (IEEE 754 double): the last ones are rounding
# noise, as in 9.000000000000001, and a sentence shows FLOAT_SHOWN digits of such a number.
FLOAT_DIGITS = (16, 17)
FLOAT_SHOWN = 12
# A longer one is a quotient: it is cut to this many digits, and to two decimals more than its integer part.
QUOTIENT_DIGITS = 6


def number(value: Decimal) -> str:
    """The value in plain notation (scientific when that gets long); rounding noise of binary floats left away,
    quotients cut to about six digits."""
    if not value.is_finite():
        return str(value)
    if value.is_zero():
        return "0"
    shown = value
    if len(value.as_tuple().digits) in FLOAT_DIGITS:
        digits = max(FLOAT_SHOWN, min(MEASURED_DIGITS, value.adjusted() + 1))
        shown = decimal.Context(prec=digits, Emin=-999_999, Emax=999_999).plus(value)
    elif len(value.as_tuple().digits) > MEASURED_DIGITS:
        digits = min(MEASURED_DIGITS, max(QUOTIENT_DIGITS, value.adjusted() + 3))
        shown = decimal.Context(prec=digits, Emin=-999_999, Emax=999_999).plus(value)
    if not -6 <= shown.adjusted() <= 15:
        mantissa, exponent = f"{shown:e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{exponent}"
    plain = f"{shown:f}"
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
