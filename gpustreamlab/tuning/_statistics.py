"""Medians, their intervals, and outliers of samples: what is said of a measurement."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gpustreamlab.typing import BoolArray, FloatArray

RESAMPLES = 2_000
"""How often samples are drawn anew for an interval."""
SHARE = 0.95
"""Share of the resamples that an interval holds."""
FAR = 3.5
"""Outliers are farther from the median than this many standard deviations, as the median of the deviations tells them."""
_DEVIATIONS = 1.4826
"""The standard deviation of a normal distribution, over the median of its absolute deviations."""
_SEED = 20_26


def outliers(samples: ArrayLike) -> BoolArray:
    """Tell which samples are outliers: more than `FAR` standard deviations from the median, by the median deviation.

    Parameters
    ----------
    samples
        Shape (n,).

    Examples
    --------
    >>> outliers([10, 11, 10, 12, 11, 90]).tolist()
    [False, False, False, False, False, True]
    """
    values = np.asarray(samples, float)
    deviation = np.abs(values - np.median(values))
    spread = _DEVIATIONS * float(np.median(deviation))
    found: BoolArray = deviation > max(FAR * spread, 1e-3 * abs(float(np.median(values))))
    return found


def interval(samples: ArrayLike) -> tuple[float, float]:
    """Return the interval of the median by the percentile bootstrap: `RESAMPLES` draws with replacement, the seed fixed.

    Parameters
    ----------
    samples
        Shape (n,), n at least 1.

    Returns
    -------
    tuple of float
        The ends of the middle 95% of the resamples. Source: Efron, "Bootstrap Methods", Annals of Statistics 7 (1979).

    Examples
    --------
    >>> interval([5.0])
    (5.0, 5.0)
    >>> low, high = interval([9, 10, 10, 11, 10, 9, 12])
    >>> low <= 10 <= high
    True
    """
    drawn = _drawn(np.asarray(samples, float))
    return middle(np.median(drawn, axis=1))


def ratio_interval(above: ArrayLike, below: ArrayLike) -> tuple[float, float]:
    """Return the interval of the ratio of two medians; the samples of each are drawn anew by themselves.

    Examples
    --------
    >>> low, high = ratio_interval([20, 21, 19, 20], [10, 10, 11, 10])
    >>> 1.7 < low <= high < 2.2
    True
    """
    first, second = _drawn(np.asarray(above, float), 0), _drawn(np.asarray(below, float), 1)
    return middle(np.median(first, axis=1) / np.median(second, axis=1))


def means(samples: ArrayLike, place: int = 0) -> FloatArray:
    """Return the means of the resamples; shape (`RESAMPLES`,). Different places draw independently."""
    found: FloatArray = np.mean(_drawn(np.asarray(samples, float), place), axis=1)
    return found


def _drawn(values: FloatArray, place: int = 0) -> FloatArray:
    chance = np.random.default_rng((_SEED, place))
    drawn: FloatArray = values[chance.integers(0, len(values), (RESAMPLES, len(values)))]
    return drawn


def middle(found: FloatArray) -> tuple[float, float]:
    """Return the ends of the middle of resamples, `SHARE` of them."""
    low, high = np.quantile(found, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)
