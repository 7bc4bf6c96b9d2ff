"""Random numbers of the simulated device: NumPy's generators, each call a modelled kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab.backends.sim._functions import RANDOM, split_names
from gpustreamlab.errors import NotSimulatedError, nearest_hint

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._xp import ArrayModule

_LEGACY = split_names(
    "rand randn random random_sample randint uniform normal standard_normal exponential standard_exponential poisson "
    "binomial gamma "
    "beta permutation choice laplace lognormal"
)
_MODERN = split_names(
    "random integers uniform standard_normal exponential standard_exponential poisson binomial gamma beta standard_gamma"
)


class RandomModule:
    """``xp.random``. The numbers are NumPy's, not the bit streams of CuPy's generators."""

    def __init__(self, module: ArrayModule) -> None:
        self._module = module
        self._state = np.random.RandomState()  # numpy.random's functions, without its global state

    def seed(self, seed: int | None = None) -> None:
        """Start the sequence of numbers at a seed; the same seed gives the same numbers."""
        self._state.seed(seed)

    def default_rng(self, seed: int | None = None) -> SimGenerator:
        """Make a generator of its own."""
        return SimGenerator(self._module, np.random.default_rng(seed))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _draw_with(self._module, self._state, name, _LEGACY)

    def __dir__(self) -> list[str]:
        return sorted({"seed", "default_rng", *_LEGACY})


class SimGenerator:
    """A random generator, as `numpy.random.Generator`.

    Parameters
    ----------
    module
        The array module.
    generator
        NumPy's generator.
    """

    def __init__(self, module: ArrayModule, generator: np.random.Generator) -> None:
        self._module = module
        self._generator = generator

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _draw_with(self._module, self._generator, name, _MODERN)

    def __dir__(self) -> list[str]:
        return sorted(_MODERN)


def _draw_with(module: ArrayModule, source: object, name: str, known: frozenset[str]) -> Callable[..., Any]:
    if name.startswith("_"):
        raise AttributeError(name)
    if name not in known:
        raise NotSimulatedError(f"The simulated device does not draw {name!r} random numbers. {nearest_hint(name, known)}")

    def draw(*args: Any, **kwargs: Any) -> Any:
        # NumPy's older functions take no dtype where CuPy's do.
        dtype = kwargs.pop("dtype", None) if known is _LEGACY and name != "randint" else None
        plain_args = [value.get() if isinstance(value, module.ndarray) else value for value in args]
        result = getattr(source, name)(*plain_args, **kwargs)
        return module.launch_random(f"random.{name}", RANDOM, result if dtype is None else np.asarray(result).astype(dtype))

    draw.__name__ = name
    return draw
