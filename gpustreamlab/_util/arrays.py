"""Arrays in values, who owns their memory, and whether anybody still refers to it."""

from __future__ import annotations

import functools
import gc
import logging
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from gpustreamlab._util.defences import process_lock
from gpustreamlab.errors import OptionError

T = TypeVar("T")
MOST_ITEMS = 100_000  # Up to how many items of containers are looked at for arrays
_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_LOOKED_INTO = frozenset({"builtins", "collections", "itertools", "functools", "types"})
"""Modules of iterators, partial functions and containers without attributes."""
_SEQUENCES = (list, tuple, set, frozenset, deque)


# Types are asked, not objects: `isinstance`, `hasattr` and `len` may run code of the user's, which must not notice.


def cached_by_type(function: Callable[[type], T]) -> Callable[[type], T]:
    """Keep what a function returns for a class; classes that are made anew by each run of a cell go in the end."""
    return functools.lru_cache(maxsize=10_000)(function)


@cached_by_type
def names_of_type(kind: type) -> frozenset[str]:
    """Return the names that a class and its bases define."""
    return frozenset().union(*(vars(base) for base in kind.__mro__))


@cached_by_type
def _is_array_type(kind: type) -> bool:
    if issubclass(kind, (np.ndarray, np.generic)):
        return issubclass(kind, np.ndarray)
    names = names_of_type(kind)
    return names >= {"shape", "dtype", "strides"} or names >= {"shape", "untyped_storage"}


def is_array(value: object) -> bool:
    """Tell whether a value is an array in device memory, or NumPy's."""
    return _is_array_type(type(value))


def find_arrays(value: object) -> Iterator[Any]:
    """Find the arrays that a value leads to: in containers, iterators, attributes, and what functions close over.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros(3)
    >>> [len(list(find_arrays(one))) for one in ([x, {"k": x}], iter([x]), lambda: x, "x")]
    [1, 1, 0, 0]
    """
    seen = set[int]()
    waiting = [value]
    while waiting and len(seen) < MOST_ITEMS:
        one = waiting.pop()
        if id(one) in seen or issubclass(type(one), _PLAIN):
            continue
        seen.add(id(one))
        if is_array(one):
            yield one
        else:
            waiting.extend(parts_of(one))


def is_own(value: object) -> bool:
    """Tell whether a value is an object of this package, or of the notebook: a session, a stream, a shell, a widget.

    Its attributes are not the user's. A shell's lead to each module that there is, and to all results so far.
    """
    return type(value).__module__.startswith(("gpustreamlab.", "IPython.", "ipykernel.", "traitlets.", "ipywidgets."))


