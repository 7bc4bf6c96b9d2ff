"""The array module of the simulated device: NumPy's functions, each with a modelled kernel or copy.

It follows CuPy where CuPy differs from NumPy: reductions give 0-d arrays, host arrays are refused, reading a value waits.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends.sim._array import RandomModule, SimArray
from gpustreamlab.backends.sim._cost import (
    CHOOSING,
    CONSTANTS,
    HOST,
    METADATA,
    RULES,
    WRITING,
    WRITING_METHODS,
    WRITING_SOME,
    Call,
    Rule,
    explain_missing,
    plan_host_copy,
    plan_peer_copy,
    plan_streaming,
    rule_of,
)
from gpustreamlab.backends.sim._memory import create_pinned, is_pinned
from gpustreamlab.backends.sim._stream import NodeWork
from gpustreamlab.errors import NotSimulatedError
from gpustreamlab.schedule._commands import DEVICE_TO_HOST, HOST_TO_DEVICE, CopySpec
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._backend import SimBackend
    from gpustreamlab.backends.sim._stream import SimCapture

_FLAG_BYTES = 8  # what the host reads to learn the size of a result


class ArrayModule:
    """NumPy-compatible functions on a simulated device; work goes to its selected stream.

    Examples
    --------
    >>> from gpustreamlab.backends.sim import SimBackend
    >>> xp = SimBackend().xp
    >>> float(xp.asarray([1.0, 2.0, 6.0]).mean())
    3.0
    """

    ndarray = SimArray

    def __init__(self, backend: SimBackend) -> None:
        self._backend = backend
        self._found: dict[str, Callable[..., Any]] = {}
        self.fft = SubModule(self, "fft")
        """Fourier transforms, as `numpy.fft`."""
        self.linalg = SubModule(self, "linalg")
        """`numpy.linalg`, as far as it is modelled."""
        self.random = RandomModule(self)
        """Random numbers: NumPy's own generators. Only a seed makes values repeat."""

    def __repr__(self) -> str:
        return f"<array module of the simulated {self._backend.preset.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in CONSTANTS:
            return getattr(np, name)
        plain = getattr(np, name, None) or getattr(np.exceptions, name, None)
        if isinstance(plain, type) and issubclass(plain, (np.generic, Exception)):
            return plain
        return self.find(name)

    def __dir__(self) -> list[str]:
        scalars = [
            name for name in dir(np) if isinstance(getattr(np, name), type) and issubclass(getattr(np, name), np.generic)
        ]
        functions = [name for name in RULES if "." not in name and hasattr(np, name)]
        own = [name for name in super().__dir__() if hasattr(np, name) or name in {"asnumpy", "get_array_module"}]
        host = [name for name in (*METADATA, *HOST) if hasattr(np, name)]
        return sorted({*own, *functions, *scalars, *CONSTANTS, *host})

    # Functions

    def find(self, name: str) -> Any:
        """Return the modelled function of a name, such as ``"fft.rfft2"``; raise where there is none."""
        own = type(self).__dict__.get(name)
        if isinstance(own, types.FunctionType):
            return own.__get__(self)
        if name not in self._found:
            self._found[name] = self._make_function(name)
        return self._found[name]

    def _make_function(self, name: str) -> Any:
        plain: Any = np
        for part in name.split("."):
            plain = getattr(plain, part, None)
        if plain is None or (name not in RULES and name not in METADATA and name not in HOST):
            raise explain_missing(name, exists=plain is not None)
        if isinstance(plain, type) and plain is not np.broadcast:
            return plain
        # A function's other names (concat) are work of its own name (concatenate).
        known = plain.__name__ if plain.__name__ in RULES else name

        def function(*args: Any, **kwargs: Any) -> Any:
            if name in RULES:
                return self.call_function(known, plain, args, kwargs)
            return self._call_free(name, plain, args, kwargs)

        function.__name__ = function.__qualname__ = name.rpartition(".")[2]
        function.__doc__ = plain.__doc__
        return function

    def _call_free(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function that reads no values, or one that works on the host and copies what it needs."""
        if name in METADATA:
            unwrap = _Arguments(self, name).unwrap
            return function(*map(unwrap, args), **{key: unwrap(value) for key, value in kwargs.items()})

        def fetch(value: Any) -> Any:
            return value.get() if isinstance(value, SimArray) else value

        result = function(*map(fetch, args), **{key: fetch(value) for key, value in kwargs.items()})
        return self.asarray(result) if isinstance(result, np.ndarray) else result

    def call_function(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, in_place: bool = False
    ) -> Any:
        """Let NumPy compute a function, or a method that works `in_place`, and launch the kernel that models it."""
        rule = rule_of(name)
        call_args, outs = _Arguments(self, name), _Arguments(self, name)  # what is read, and what is written
        plain_args = [call_args.unwrap(value) for value in args]
        plain_kwargs = {key: (outs if key == "out" else call_args).unwrap(value) for key, value in kwargs.items()}
        if not call_args.inputs and not rule.is_creation:
            raise TypeError(f"xp.{name} was given no array of the simulated device. Make one first: xp.asarray(values).")
        if name in {"matmul", "dot"} and kwargs.keys() <= {"out"} and all(one.dtype == np.float16 for one in call_args.inputs):
            function = partial(_product_of_halves, function)
        with np.errstate(all="ignore"), self._computing(*call_args.inputs, *outs.inputs):  # a GPU does not warn of overflow
            result = _mapped(function(*plain_args, **plain_kwargs), np.asarray)  # of scalars, too
        inputs, outputs = call_args.inputs, list(_find_arrays(result))
        if in_place or name in WRITING:
            inputs, outputs = inputs[1:], inputs[:1]
        self._hold(outputs)
        is_part = "where" in kwargs or name in WRITING_SOME
        some = inputs[0] if name in CHOOSING else outputs[0] if is_part and outputs else None
        reads = call_args.inputs if in_place and name in {"sort", "partition"} else inputs

        def again() -> None:
            for old, new in zip(_find_arrays(result), _find_arrays(function(*plain_args, **plain_kwargs)), strict=True):
                if not np.may_share_memory(old, new):
                    old[...] = new

        self._launch(rule, Call(name, inputs, outputs, plain_args), reads=reads, some=some, again=again)
        out = kwargs.get("out")
        if out is None:
            return _mapped(result, self.wrap)
        return out[0] if isinstance(out, tuple) and len(out) == 1 else out

    def call_method(self, name: str, array: SimArray, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Let NumPy compute a method, and launch the kernel that models it."""
        is_writer = name in WRITING_METHODS
        return self.call_function(name, getattr(np.ndarray, name), (array, *args), kwargs, in_place=is_writer)

    # Arrays

    def wrap(self, values: NDArray[Any]) -> SimArray:
        """Make a device array of values that the device owns."""
        check_dtype(values.dtype)
        self._backend.driver.memory.hold(values, self._backend.selected_stream.queue)
        return SimArray(values, self)

    def array(
        self,
        obj: Any,
        dtype: DTypeLike | None = None,
        copy: bool = True,  # noqa: FBT001, FBT002
        order: str | None = "K",
        subok: bool = False,  # noqa: FBT001, FBT002
        ndmin: int = 0,
    ) -> SimArray:
        """Copy values to the device, or from one device array to another."""
        if isinstance(obj, SimArray):
            if obj.module is not self:
                obj, copy = self._copy_from_peer(obj), False
            kind = obj.dtype if dtype is None else np.dtype(dtype)
            has_order = order in {None, "K", "A"} or obj.sim_values.flags[f"{order}_CONTIGUOUS"]
            is_there = not copy and kind == obj.dtype and has_order
            result: SimArray = obj if is_there else obj.astype(kind, order=order or "K", copy=copy)
        elif isinstance(obj, (list, tuple)) and any(isinstance(item, SimArray) for item in obj):
            result = self.find("stack")(obj)
            result = result if dtype is None else result.astype(dtype, order=order or "K", copy=False)
        else:
            source = np.asarray(obj, dtype, order)  # type: ignore[arg-type]
            check_dtype(source.dtype)
            result = self.wrap(np.empty_like(source, subok=False))
            self.copy_from_host(result, source)
        missing = max(0, ndmin - result.ndim)
        return result.reshape((1,) * missing + result.shape) if missing else result

    def asarray(self, a: Any, dtype: DTypeLike | None = None, order: str | None = None) -> SimArray:
        """Copy values to the device; a device array of the right dtype and order is returned as it is."""
        return self.array(a, dtype, copy=False, order=order)

    asanyarray = asarray

    def fromfunction(
        self, function: Callable[..., Any], shape: tuple[int, ...], *, dtype: DTypeLike = float, **kwargs: Any
    ) -> Any:
        """Call a function with the index of each element along each dimension, as device arrays."""
        return function(*self.find("indices")(shape, dtype=dtype), **kwargs)

    def asnumpy(
        self, a: Any, stream: object = None, order: str = "C", out: NDArray[Any] | None = None, *, blocking: bool = True
    ) -> NDArray[Any]:
        """Copy a device array to the host; other values become a NumPy array as they are."""
        if isinstance(a, SimArray):
            return a.get(stream, order, out, blocking=blocking)
        values = np.asarray(a)
        if out is None:
            return values
        out[...] = values
        return out

    def get_array_module(self, *args: Any) -> Any:
        """Return this module if any argument is a device array, else NumPy."""
        return self if any(isinstance(value, SimArray) for value in args) else np

    def empty(self, *args: Any, **kwargs: Any) -> SimArray:
        """Make an uninitialised array, as `numpy.empty`; no kernel runs."""
        return self.wrap(np.empty(*args, **kwargs))

    def empty_like(self, prototype: SimArray, *args: Any, **kwargs: Any) -> SimArray:
        """Make an uninitialised array of another's shape, as `numpy.empty_like`; no kernel runs."""
        return self.wrap(np.empty_like(_Arguments(self, "empty_like").unwrap(prototype), *args, **kwargs))

    def zeros(self, *args: Any, **kwargs: Any) -> SimArray:
        """Make an array of zeros, as `numpy.zeros`, with a fill."""
        return self._fill_zeros(self.empty(*args, **kwargs))

    def zeros_like(self, a: SimArray, *args: Any, **kwargs: Any) -> SimArray:
        """Make an array of zeros of another's shape, as `numpy.zeros_like`, with a fill."""
        return self._fill_zeros(self.empty_like(a, *args, **kwargs))

    # Elements

    def read_items(self, array: SimArray, index: Any) -> SimArray:
        """Index an array: a view without a kernel, or a gather."""
        values = array.sim_values
        if _is_basic(index):
            view = values[index]
            if not isinstance(view, np.ndarray):  # NumPy gives a scalar where CuPy gives a 0-d view
                view = values[(*(part for part in _parts(index) if part is not Ellipsis), ...)]
            return SimArray(view, self)
        call_args = _Arguments(self, "getitem")
        plain = call_args.unwrap(_read_lists(index))
        with self._computing(values, *call_args.inputs):
            result = np.asarray(values[plain])
        chosen = [np.asarray(part) for part in _parts(plain) if isinstance(part, (np.ndarray, list, bool, np.bool_))]
        rule = RULES["mask" if any(part.dtype == np.bool_ for part in chosen) else "getitem"]
        self._hold([result])
        call = Call("getitem", [*call_args.inputs, result], [result])

        def again() -> None:
            result[...] = values[plain]

        self._launch(rule, call, reads=[*call_args.inputs, values], some=values, again=again)
        return self.wrap(result)

    def write_items(self, array: SimArray, index: Any, value: Any) -> None:
        """Assign to elements: a fill, a copy or a scatter."""
        values = array.sim_values
        if isinstance(value, np.ndarray) and value.ndim and _is_basic(index):
            target = self.read_items(array, index)
            self.copy_from_host(target, np.ascontiguousarray(np.broadcast_to(value, target.shape), dtype=target.dtype))
            return
        call_args = _Arguments(self, "setitem")
        plain_index, plain_value = call_args.unwrap(_read_lists(index)), call_args.unwrap(value)

        def write() -> None:
            values[plain_index] = plain_value

        with self._computing(values, *call_args.inputs):
            write()
            region = np.asarray(values[plain_index])
        written = self.read_items(array, index).sim_values if _is_basic(index) else values
        call = Call("setitem", call_args.inputs, [region])
        self._launch(RULES["setitem"], call, writes=[written], some=values, again=write)

    # Host and device

    def copy_to_host(self, array: SimArray, out: NDArray[Any] | None, *, blocking: bool) -> NDArray[Any]:
        """Copy an array to the host on the selected stream."""
        self._check_own(array)
        values = array.sim_values
        target = np.empty(values.shape, values.dtype) if out is None else _check_target(out, values)
        capture = self._capture
        if capture is not None and (blocking or not is_pinned(target)):
            raise capture.refuse(
                "Reading values on the host (array.get(), float(array), print(array)), which waits for the stream,",
                "Read them after a launch, or copy without waiting: array.get(out=page_locked, blocking=False).",
            )
        if values.size:
            work = self._note("get", [values], [target], again=lambda: np.copyto(target, values))
            if not values.flags.c_contiguous:
                self._gather(values, reads=[values], writes=())
            self._copy_with_host(DEVICE_TO_HOST, values.nbytes, is_pinned=is_pinned(target), work=work)
        if capture is None:  # else a launch copies, and nothing before
            np.copyto(target, values)
        if blocking and is_pinned(target):  # the host is blocked anyway while it copies into other memory
            self._backend.selected_stream.synchronize()
        return target

    def show(self, array: SimArray) -> NDArray[Any]:
        """Return the values to print: read as `copy_to_host` does, and still there after the device was closed."""
        return array.sim_values if self._backend.driver.is_closed else array.get()

    def copy_from_host(self, array: SimArray, source: NDArray[Any]) -> None:
        """Copy from the host into an array, on the selected stream."""
        self._check_own(array)
        if not isinstance(source, np.ndarray):
            raise TypeError(
                f"array.set() takes a NumPy array, not {type(source).__name__}. Use xp.asarray(values) for other values."
            )
        values = array.sim_values
        if source.dtype != values.dtype or source.shape != values.shape:
            raise ValueError(
                f"array.set() was given {source.dtype} of shape {source.shape}; this array is {values.dtype} of shape "
                f"{values.shape}. Give the same, for example by host.astype(array.dtype).reshape(array.shape)."
            )
        if values.size:
            work = self._note("set", [source], [values], again=lambda: np.copyto(values, source))
            self._copy_with_host(HOST_TO_DEVICE, values.nbytes, is_pinned=is_pinned(source), work=work)
            if not values.flags.c_contiguous:
                self._gather(values, reads=(), writes=[values])
        with self._computing(values):
            np.copyto(values, source)

    # Inside

    def _launch(
        self,
        rule: Rule,
        call: Call,
        *,
        reads: Sequence[NDArray[Any]] | None = None,
        writes: Sequence[NDArray[Any]] | None = None,
        some: NDArray[Any] | None = None,
        again: Callable[[], object] | None = None,
    ) -> None:
        """Launch a call's kernel. What it reads and writes are its inputs and outputs, where nothing else is said.

        Of the array `some` only some elements are meant, and it is not known which. A graph that captures the kernel computes
        `again` what NumPy has computed.
        """
        for array in call.outputs:
            check_dtype(array.dtype)
        if not call.element_count:
            return
        if rule.may_be_view and all(any(np.may_share_memory(out, source) for source in call.inputs) for out in call.outputs):
            return
        backend = self._backend
        capture = self._capture
        if capture is not None and rule.needs_host:
            raise capture.refuse(
                f"xp.{call.name}, which waits for the stream, since the size of its result depends on values,",
                "Call it before the capture, or use a mask of the whole size: xp.where(mask, array, 0).",
            )
        spec = rule.kernel(backend.preset, call)
        driver, work = backend.driver, None
        if driver.source is not None or driver.accesses is not None or capture is not None:
            reads, writes = call.inputs if reads is None else reads, call.outputs if writes is None else writes
            work = self._note(call.name, reads, writes, some, again)
        backend.launch_kernel(backend.selected_stream, spec, work)
        if rule.needs_host:
            flag = NodeWork("flag", None, (), [create_pinned(_FLAG_BYTES, np.uint8)], None)
            self._copy_with_host(DEVICE_TO_HOST, _FLAG_BYTES, is_pinned=True, work=flag)
            backend.selected_stream.synchronize()

    def _gather(self, values: NDArray[Any], *, reads: Sequence[NDArray[Any]], writes: Sequence[NDArray[Any]]) -> None:
        """Launch the kernel that a copy of an array with gaps needs beside it: who watches was told of both by the copy."""
        spec = RULES["copy"].kernel(self._backend.preset, Call("copy", [values], [values]))
        work = None if self._capture is not None else NodeWork("copy", None, reads, writes, None)
        self._backend.launch_kernel(self._backend.selected_stream, spec, work)

    def _computing(self, *given: NDArray[Any]) -> AbstractContextManager[None]:
        """Return where NumPy computes with arrays: see `SimCapture.computing`."""
        capture = self._capture
        return nullcontext() if capture is None else capture.computing(given)

    @property
    def _capture(self) -> SimCapture | None:
        """What the selected stream captures into; None where it does not capture."""
        captures = self._backend.captures
        return captures.get(self._backend.selected_stream.queue) if captures else None

    def _note(
        self,
        name: str,
        reads: Sequence[NDArray[Any]],
        writes: Sequence[NDArray[Any]],
        some: NDArray[Any] | None = None,
        again: Callable[[], object] | None = None,
    ) -> NodeWork:
        """Tell who watches what is about to be read and written; return it, for each launch where a graph is captured."""
        work = NodeWork(name, again, reads, writes, some)
        if self._backend.driver.accesses is not None and self._capture is None:
            stream = self._backend.selected_stream
            stream.check_open()
            self._backend.driver.note_accesses(stream.queue, name, reads, writes, some)
        return work

    def _hold(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Count the results' memory before the kernel that writes them."""
        for array in arrays:
            self._backend.driver.memory.hold(array, self._backend.selected_stream.queue)

    def _fill_zeros(self, array: SimArray) -> SimArray:
        values, backend = array.sim_values, self._backend
        values.fill(0)
        if values.size:
            work = self._note("zeros", (), [values], again=lambda: values.fill(0))
            size = {"size_bytes": values.nbytes, "operations": 0}
            spec = plan_streaming(backend.preset, "memset", dtype=values.dtype, kind=SpanKind.FILL, **size)
            backend.launch_kernel(backend.selected_stream, spec, work)
        return array

    def _copy_from_peer(self, array: SimArray) -> SimArray:
        """Copy an array of another card of the host here, on the stream that is selected here."""
        backend, other = self._backend, array.module._backend  # noqa: SLF001 - of this class
        if backend.driver.lock is not other.driver.lock:
            raise NotSimulatedError(
                "This array is of another simulated host. Copy it over the host: xp.asarray(array.get()), or open both cards "
                "as one node: gpustreamlab.Node()."
            )
        values = array.sim_values
        result = self.wrap(np.empty_like(values, subok=False))
        if values.size:
            work = self._note("copy from another GPU", [values], [result.sim_values])
            ends = {"source": other.device.ordinal, "target": backend.device.ordinal}
            self._copy(plan_peer_copy(backend.preset, values.nbytes, **ends), work)
        np.copyto(result.sim_values, values)
        return result

    def _copy_with_host(self, engine: int, size_bytes: int, *, is_pinned: bool, work: NodeWork) -> None:
        self._copy(plan_host_copy(self._backend.preset, engine, size_bytes, is_pinned=is_pinned), work)

    def _copy(self, spec: CopySpec, work: NodeWork) -> None:
        stream = self._backend.selected_stream
        stream.check_open()
        self._backend.driver.copy(stream.queue, spec, work)

    def _check_own(self, array: SimArray) -> None:
        _Arguments(self, "get").unwrap(array)


class SubModule:
    """A submodule such as ``xp.fft``."""

    def __init__(self, module: ArrayModule, name: str) -> None:
        self._module = module
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._module.find(f"{self._name}.{name}")

    def __dir__(self) -> list[str]:
        prefix = f"{self._name}."
        return sorted(name.removeprefix(prefix) for name in RULES if name.startswith(prefix))


class _Arguments:
    """Takes the values out of a call's device arrays, and keeps them for the cost."""

    def __init__(self, module: ArrayModule, name: str) -> None:
        self._module = module
        self._name = name
        self.inputs: list[NDArray[Any]] = []

    def unwrap(self, value: Any) -> Any:
        if isinstance(value, SimArray):
            if value.module is not self._module:
                raise NotSimulatedError(
                    f"xp.{self._name} was given an array of another simulated device. Copy it first: xp.asarray(array), or "
                    "xp.asarray(array.get()) where the two are no node."
                )
            self.inputs.append(value.sim_values)
            return value.sim_values
        if isinstance(value, (list, tuple)):
            items = [self.unwrap(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, np.ndarray):
            raise TypeError(
                f"xp.{self._name} was given a NumPy array of shape {value.shape}. Copy it to the device: xp.asarray(array)."
            )
        if hasattr(value, "__cuda_array_interface__"):
            raise NotSimulatedError(
                f"xp.{self._name} was given a {type(value).__name__} of a real GPU. Copy it over the host: "
                "xp.asarray(array.get())."
            )
        return value


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse dtypes that no GPU array has."""
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise NotSimulatedError(
            f"The simulated device has no arrays of dtype {dtype}. Use booleans, integers, floats or complex numbers."
        )


def _mapped(result: Any, change: Callable[[Any], Any]) -> Any:
    """Return a result of NumPy's, which may be a tuple or a list of several, with all arrays in it changed."""
    if isinstance(result, (tuple, list)):
        make = list if isinstance(result, list) else getattr(type(result), "_make", tuple)  # keeps named tuples
        return make(_mapped(item, change) for item in result)
    return None if result is None else change(result)


def _product_of_halves(function: Callable[..., Any], *halves: Any, out: Any = None) -> Any:
    """Multiply float16 in float32 and round once, as CUDA does; NumPy has no BLAS for them, and takes 60 times as long."""
    made = function(*(np.asarray(half, np.float32) for half in halves)).astype(np.float16)
    if out is None:
        return made
    target: NDArray[Any] = out[0] if isinstance(out, tuple) else out
    target[...] = made
    return target


def _find_arrays(result: Any) -> Iterator[NDArray[Any]]:
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from _find_arrays(item)
    elif result is not None:
        yield np.asarray(result)


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_basic(index: Any) -> bool:
    return all(
        part is None
        or part is Ellipsis
        or (isinstance(part, (slice, int, np.integer)) and not isinstance(part, (bool, np.bool_)))
        for part in _parts(index)
    )


def _read_lists(index: Any) -> Any:
    """Keep lists of an index as they are; NumPy arrays in it are small host data that travel with the launch."""
    if isinstance(index, np.ndarray):
        return index.tolist() if index.ndim else index.item()
    if isinstance(index, tuple):
        return tuple(_read_lists(part) for part in index)
    return index


def _check_target(out: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"array.get(out=...) takes a NumPy array, not {type(out).__name__}.")
    if out.shape != values.shape or out.dtype != values.dtype or not out.flags.c_contiguous:
        raise ValueError(
            f"array.get(out=...) was given {out.dtype} of shape {out.shape}; this array is {values.dtype} of shape "
            f"{values.shape}. Give a C-contiguous array of the same shape and dtype."
        )
    return out
