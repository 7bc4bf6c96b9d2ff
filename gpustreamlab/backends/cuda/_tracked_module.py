"""CuPy with tracked arrays: functions are followed, everything else is CuPy's own."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from gpustreamlab.backends.cuda._tracked import METADATA, ArrayLibrary, Memory, Tracker

SUBMODULES = frozenset({"fft", "linalg", "random"})
"""Submodules whose functions are followed too."""
_MAKES_GENERATORS = frozenset({"default_rng", "RandomState", "Generator"})


class TrackedModule:
    """An array module whose arrays tell what is read and written.

    Parameters
    ----------
    module
        The module behind it, or a submodule.
    tracker
        Follows the calls.
    """

    def __init__(self, module: Any, tracker: Tracker) -> None:
        self._module = module
        self._tracker = tracker

    def __repr__(self) -> str:
        return f"<{self._module.__name__} with tracked arrays>"

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        wrapped = self._wrap(name, value)
        if wrapped is not value:
            self.__dict__[name] = wrapped  # found without coming here the next time
        return wrapped

    def _wrap(self, name: str, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return TrackedModule(value, self._tracker) if name in SUBMODULES else value
        if name in _MAKES_GENERATORS and callable(value):
            return _make_generators(value, self._tracker)
        if not callable(value) or isinstance(value, type) or name.startswith("_") or name in METADATA:
            return value
        return TrackedFunction(name, value, self._tracker)


class TrackedFunction:
    """A function whose calls are followed. Its attributes are the function's own, those that are functions followed too."""

    def __init__(self, name: str, function: Callable[..., Any], tracker: Tracker) -> None:
        self._name = name
        self._function = function
        self._tracker = tracker
        self.__name__ = name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return repr(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._tracker.call(self._name, self._function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._function, name)
        return value if name.startswith("_") or not callable(value) else TrackedFunction(name, value, self._tracker)


class TrackedGenerator:
    """A random generator whose arrays are tracked."""

    def __init__(self, generator: Any, tracker: Tracker) -> None:
        self._generator = generator
        self._tracker = tracker

    def __repr__(self) -> str:
        return repr(self._generator)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._generator, name)
        return value if name.startswith("_") or not callable(value) else TrackedFunction(name, value, self._tracker)


def cupy_library(cupy: Any) -> ArrayLibrary:
    """Return what tracking has to know of CuPy."""

    def memory_of(array: Any) -> Memory:
        memory = array.data.mem
        lender = getattr(memory, "_owner", None)  # of cupy.cuda.UnownedMemory: what `CudaScratch.array` gave it
        return Memory(memory, memory.ptr, memory.ptr + memory.size, lender if hasattr(lender, "ending") else None)

    return ArrayLibrary(
        module=cupy,
        array_type=cupy.ndarray,
        memory_of=memory_of,
        address_of=lambda array: int(array.data.ptr),
        current_handle=lambda: int(cupy.cuda.get_current_stream().ptr),
    )


def _make_generators(make: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    def make_tracked(*args: Any, **kwargs: Any) -> TrackedGenerator:
        return TrackedGenerator(make(*args, **kwargs), tracker)

    make_tracked.__doc__ = make.__doc__
    return make_tracked