def parts_of(value: object) -> Iterable[object]:
    """Return what a container holds, the attributes of an instance, or what a function closes over."""
    kind = type(value)
    if issubclass(kind, types.FunctionType):  # not its globals: those are variables of the program, or of another module
        function: Any = value
        return [*(function.__closure__ or ()), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if is_own(value):
        return ()
    found = [one for _, one in items_of(value)]
    found += [*(attributes_of(value) or {}).values(), *(one for _, one, _ in slotted(value))]
    return [*found, *gc.get_referents(value)] if kind.__module__ in _LOOKED_INTO else found


def items_of(value: Any) -> list[tuple[object, object]]:
    """Return what a list, tuple, set, deque or dictionary holds, by place or key; nothing for what is none."""
    kind = type(value)
    if issubclass(kind, dict):  # an ordered one keeps an order of its own
        return list(OrderedDict.items(value) if issubclass(kind, OrderedDict) else dict.items(value))
    base = next((one for one in _SEQUENCES if issubclass(kind, one)), None)
    return [] if base is None else list(enumerate(base.__iter__(value)))


def attributes_of(value: object) -> dict[str, Any] | None:
    """Return the dictionary of an object's attributes, or None."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


def slotted(value: object) -> Iterator[tuple[str, object, Any]]:
    """Yield what the ``__slots__`` of an object hold: the name, the value, and the descriptor that sets it."""
    for base in type(value).__mro__:
        for name, one in vars(base).items() if "__slots__" in vars(base) else ():
            if type(one) is types.MemberDescriptorType:
                try:
                    held = one.__get__(value)
                except AttributeError:  # it is not set
                    continue
                yield name, held, one


_log = logging.getLogger(__name__)


_CONTAINERS = (list, tuple, dict, set, frozenset)
_NO_ARRAYS = (*_CONTAINERS, str, bytes, int, float, complex, type(None), type)


class Owner:
    """What must stay alive for an array's memory to stay.

    Whether anybody else refers to it is read from CPython's reference count, which is exact where there is a global interpreter
    lock. In a free-threaded build a count that is read while other threads change it may be wrong for a moment, so there an
    owner has to be found alone twice, by two sweeps.
    """

    __slots__ = ("__weakref__", "_sightings", "key", "memory")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.key = id(memory)
        """The same for all arrays in this memory, as long as it is kept."""
        self._sightings = 0

    def is_alone(self) -> bool:
        """Tell whether nobody else refers to the memory."""
        self._sightings = self._sightings + 1 if self._is_alone_now() else 0
        return self._sightings >= _SIGHTINGS

    def _is_alone_now(self) -> bool:
        return sys.getrefcount(self.memory) <= _ALONE


class TorchStorage(Owner):
    """The storage of a tensor. Torch counts the tensors in it, and what autograd keeps, in a count of its own."""

    __slots__ = ()

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self.key = memory._cdata  # noqa: SLF001 - the storage's address; every tensor gives a wrapper of its own

    def _is_alone_now(self) -> bool:
        return super()._is_alone_now() and _use_count(self.memory) <= _lone_use_count()


def check_array(array: object, lane_name: str) -> None:
    """Raise `OptionError` for what is surely no array: a plain value, or a container of arrays."""
    if isinstance(array, _NO_ARRAYS):
        hint = "each of its arrays for itself" if isinstance(array, _CONTAINERS) else "the array itself"
        raise OptionError(
            f"A {type(array).__name__} is not an array. Pass {hint}: lab.stream({lane_name!r}).use(array, after=...)."
        )


def is_empty(array: Any) -> bool:
    """Tell whether an array of any library has no elements, so that there is nothing in it to wait for."""
    shape = getattr(array, "shape", None)
    if shape is None:
        shape = (getattr(array, "__cuda_array_interface__", None) or {}).get("shape")
    return isinstance(shape, tuple) and 0 in shape


def find_owner(array: Any) -> Owner:
    """Return who owns an array's memory.

    For CuPy that is the allocation behind all views; for torch the storage; for NumPy and the simulated device the last base.
    For arrays of other libraries it is the object itself: their views are not known.
    """
    owner = _make_owner(array)
    # One for the whole process: two sessions that each kept one would take each other's for somebody who refers to the memory.
    with _owners_lock:
        return _owners.setdefault((type(owner), owner.key), owner)


def _make_owner(array: Any) -> Owner:
    if "torch" in sys.modules and hasattr(array, "untyped_storage"):  # subclasses of tensors live anywhere
        return _torch_owner(array)
    memory = getattr(getattr(array, "data", None), "mem", None)  # cupy.ndarray.data.mem
    if memory is not None:
        return Owner(memory)
    return Owner(_last_base(getattr(array, "sim_values", array)))


def _last_base(array: Any) -> object:
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    while isinstance(owner, memoryview) and owner.obj is not None:
        owner = owner.obj
    return owner


def _torch_owner(tensor: Any) -> Owner:
    try:
        owner = TorchStorage(tensor.untyped_storage())
        _lone_use_count()
    except (AttributeError, TypeError, RuntimeError) as error:
        # Views that outlive the tensor are not seen then.
        _log.debug("This version of torch does not tell how often a storage is used: %s", error)
        return Owner(tensor)
    return owner


def _use_count(storage: Any) -> int:
    """Return how many tensors and wrappers refer to a storage. Source: torch, what its CUDA graph trees ask."""
    count: int = sys.modules["torch"]._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no public name for it
    return count


@functools.cache
def _lone_use_count() -> int:
    """Return the count of a storage to which only our wrapper refers, measured."""
    return _use_count(sys.modules["torch"].empty(1, device="cpu").untyped_storage())


_owners: WeakValueDictionary[tuple[type[Owner], int], Owner] = WeakValueDictionary()
"""Of all memory that any session keeps: an owner keeps its memory, so the key stays its own as long as it is here."""
_owners_lock = process_lock()
_SIGHTINGS = 1 if getattr(sys, "_is_gil_enabled", lambda: True)() else 2
_probe = Owner(object())
_ALONE = sys.getrefcount(_probe.memory)
