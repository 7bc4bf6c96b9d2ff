"""Where a time axis has its ticks, and what they say."""

from __future__ import annotations

import math

from gpustreamlab.analysis._units import FIRST_MINUTE_NS, UNITS

_MINUTE_STEPS = (30, 60, 120, 300, 600, 900, 1800, 3600)


def time_ticks(start_ns: float, end_ns: float, tick_count: int = 8) -> list[tuple[float, str]]:
    """Choose round ticks for a time axis.

    Parameters
    ----------
    start_ns, end_ns
        What the axis shows, in ns.
    tick_count
        About how many ticks are wanted.

    Returns
    -------
    list of tuple of float and str
        Each tick's place in ns, and its label with the unit.

    Examples
    --------
    >>> [label for _, label in time_ticks(0, 4_100_000, 5)]
    ['0 ms', '1 ms', '2 ms', '3 ms', '4 ms']
    """
    width_ns = end_ns - start_ns
    if not width_ns > 0:
        return []
    step_ns = _round_step(width_ns / max(1, tick_count), width_ns)
    unit, scale = axis_unit(width_ns)
    decimals = max(0, math.ceil(-math.log10(step_ns / scale) - 1e-9)) if unit != "min" else int(step_ns % scale > 0)
    first, last = math.ceil(start_ns / step_ns - 1e-9), math.floor(end_ns / step_ns + 1e-9)
    return [(index * step_ns, f"{index * step_ns / scale:,.{decimals}f} {unit}") for index in range(first, last + 1)]


def axis_unit(width_ns: float) -> tuple[str, int]:
    """Return the unit for an axis that shows this much time, and how many ns it has.

    Examples
    --------
    >>> axis_unit(900), axis_unit(5_000_000), axis_unit(121 * 10**9)
    (('ns', 1), ('ms', 1000000), ('min', 60000000000))
    """
    if width_ns > FIRST_MINUTE_NS:
        return UNITS[-1]
    return next((unit for unit in reversed(UNITS[:-1]) if width_ns >= unit[1]), UNITS[0])


def _round_step(least_ns: float, width_ns: float) -> float:
    if width_ns > FIRST_MINUTE_NS:
        fitting = [step for step in _MINUTE_STEPS if step * 10**9 >= least_ns]
        if fitting:
            return fitting[0] * 10**9
        hours = _decimal_step(least_ns / (3600 * 10**9))
        return hours * 3600 * 10**9
    return _decimal_step(least_ns)


def _decimal_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
