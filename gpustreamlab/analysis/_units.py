"""Write nanoseconds, counts and names for people."""

from __future__ import annotations

import math

UNITS = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9))
"""Units of time, and how many ns each has."""

FIRST_MINUTE_NS = 120 * 10**9
"""From here on times are written in minutes."""


def format_ns(duration_ns: float) -> str:
    """Write a time with three significant digits in the unit that suits it: ns, µs, ms, s or min.

    Parameters
    ----------
    duration_ns
        In ns; may be negative.

    Examples
    --------
    >>> format_ns(950), format_ns(1_234_567), format_ns(999_960), format_ns(-2_500), format_ns(300 * 10**9)
    ('950 ns', '1.23 ms', '1.00 ms', '-2.50 µs', '5.00 min')
    """
    if duration_ns < 0:
        return f"-{format_ns(-duration_ns)}"
    if duration_ns < 999.5:
        return f"{duration_ns:.3g} ns"
    # A time that would be written as 1,000 of a unit is written as 1 of the next.
    limits_ns = (10**6, 10**9, FIRST_MINUTE_NS, math.inf)
    unit, scale = next(unit for unit, limit_ns in zip(UNITS[1:], limits_ns, strict=True) if duration_ns < limit_ns * 0.9995)
    return f"{three_digits(duration_ns / scale)} {unit}"


def format_ms(duration_ns: float) -> str:
    """Write a time in ms with three significant digits, without the unit.

    Examples
    --------
    >>> format_ms(0), format_ms(1_500), format_ms(12_345_678), format_ms(5_000_000_000)
    ('0', '0.00150', '12.3', '5,000')
    """
    value = duration_ns / 1e6
    if not value:
        return "0"
    if abs(value) < 1:
        return f"{value:#.3g}" if abs(value) >= 1e-4 else f"{value:.6f}"
    return three_digits(value)


def three_digits(value: float) -> str:
    """Write a number of at least 1 with three significant digits, and all digits in front of the point."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def format_share(share: float) -> str:
    """Write a share of 0 to 1 as a percentage, without rounding something to nothing or a part to the whole.

    Examples
    --------
    >>> [format_share(share) for share in (0.0, 0.0004, 0.257, 0.9999, 1.0, float("nan"))]
    ['0%', '<1%', '26%', '>99%', '100%', '-']
    """
    if share != share:
        return "-"
    if 0 < share <= 0.005:
        return "<1%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share:.0%}"
