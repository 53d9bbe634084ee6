"""Log-likelihood ratios of H1 to H0 for normal gains with unknown variance.

Covers: the sequential t-test and the generalised SPRT, in units of the standard deviation and absolute, on
arrays of sufficient statistics. Does not cover: bounds and looks (sequential.py), or noise that is not
normal: the simulated table says what happens then.

Sources. Sequential t: Rushton, "On a sequential t-test", Biometrika 37 (1950); Schnuerch and Erdfelder,
"Controlling decision errors with minimal costs: the sequential probability ratio t test", Psychological
Methods 25(2), 2020. GSPRT: Van den Bergh, "A practical introduction to the GSPRT" (2019 note).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from outerloop.climb.model import SequentialTest, Units

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# An absolute ratio is infinite when all gains equal a hypothesis exactly; nothing needs a larger one than
# this (bounds are at most log(1e9) = 21), and JSON has no infinity.
MOST_LLR = 1e6
# Trapezoid steps, in standard deviations of the integrand's peak: its error falls like exp(−2π²/step²).
_STEP = 0.4
_REACH = 14.0
# With few degrees of freedom the left tail falls only like e^−x, so it is followed further.
_LEFT_REACH_SMALL = 60.0
_SMALL_DF = 30


def log_ratio(test: SequentialTest, units: Units, n: int, mean: Floats, sd: Floats, h0: float, h1: float) -> Floats:
    """The natural-log likelihood ratio after n pairs with this mean and sample standard deviation.

    `mean`, `sd` and, for absolute units, h0 and h1 are in one common unit. In absolute units both tests are
    the profile likelihood ratio, since the scale-invariant t ratio exists only for effects in sd units.
    """
    import numpy as np

    if units == "absolute":
        ratio = absolute_log_ratio(n, mean, sd, h0, h1)
    else:
        direction = standardised_direction(n, mean, sd)
        function = t_log_ratio if test == "t" else gsprt_log_ratio
        ratio = function(n, direction, h0, h1)
    return np.clip(ratio, -MOST_LLR, MOST_LLR)


def standardised_direction(n: int, mean: Floats, sd: Floats) -> Floats:
    """r = t/√(ν+t²) in [−1, 1]: the sum over √(n·sum of squares). Gains without variance give ±1; zeros, 0."""
    import numpy as np

    squares = (n - 1) * sd**2 + n * mean**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, math.sqrt(n) * mean / np.sqrt(squares), 0.0)


def t_log_ratio(n: int, direction: Floats, d0: float, d1: float) -> Floats:
    """log f(t | d1·√n) − log f(t | d0·√n) with f the noncentral t density of n−1 degrees of freedom."""
    return _log_noncentral(n, direction, d1) - _log_noncentral(n, direction, d0)


def _log_noncentral(n: int, direction: Floats, d: float) -> Floats:
    """log of noncentral over central t density: −δ²/2 + log(I(z)/I(0)), I(z) = ∫₀^∞ u^ν exp(−u²/2 + zu) du.

    δ = d√n, z = δt/√(ν+t²). The same number as the form with two confluent hypergeometric functions, which
    overflow for large z and cancel for negative z; this integral does neither.
    """
    if d == 0:
        return 0.0 * direction
    df = n - 1
    z = d * math.sqrt(n) * direction
    # I(0) in closed form: 2^((ν−1)/2) Γ((ν+1)/2)
    log_i0 = (df - 1) / 2 * math.log(2) + math.lgamma((df + 1) / 2)
    return -n * d * d / 2 + _log_integral(df, z) - log_i0


def _log_integral(df: int, z: Floats) -> Floats:
    """log ∫₀^∞ u^df exp(−u²/2 + zu) du by the trapezoid rule in s = log u, around the integrand's peak."""
    import numpy as np

    power = df + 1
    root = np.sqrt(z * z + 4 * power)
    with np.errstate(divide="ignore"):
        peak = np.where(z >= 0, (z + root) / 2, 2 * power / np.where(z < 0, root - z, 1.0))
    width = 1 / np.sqrt(peak * peak + power)
    left = _LEFT_REACH_SMALL if df < _SMALL_DF else _REACH
    steps = np.arange(-left, _REACH + _STEP / 2, _STEP)
    s = np.log(peak)[..., None] + width[..., None] * steps
    u = np.exp(s)
    exponent = power * s - u * u / 2 + z[..., None] * u
    top = power * np.log(peak) - peak * peak / 2 + z * peak
    result: Floats = top + np.log(np.exp(exponent - top[..., None]).sum(axis=-1) * _STEP * width)
    return result


def gsprt_log_ratio(n: int, direction: Floats, d0: float, d1: float) -> Floats:
    """The normal likelihood ratio of mean/σ = d1 to d0, each maximised over σ.

    With v = (dr + √(d²r²+4))/2, the maximising 1/σ in units of √(n/Σx²), the log likelihood is
    n·(log v + d·r·v/2 − d²/2) up to terms that both hypotheses share.
    """
    import numpy as np

    def profile(d: float) -> Floats:
        v = (d * direction + np.sqrt((d * direction) ** 2 + 4)) / 2
        result: Floats = np.log(v) + d * direction * v / 2 - d * d / 2
        return result

    return n * (profile(d1) - profile(d0))


def absolute_log_ratio(n: int, mean: Floats, sd: Floats, h0: float, h1: float) -> Floats:
    """n/2 · log(Σ(x−h0)² / Σ(x−h1)²): the normal likelihood ratio of mean h1 to h0, maximised over σ."""
    import numpy as np

    spread = sd**2 * (n - 1) / n
    with np.errstate(divide="ignore"):
        result: Floats = n / 2 * (np.log(spread + (mean - h0) ** 2) - np.log(spread + (mean - h1) ** 2))
    return result
