"""Times that vary from run to run of a kernel, as on hardware, and are the same in each run of a program."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from gpustreamlab.errors import OptionError

_STANDARD = NormalDist()
_LEAST = 2.0**-54  # in place of 0, which random() may give, and which a normal distribution never reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How the durations of kernels, copies and fills of a simulated device vary.

    Each is multiplied by a factor of its own: log-normal with median 1, and for a few, the outliers, `outlier_factor` times
    that. They are drawn in the order of submission: the same program with the same seed gives the same times, to the bit.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import SimBackend
    >>> backend = SimBackend("h200", noise=Noise(seed=1, spread=0.05))
    >>> backend.source()
    'simulated H200 (132 SMs): modelled times on a virtual clock, not measured; varied at random, seed 1'
    """

    seed: int
    """Where the drawing starts: a whole number, 0 or more."""
    spread: float = 0.02
    """Standard deviation of the factor's logarithm, from 0 to 1: with 0.02 two thirds of all times are within 2 %."""
    outlier_share: float = 0.001
    """How many of all are outliers, from 0 to 1."""
    outlier_factor: float = 3.0
    """How many times as long an outlier takes, 1 or more."""

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed < 0:
            raise OptionError(f"Noise has seed={self.seed!r:.40}; give a whole number of 0 or more, such as 1.")
        for what, least, most in (("spread", 0, 1), ("outlier_share", 0, 1), ("outlier_factor", 1, 1_000)):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise OptionError(f"Noise has {what}={value!r:.40}; give a number from {least} to {most:,}.")


class NoiseSource:
    """Draws one factor after the other.

    Python promises the same numbers of ``random()`` for a seed in all versions; the rest is computed from these here.

    Examples
    --------
    >>> source = NoiseSource(Noise(seed=1))
    >>> [round(source.draw(), 3) for _ in range(3)]
    [0.978, 1.014, 1.0]
    """

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._random = random.Random(noise.seed)  # noqa: S311 - no secret

    def draw(self) -> float:
        """Return the next factor. Each takes two numbers, so the share of outliers moves no other factor."""
        noise = self._noise
        factor = math.exp(noise.spread * _STANDARD.inv_cdf(max(self._random.random(), _LEAST)))
        return factor * noise.outlier_factor if self._random.random() < noise.outlier_share else factor
