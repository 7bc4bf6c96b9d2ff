"""How time depends on SMs: several models, and which of them holds for sizes that it has not seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gpustreamlab.typing import FloatArray

__all__ = ["NO_FIT_ERROR", "Fit", "fit_times"]

NO_FIT_ERROR = 0.15
"""A model whose held-out error is above this, in the median, fits nothing."""
FEWEST_SIZES = 4
"""With fewer sizes nothing can be held out."""
TIE_DIGITS = 3
"""Models whose median errors are the same to this many digits are told apart by their worst error."""
MOST_KERNELS = 4
"""How many kernels the waves of a call are told apart by: those with most time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model of the time that a call takes on some number of SMs."""

    model: str
    """``"Amdahl"``, ``"roofline"``, ``"waves"`` or ``"waves and a floor"``."""
    formula: str
    """The model with its numbers; times in us, n is the number of SMs."""
    errors: FloatArray
    """Relative error at each size when the model was fitted to the others; shape (n_sizes,), float64."""
    predict: Callable[[ArrayLike], FloatArray]
    """Returns the time in ns for numbers of SMs."""

    @property
    def median_error(self) -> float:
        """The median of the held-out errors, without sign."""
        return float(np.median(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        """The largest of them, without sign."""
        return float(np.abs(self.errors).max())

    def __str__(self) -> str:
        return f"{self.model}: {self.formula}; held-out error {self.median_error:.1%}, at most {self.worst_error:.0%}"


_Columns = Callable[[FloatArray], FloatArray]
_Solved = tuple[Callable[[FloatArray], FloatArray], str]


def fit_times(sizes: ArrayLike, times_ns: ArrayLike, blocks: Mapping[int, float] | None = None) -> tuple[Fit, ...]:
    """Fit all models, each by the sum of squared relative errors; those with the smallest held-out error come first.

    Parameters
    ----------
    sizes, times_ns
        Numbers of SMs, and how long a call took on each, in ns; shape (n_sizes,).
    blocks
        Of kernels whose grids and occupancy are known: how many SMs one wave of all their blocks would fill, and their share of
        the time. Without it the models of waves are left out.

    Returns
    -------
    tuple of Fit
        Empty with fewer than `FEWEST_SIZES` sizes.

    Examples
    --------
    >>> best = fit_times([8, 16, 32, 64, 128], [1100, 600, 350, 225, 162.5])[0]
    >>> best.model, round(float(best.predict(100)[0])), best.median_error < 1e-9
    ('Amdahl', 180, True)
    """
    n, t = np.asarray(sizes, float), np.asarray(times_ns, float)
    if len(n) < FEWEST_SIZES:
        return ()
    models: dict[str, Callable[[FloatArray, FloatArray], _Solved]] = {"Amdahl": _amdahl, "roofline": _roofline}
    if blocks:
        waves = sorted(blocks, key=lambda one: -blocks[one])[:MOST_KERNELS]
        models["waves"] = lambda n, t: _linear(n, t, lambda n: _waves(n, waves), [f"ceil({one}/n)" for one in waves])
        models["waves and a floor"] = lambda n, t: _linear(
            n, t, lambda n: np.column_stack([np.ones_like(n), _waves(n, waves)]), ["1", *(f"ceil({one}/n)" for one in waves)]
        )
    fits = [_held_out(name, solve, n, t) for name, solve in models.items()]
    # On a floor several models are right at most sizes: the sizes where they differ decide.
    return tuple(sorted(fits, key=lambda one: (round(one.median_error, TIE_DIGITS), one.worst_error)))


def _held_out(name: str, solve: Callable[[FloatArray, FloatArray], _Solved], n: FloatArray, t: FloatArray) -> Fit:
    errors = np.empty(len(n))
    for place in range(len(n)):
        others = np.arange(len(n)) != place
        predict, _ = solve(n[others], t[others])
        errors[place] = predict(n[place : place + 1])[0] / t[place] - 1
    predict, formula = solve(n, t)
    return Fit(
        model=name, formula=formula, errors=errors, predict=lambda sizes: predict(np.atleast_1d(np.asarray(sizes, float)))
    )


def _amdahl(n: FloatArray, t: FloatArray) -> _Solved:
    return _linear(n, t, lambda n: np.column_stack([np.ones_like(n), 1 / n]), ["1", "1/n"])


def _roofline(n: FloatArray, t: FloatArray) -> _Solved:
    """As long as work over SMs, but no shorter than a floor: memory that some SMs draw full, or kernels that fill no more."""
    best: tuple[float, float, float] = (np.inf, 0.0, 0.0)
    for knee in range(len(n) + 1):
        left, right = np.argsort(n)[:knee], np.argsort(n)[knee:]
        slope = _scale(1 / n[left] / t[left]) if len(left) else 0.0
        floor = _scale(1 / t[right]) if len(right) else 0.0
        error = float((((np.maximum(slope / n, floor)) / t - 1) ** 2).sum())
        best = min(best, (error, slope, floor))
    _, slope, floor = best
    return lambda n: np.maximum(slope / n, floor), f"max({floor / 1e3:.3g}, {slope / 1e3:.4g}/n)"


def _scale(over: FloatArray) -> float:
    """Return the factor that brings values nearest to 1, by squares."""
    return float(over.sum() / (over**2).sum())


def _waves(n: FloatArray, waves: Sequence[int]) -> FloatArray:
    return np.column_stack([np.ceil(one / n) for one in waves])


def _linear(n: FloatArray, t: FloatArray, columns: _Columns, words: Sequence[str]) -> _Solved:
    """Fit a sum of columns with factors that are not negative: the best of all subsets of the columns."""
    table = columns(n) / t[:, None]
    best, factors = np.inf, np.zeros(table.shape[1])
    for count in range(1, table.shape[1] + 1):
        for chosen in itertools.combinations(range(table.shape[1]), count):
            found = np.linalg.lstsq(table[:, chosen], np.ones(len(n)), rcond=None)[0]
            error = float(((table[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < best:
                best, factors = error, np.zeros(table.shape[1])
                factors[list(chosen)] = found
    least = 1e-9 * float(np.abs(columns(n) @ factors).max())
    used = [(factor, word) for factor, word in zip(factors, words, strict=True) if factor > least]
    formula = " + ".join(f"{factor / 1e3:.4g}" + ("" if word == "1" else f" {word}") for factor, word in used)
    return lambda n: np.asarray(columns(n) @ factors), formula or "0"
