"""What values reach: arrays, by the memory that they share, and what hides some of which nobody can know."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from gpustreamlab._util.arrays import find_owner, is_array, parts_of
from gpustreamlab.programs._calls import RUNS_TEXT, is_followed, root_of, root_of_type

MOST_OBJECTS = 100_000
"""How many objects are looked at; what holds more counts as unknown."""
_PLAIN = (str, bytes, int, float, complex, type(None), np.generic, np.dtype, range, slice, types.EllipsisType, types.CodeType)
_HOST = frozenset({"numpy", "pandas", "matplotlib", "IPython", "ipykernel", "traitlets", "ipywidgets", "tqdm", "logging"})
"""Libraries whose objects, but for NumPy's arrays, have nothing to do with the device."""
_DEVICE = frozenset({"cupy", "torch", "gpustreamlab", "numba", "triton"})
_THREADS = frozenset({"threading", "concurrent", "asyncio", "multiprocessing"})
"""Libraries whose objects work behind a cell."""
_SHARED = frozenset({"random", "fft", "linalg", "sparse"})
"""Parts of array modules that keep memory between calls, one for all streams."""
_OWN_UNKNOWN = ("gpustreamlab.programs", "gpustreamlab.streams.selection", "gpustreamlab.memory")


class Reach:
    """Follows values to the arrays that they reach: through containers, instances, functions and their globals.

    Parameters
    ----------
    values
        The notebook's variables.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._seen: dict[int, object] = {}
        """Objects that were followed; they are kept, so that no other gets their number."""
        self.arrays: dict[Hashable, Any] = {}
        """Arrays by their memory; and objects that keep some, by a key of their own."""
        self.unknown = ""
        """What hides work or memory; empty for nothing."""
        self.attributes: set[str] = set()
        """Attributes, and other names, that functions look up."""
        self.streams: set[str] = set()
        """Names of streams that are held."""
        self.has_session = False
        """Whether a session is among the values."""

    def follow(self, value: object) -> None:
        """Follow one value."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, _PLAIN) or id(one) in self._seen:
                continue
            if len(self._seen) >= MOST_OBJECTS:
                self.unknown = f"reaches more than {MOST_OBJECTS:,} objects"
                return
            self._seen[id(one)] = one
            waiting.extend(self._parts(one))

    def share(self, attributes: Iterable[str]) -> None:
        """Count what array modules keep between calls as memory that is used."""
        for name in _SHARED & set(attributes):
            self.arrays["library", name] = None

    def _parts(self, one: Any) -> Iterable[object]:
        kind = type(one)
        if kind in (list, tuple, set, frozenset):  # most of what there is
            return one  # type: ignore[no-any-return]
        if kind is dict:
            return one.values()  # type: ignore[no-any-return]
        if is_array(one) and not isinstance(one, type):
            self.arrays[find_owner(one).key] = one
            if getattr(one, "requires_grad", False):
                self.unknown = "reaches a tensor of autograd, which keeps others"
            return ()
        if isinstance(one, types.ModuleType):
            library = root_of(one.__name__, getattr(one, "__file__", None) or "")
            return list(vars(one).values()) if not library and one.__name__ != "__main__" else self._of_library(one, library)
        if isinstance(one, types.FunctionType):
            library = root_of(one.__module__, one.__code__.co_filename)
            return self._of_library(one, library) if library else self._of_function(one)
        if isinstance(one, types.MethodType):
            self.attributes.add(one.__name__)
            return (one.__func__, one.__self__)
        if isinstance(one, types.BuiltinFunctionType):
            owner = one.__self__
            is_bound = owner is not None and not isinstance(owner, types.ModuleType)
            return (owner,) if is_bound else self._of_library(one, root_of(one.__module__, ""))
        if isinstance(one, type):
            library = root_of_type(one)
            return self._of_library(one, library) if library else list(vars(one).values())
        return self._of_instance(one)

    def _of_instance(self, one: Any) -> Iterable[object]:
        library = root_of_type(type(one))
        if library == "gpustreamlab":
            return self._of_session(one)
        if not library:  # of the user's: what its methods look up is reached too
            return [type(one), *parts_of(one)]
        if library in _HOST:
            return ()
        if library in _DEVICE:
            if is_followed(one):
                return ()
            self.arrays["object", id(one)] = one
            return parts_of(one)
        if library in sys.stdlib_module_names and library not in _THREADS:
            if isinstance(one, weakref.ref):
                return (one(),)
            # What it keeps in memory of its own: a queue, a cache, a generator's variables.
            return [part for part in gc.get_referents(one) if not isinstance(part, (type, types.ModuleType))]
        return self._of_library(one, library)

    def _of_session(self, one: Any) -> Iterable[object]:
        kind = type(one)
        if kind.__name__ == "Session":
            self.has_session = True
        elif kind.__name__ == "Stream":
            self.streams.add(one.name)
        elif kind.__module__.startswith(_OWN_UNKNOWN):
            self.unknown = f"holds a {kind.__name__}"
        return ()

    def _of_library(self, one: Any, library: str) -> Iterable[object]:
        self.share(str(getattr(one, "__module__", None) or getattr(one, "__name__", "")).split("."))
        is_known = library in _DEVICE or library in _HOST or library in sys.stdlib_module_names
        if not is_known or library in _THREADS:
            name = getattr(one, "__name__", type(one).__name__)
            self.unknown = f"uses {name} of {library or 'an unknown library'}"
        return ()

    def _of_function(self, function: types.FunctionType) -> Iterable[object]:
        found: list[object] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:
                continue  # it has no value yet
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            self.attributes.update(code.co_names)
            for name in code.co_names:
                if name in function.__globals__:
                    found.append(function.__globals__[name])
                elif name in RUNS_TEXT:
                    self.unknown = f"calls {function.__name__}, which uses {name}"
            codes.extend(part for part in code.co_consts if isinstance(part, types.CodeType))
        return found


def is_plain_array(value: object) -> bool:
    """Tell whether a value is an array of a library of which it is known what its operators do."""
    return (
        is_array(value)
        and not getattr(value, "requires_grad", False)
        and root_of_type(type(value)) in ("numpy", "cupy", "torch", "gpustreamlab")
    )


def is_array_module(value: object) -> bool:
    """Tell whether functions of a value are those of NumPy: an array module, or a session, which has one."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in ("numpy", "cupy", "torch")
    return type(value).__module__.startswith("gpustreamlab.") and type(value).__name__ in ("ArrayModule", "Session")
