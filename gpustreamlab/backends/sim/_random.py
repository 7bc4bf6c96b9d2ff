"""Random numbers of the simulated device: NumPy's generators, each call a modelled kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab.backends.sim._functions import NotSimulatedNameError, split_names
from gpustreamlab.errors import nearest_hint

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._xp import ArrayModule

_STATE = split_names("seed get_state set_state bytes tomaxint random_integers")
_LEGACY = frozenset(name for name in dir(np.random.RandomState) if not name.startswith("_")) - _STATE
_MODERN = split_names(
    "random integers uniform standard_normal exponential standard_exponential poisson binomial gamma beta standard_gamma "
    "chisquare dirichlet f geometric hypergeometric logseries power"
)
_ALIASES = {"ranf": "random_sample", "sample": "random_sample"}
_ADVICE = {
    "normal": "CuPy's Generator has none either. Use xp.random.normal, or loc + scale * rng.standard_normal(size).",
    "choice": "CuPy's Generator has none either. Use xp.random.choice, or a[rng.integers(0, len(a), size)].",
    "permutation": "CuPy's Generator has none either. Use xp.random.permutation, or xp.argsort(rng.random(n)).",
    "shuffle": "CuPy's Generator has none either. Use xp.random.shuffle.",
}


class SimGenerator:
    """A random generator, as `numpy.random.Generator` or `numpy.random.RandomState`.

    Parameters
    ----------
    module
        The array module.
    source
        NumPy's generator.
    """

    def __init__(self, module: ArrayModule, source: np.random.Generator | np.random.RandomState) -> None:
        self._module = module
        self._source = source
        self._is_legacy = isinstance(source, np.random.RandomState)
        self._known = _LEGACY if self._is_legacy else _MODERN

    def seed(self, seed: int | None = None) -> None:
        """Start the sequence of numbers at a seed; the same seed gives the same numbers."""
        if isinstance(self._source, np.random.RandomState):
            self._source.seed(seed)
        else:
            raise NotSimulatedNameError("A generator is seeded when it is made: xp.random.default_rng(seed).")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        plain_name = _ALIASES.get(name, name) if self._is_legacy else name
        if plain_name not in self._known:
            advice = _ADVICE.get(name) or nearest_hint(name, self._known)
            raise NotSimulatedNameError(f"The simulated device does not draw {name!r} random numbers. {advice}")

        def draw(*args: Any, **kwargs: Any) -> Any:
            # NumPy's older functions take no dtype where CuPy's do.
            dtype = kwargs.pop("dtype", None) if self._is_legacy and name != "randint" else None
            plain = getattr(self._source, plain_name)
            function = plain if dtype is None else lambda *a, **k: np.asarray(plain(*a, **k)).astype(dtype)
            return self._module.call_function(f"random.{name}", function, args, kwargs)

        draw.__name__ = name
        return draw

    def __dir__(self) -> list[str]:
        return sorted(self._known)


class RandomModule(SimGenerator):
    """``xp.random``. The numbers are NumPy's, not the bit streams of CuPy's generators."""

    def __init__(self, module: ArrayModule) -> None:
        super().__init__(module, np.random.RandomState())  # numpy.random's functions, without its global state

    def default_rng(self, seed: int | None = None) -> SimGenerator:
        """Make a generator of its own."""
        return SimGenerator(self._module, np.random.default_rng(seed))

    def RandomState(self, seed: int | None = None) -> SimGenerator:  # noqa: N802
        """Make a generator of its own, with the older functions."""
        return SimGenerator(self._module, np.random.RandomState(seed))

    def get_random_state(self) -> SimGenerator:
        """Return the generator that the functions of this module draw from."""
        return self

    def __dir__(self) -> list[str]:
        return sorted({"seed", "default_rng", "RandomState", "get_random_state", *self._known, *_ALIASES})
