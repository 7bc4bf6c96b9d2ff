"""Arrays of the simulated device and its random generators: NumPy's values, modelled time."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from gpustreamlab._util.defences import ProcessBound
from gpustreamlab.backends.sim._cost import METHODS, NotSimulatedNameError
from gpustreamlab.errors import NotSimulatedError, nearest_hint

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._xp import ArrayModule


class SimDeviceId(NamedTuple):
    """Which device an array is on."""

    id: int


class SimArray(NDArrayOperatorsMixin, ProcessBound):
    """An array on the simulated device. It behaves like `cupy.ndarray` as far as both are NumPy-compatible.

    Values are computed at once, in the order of the calls; only time is modelled. Made by the functions of ``backend.xp``.

    Parameters
    ----------
    values
        The values, owned by the device.
    module
        The array module that it belongs to.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import SimBackend
    >>> xp = SimBackend().xp
    >>> a = xp.arange(6).reshape(2, 3)
    >>> (a * 2).sum(axis=0).get()
    array([ 6, 10, 14])
    """

    __slots__ = ("module", "sim_values")
    __hash__ = None  # type: ignore[assignment]  # mutable, as NumPy's and CuPy's arrays

    def __init__(self, values: NDArray[Any], module: ArrayModule) -> None:
        self.sim_values = values
        """The values as the simulation sees them. Looking at them takes no virtual time; programs use `get`."""
        self.module = module
        """The array module that it belongs to."""

    # Looks

    dtype = property(attrgetter("sim_values.dtype"), doc="Type of the elements.")
    ndim = property(attrgetter("sim_values.ndim"), doc="How many dimensions there are.")
    size = property(attrgetter("sim_values.size"), doc="How many elements there are.")
    itemsize = property(attrgetter("sim_values.itemsize"), doc="Bytes of one element.")
    nbytes = property(attrgetter("sim_values.nbytes"), doc="Bytes of all elements.")
    strides = property(attrgetter("sim_values.strides"), doc="Bytes from one element to the next along each dimension.")
    flags = property(attrgetter("sim_values.flags"), doc="Memory layout.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension. Setting it reshapes in place."""
        return self.sim_values.shape

    @shape.setter
    def shape(self, shape: int | tuple[int, ...]) -> None:
        self.sim_values = self.sim_values.reshape(shape, copy=False)

    @property
    def T(self) -> SimArray:  # noqa: N802
        """The transposed view."""
        return self.module.wrap(self.sim_values.T)

    @property
    def mT(self) -> SimArray:  # noqa: N802
        """The view with the last two dimensions swapped."""
        return self.module.wrap(self.sim_values.swapaxes(-1, -2))

    @property
    def device(self) -> SimDeviceId:
        """Number of the device, as CuPy's ``device.id``."""
        return SimDeviceId(0)

    @property
    def real(self) -> SimArray:
        """The real part, as a view."""
        return self.module.wrap(self.sim_values.real)

    @property
    def imag(self) -> SimArray:
        """The imaginary part; a view of a complex array."""
        return self.module.wrap(self.sim_values.imag)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS:
            raise AttributeError(f"Arrays of the simulated device have no attribute {name!r}.")

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.module.call_method(name, self, args, kwargs)

        method.__name__ = name
        method.__doc__ = getattr(np.ndarray, name).__doc__
        return method

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *METHODS})

    # NumPy's protocols

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        """Refuse: as with CuPy, the copy to the host has to be visible in the code."""
        raise TypeError(
            "An array of the simulated device does not turn into a NumPy array implicitly, because that copies to the host "
            "and waits. Use array.get() or xp.asnumpy(array)."
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Run a NumPy ufunc on the device."""
        name = ufunc.__name__
        # NumPy makes an array of its own scalar before it compares: `np.float64(1) < a`.
        inputs = tuple(value[()] if type(value) is np.ndarray and not value.ndim else value for value in inputs)
        if method == "__call__":
            return self.module.call_function(name, ufunc, inputs, kwargs)
        return self.module.find(f"{name}.{method}")(*inputs, **kwargs)

    def __array_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a NumPy function on the device."""
        module_name = (getattr(func, "__module__", None) or "numpy").removeprefix("numpy").lstrip(".")
        name = f"{module_name}.{func.__name__}" if module_name in {"fft", "linalg"} else func.__name__
        return self.module.find(name)(*args, **kwargs)

    # NumPy takes `a ** 0.5` for a square root and `a ** 2` for a product, which may differ from `power` in the last digit.

    def __pow__(self, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", 0) is None:
            return NotImplemented
        return self.module.call_function("power", operator.pow, (self, other), {})

    def __ipow__(self, other: Any) -> SimArray:
        self.module.call_function("power", operator.ipow, (self, other), {})
        return self

    # Elements

    def __getitem__(self, index: Any) -> SimArray:
        return self.module.read_items(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.module.write_items(self, index, value)

    def __len__(self) -> int:
        return len(self.sim_values)

    def __iter__(self) -> Iterator[SimArray]:
        return (self[position] for position in range(len(self)))

    # Host

    def get(
        self, stream: object = None, order: str = "C", out: NDArray[Any] | None = None, *, blocking: bool = True
    ) -> NDArray[Any]:
        """Copy to the host.

        Parameters
        ----------
        stream
            Only None: the copy goes to the selected stream.
        order
            Only ``"C"``.
        out
            Array to copy into: C-contiguous, same shape and dtype.
        blocking
            Whether the host waits. Without, and with `out` in page-locked memory, the virtual host goes on at once. The values
            are in `out` at once all the same: a program that reads them too early goes unnoticed here, and fails on a GPU.
        """
        if stream is not None or order != "C":
            raise NotSimulatedError("The simulated device copies in C order, on the selected stream: array.get(out=...).")
        return self.module.copy_to_host(self, out, blocking=blocking)

    def set(self, arr: NDArray[Any], stream: object = None) -> None:
        """Copy from a NumPy array of the same shape and dtype; from page-locked memory the host does not wait."""
        if stream is not None:
            raise NotSimulatedError("The simulated device copies on the selected stream: array.set(host_array).")
        self.module.copy_from_host(self, arr)

    def item(self, *args: Any) -> Any:
        """Return one element as a Python number; the host waits for it."""
        return self.get().item(*args)

    def tolist(self) -> Any:
        """Return all elements as nested lists; the host waits for them."""
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the bytes of all elements; the host waits for them."""
        return self.get().tobytes(order)  # type: ignore[arg-type]

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __format__(self, spec: str) -> str:
        return format(self.get()[()], spec)

    def __repr__(self) -> str:
        return repr(self.module.show(self))

    def __str__(self) -> str:
        return str(self.module.show(self))

    def __copy__(self) -> SimArray:
        return self.module.call_method("copy", self, (), {})  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: object) -> SimArray:
        return self.__copy__()


class SimGenerator:
    """A random generator, as `numpy.random.Generator` or `numpy.random.RandomState`, with all that these draw."""

    def __init__(self, module: ArrayModule, source: np.random.Generator | np.random.RandomState) -> None:
        self._module = module
        self.source = source

    def __deepcopy__(self, memo: dict[int, Any]) -> SimGenerator:
        return SimGenerator(self._module, copy.deepcopy(self.source, memo))

    def seed(self, seed: int | None = None) -> None:
        """Start the sequence of numbers at a seed; the same seed gives the same numbers."""
        if isinstance(self.source, np.random.RandomState):
            self.source.seed(seed)
        else:
            raise NotSimulatedNameError("A generator is seeded when it is made: xp.random.default_rng(seed).")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        is_legacy = isinstance(self.source, np.random.RandomState)
        plain = getattr(self.source, {"ranf": "random_sample", "sample": "random_sample"}.get(name, name), None)
        if not callable(plain) or name in _STATE:
            raise NotSimulatedNameError(
                f"The simulated device does not draw {name!r} random numbers. {nearest_hint(name, dir(self))}"
            )

        def draw(*args: Any, **kwargs: Any) -> Any:
            # NumPy's older functions take no dtype where CuPy's do.
            dtype = kwargs.pop("dtype", None) if is_legacy and name != "randint" else None
            function = plain if dtype is None else lambda *a, **k: np.asarray(plain(*a, **k)).astype(dtype)
            return self._module.call_function(f"random.{name}", function, args, kwargs)

        draw.__name__ = name
        return draw

    def __dir__(self) -> list[str]:
        return sorted({"seed", *(name for name in dir(self.source) if not name.startswith("_") and name not in _STATE)})


_STATE = frozenset({"bit_generator", "bytes", "get_state", "seed", "set_state", "spawn"})
"""What NumPy's generators have that draws no array."""


class RandomModule(SimGenerator):
    """``xp.random``. The numbers are NumPy's, not the bit streams of CuPy's generators."""

    source: np.random.RandomState

    def __init__(self, module: ArrayModule) -> None:
        super().__init__(module, np.random.RandomState())  # numpy.random's functions, without its global state

    def default_rng(self, seed: int | None = None) -> SimGenerator:
        """Make a generator of its own."""
        return SimGenerator(self._module, np.random.default_rng(seed))

    def RandomState(self, seed: int | None = None) -> SimGenerator:  # noqa: N802
        """Make a generator of its own, with the older functions."""
        return SimGenerator(self._module, np.random.RandomState(seed))

    def __dir__(self) -> list[str]:
        return sorted({"default_rng", "RandomState", *super().__dir__()})
