"""Arrays that tell what is read and written: a subclass of CuPy's, and what follows its calls.

A call gets plain arrays, so nothing changes inside of the library; what comes back becomes tracked again. The library is given
as `ArrayLibrary`, so that all of this is tested with NumPy in CuPy's place as well.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustreamlab.analysis import Piece, Touch, region_of

if TYPE_CHECKING:
    from gpustreamlab.memory.hazards import AccessWatch
    from gpustreamlab.memory.scratch import Scratch


class Memory(NamedTuple):
    """What an array lies in."""

    owner: Any  # An object that all arrays in this memory refer to, and no others
    start: int  # Its first address
    end: int  # The address behind its last
    lender: Scratch | None = None  # What may have taken it back, if it is a lane's scratch
    device: int | None = None  # Number of the card that has it; None for the current one


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayLibrary:
    """An array module, as far as tracking has to know it."""

    module: Any  # The module
    array_type: type  # Its arrays
    memory_of: Callable[[Any], Memory]  # Tells what an array lies in
    address_of: Callable[[Any], int]  # Tells the address of an array's first element
    current_stream: Callable[[int | None], tuple[int, int]]
    """Tells which stream works now in this thread on a device, None for the current one: the device and the handle."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = frozenset(
    f"__{side}{name}__"
    for name in _names("add sub mul truediv floordiv mod pow lshift rshift and or xor matmul divmod")
    for side in ("", "r", "i")
) | _names(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __pos__ __abs__ __invert__ __getitem__ __setitem__ __copy__ __deepcopy__"
)
"""Methods behind Python's operators that read or write arrays."""
READS_BACK = _names(
    "__bool__ __int__ __float__ __complex__ __index__ __format__ __repr__ __str__ __bytes__ __contains__ __reduce__ "
    "__reduce_ex__ get item tolist tobytes tofile dump dumps asnumpy array_equal allclose array_repr array_str array2string "
    "save savez"
)
"""Calls that give the host a value: it has waited for the stream then."""
FINDS_SIZE = _names("nonzero flatnonzero argwhere unique compress extract")
"""Calls that need a value on the host to know the size of their result: it has waited for the stream then."""
WRITES_FIRST = _names(
    "fill set put sort partition copyto fill_diagonal place putmask put_along_axis shuffle scatter_add scatter_max scatter_min "
    "at __setitem__"
)
"""Calls that write their first array."""
OVERWRITES_FIRST = _names("fill set put copyto place putmask put_along_axis __setitem__")  # Those of them that do not read it
CHOOSES = _names("put place putmask put_along_axis fill_diagonal scatter_add scatter_max scatter_min at take take_along_axis")
"""Calls that touch only some elements of their first array."""
UNWRITTEN = _names("empty empty_like")  # Calls whose result is memory that nobody has written
MAY_BE_VIEW = _names(
    "reshape ravel transpose moveaxis rollaxis swapaxes squeeze expand_dims broadcast_to broadcast_arrays atleast_1d "
    "atleast_2d atleast_3d split array_split hsplit vsplit dsplit flip fliplr flipud rot90 diagonal real imag view "
    "ascontiguousarray asfortranarray require asarray asanyarray array astype nan_to_num reduced_view T mT __getitem__ "
    "matrix_transpose permute_dims unstack flat sliding_window_view as_strided from_dlpack"
)
"""Calls whose result may lie in the memory of what they were given: they read nothing then."""
WORKS_BESIDE_ARRAY = (READS_BACK | _names("set")) - _names("array_equal allclose")
"""Calls that work on the card of their first array, in what is its current stream; others work on the current card."""
METADATA = _names(
    "shape ndim size result_type can_cast promote_types iscomplexobj isrealobj isscalar broadcast_shapes may_share_memory "
    "shares_memory common_type issubdtype finfo iinfo min_scalar_type get_array_module get_default_memory_pool "
    "get_default_pinned_memory_pool show_config is_available fuse vectorize toDlpack byte_bounds"
)
"""Functions that read no elements, or wrap functions of the user's; they are passed through."""
PASSED_METHODS = _names("view toDlpack")
VIEWS = ("T", "mT", "real", "imag")  # Properties whose values are arrays


class Tracker:
    """Follows the calls of one array library, and tells of them: one for all cards of a node, whose arrays are of one type."""

    def __init__(self, library: ArrayLibrary) -> None:
        self.library = library
        self.array_type: type = _make_array_type(self, library.array_type)  # The type of tracked arrays
        self._watchers: dict[int, _Watcher] = {}
        self._known: dict[int, _Mark] = {}
        self._has_scratch = False
        # What is garbage by now. A C function is called back: Python code there could swallow a Ctrl-C.
        self._dead: deque[_Mark] = deque()

    def watch(self, device: int, sink: AccessWatch, captured: Callable[[int], list[Any] | None] = lambda _handle: None) -> None:
        """Tell of a card's work from now on."""
        for other in self._watchers.values():
            sink.stand_beside(other.sink)
            break
        self._watchers = {**self._watchers, device: _Watcher(sink, captured)}

    def leave(self, device: int) -> None:
        """Tell of a card's work no more; arrays go on working."""
        self._watchers = {number: watcher for number, watcher in self._watchers.items() if number != device}

    def call(self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function with plain arrays; tell what it read and wrote; make what it returns tracked."""
        originals: dict[int, Any] = {}
        plain_args = [self._unwrap(value, originals) for value in args]
        plain_kwargs = {key: self._unwrap(value, originals) for key, value in kwargs.items()}
        device, handle = self._stream_of(name, plain_args, kwargs)
        watcher = self._watcher_of(device)
        if watcher is None or name in METADATA:
            return self._adopt(function(*plain_args, **plain_kwargs), originals)
        use = _find_use(name, plain_args, plain_kwargs, self.library.array_type)
        if name not in MAY_BE_VIEW:
            self._tell(watcher, handle, name, use.reads, use.writes, use.some)
        given = {id(self.library.memory_of(array).owner) for array in use.all}
        reads, is_too_early = use.reads if name in MAY_BE_VIEW else (), True
        while is_too_early:  # that it copies shows afterwards: where waits were put in by then, it has to copy once more
            result = function(*plain_args, **plain_kwargs)
            adopted = self._adopt(result, originals)
            made = [array for array in find_arrays(result, self.library.array_type) if array.size and name not in UNWRITTEN]
            made = [array for array in made if id(self.library.memory_of(array).owner) not in given]
            is_too_early = bool(made) and self._tell(watcher, handle, name, reads, made, use.some) and bool(reads)
        if name in FINDS_SIZE or (name in READS_BACK and use.all and kwargs.get("blocking", True)):
            with watcher.sink.lock:
                watcher.sink.host_wait_stream(handle)
        return adopted

    def find(self, array: object) -> Touch | None:
        """Return which memory an array is; None if it is not tracked."""
        if not isinstance(array, self.library.array_type) or not self._watchers:
            return None
        return self._touch(array, is_certain=True)

    def track(self, array: Any) -> Any:
        """Return an array of the library as a tracked one, in the same memory."""
        if not isinstance(array, self.array_type):
            array = self.library.array_type.view(array, self.array_type)  # type: ignore[attr-defined]
        if array.size:
            array.tracked_memory = self._know(array)
        return array

    def _unwrap(self, value: Any, originals: dict[int, Any]) -> Any:
        if isinstance(value, self.array_type):
            base = self.library.array_type
            plain = base.view(value, base)  # type: ignore[attr-defined]
            originals[id(plain)] = value, plain
            return plain
        if type(value) in {list, tuple}:
            return type(value)(self._unwrap(item, originals) for item in value)
        return value

    def _adopt(self, result: Any, originals: Mapping[int, Any]) -> Any:
        if isinstance(result, self.library.array_type):
            known = originals.get(id(result))
            return self.track(result) if known is None else known[0]
        if isinstance(result, (list, tuple)):
            items = [self._adopt(item, originals) for item in result]
            return result._make(items) if hasattr(result, "_make") else type(result)(items)
        return result

    def _tell(
        self, watcher: _Watcher, handle: int, name: str, reads: Iterable[Any], writes: Iterable[Any], some: object
    ) -> bool:
        """Tell of work; return whether waits were put in for it."""
        sink, has_waits = watcher.sink, False
        with sink.lock:
            self._settle()
            read = [self._touch(array, is_certain=array is not some) for array in reads]
            written = [self._touch(array, is_certain=array is not some) for array in writes]
            captured = watcher.captured(handle)
            if captured is not None:
                touches = [*filter(None, read)], [*filter(None, written)]
                holders = [piece.owner() for piece, _ in (*touches[0], *touches[1])]  # they keep the memory known
                captured.append((name.strip("_"), *touches, holders))
            elif any(read) or any(written):
                has_waits = sink.work(handle, name.strip("_"), [*filter(None, read)], [*filter(None, written)])
                if self._has_scratch:
                    self._tell_ended(sink, handle, name.strip("_"), [*filter(None, (*read, *written))])
        if sink.pending:
            sink.finish()
        return has_waits

    def tell_again(self, device: int, handle: int, accesses: Iterable[tuple[str, list[Touch], list[Touch], object]]) -> None:
        """Tell of accesses that were captured into a graph, as those of a stream of a card."""
        watcher = self._watchers.get(device)
        if watcher is None:
            return
        sink = watcher.sink
        with sink.lock:
            for name, reads, writes, _ in accesses:
                sink.work(handle, name, reads, writes)
                if self._has_scratch:
                    self._tell_ended(sink, handle, name, (*reads, *writes))
        if sink.pending:
            sink.finish()

    @staticmethod
    def _tell_ended(sink: AccessWatch, handle: int, name: str, touches: Iterable[Touch]) -> None:
        """Tell of arrays in scratch that was given back, or freed with its stream."""
        for piece in dict.fromkeys(piece for piece, _ in touches):
            holder: Any = piece.owner()
            lender = None if holder is None else holder.lender
            if lender is not None and lender.ending:
                sink.ended(handle, name, piece, lender)

    def _touch(self, array: Any, *, is_certain: bool) -> Touch | None:
        if not array.size:
            return None
        mark = self._known.get(id(self.library.memory_of(array).owner))
        holder = None if mark is None else mark()
        if holder is None:
            return None
        piece = holder.piece
        address = self.library.address_of(array)
        if is_certain and address == piece.start and array.nbytes == piece.end - address and array.flags.forc:
            return piece, None
        return piece, region_of(address, array.shape, array.strides, array.itemsize, is_certain=is_certain)

    def _know(self, array: Any) -> _Holder | None:
        """Return what stands for an array's memory, made on first sight; None where nobody watches."""
        memory = self.library.memory_of(array)
        device, handle = self.library.current_stream(memory.device)
        watcher = self._watcher_of(device)
        if watcher is None:
            return None
        sink = watcher.sink
        with sink.lock:
            self._settle()
            mark = self._known.get(id(memory.owner))
            holder = None if mark is None else mark()
            if holder is None:
                lender = memory.lender
                self._has_scratch |= lender is not None
                handle = handle if lender is None else int(lender.stream.handle)
                piece = sink.allocate(handle, memory.start, memory.end, array.shape, array.dtype)
                holder = _Holder(memory.owner, piece, lender)
                mark = self._known[id(memory.owner)] = _Mark(holder, self._dead.append)
                mark.key, mark.piece, mark.sink = id(memory.owner), piece, sink
                piece.owner = mark
            return holder

    def _settle(self) -> None:
        """Take note of memory that no tracked array has any more. Cards that stand beside each other have one lock."""
        while self._dead:
            mark = self._dead.popleft()
            if self._known.get(mark.key) is mark:
                del self._known[mark.key]
            mark.sink.free(mark.piece)

    def _stream_of(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
        """Return where a call works, as device and handle: in the stream that it was given, or in the one that is selected."""
        is_beside = name in WORKS_BESIDE_ARRAY and args and isinstance(args[0], self.library.array_type)
        device, handle = self.library.current_stream(self.library.memory_of(args[0]).device if is_beside else None)
        given = getattr(kwargs.get("stream"), "ptr", None)
        if given is not None:  # it may be of another card than the array
            handle = int(given)
            device = next((card for card, watcher in self._watchers.items() if watcher.sink.has_stream(handle)), device)
        return device, 0 if handle == 1 else handle  # CUDA's handle of the legacy default stream is the NULL stream's too

    def _watcher_of(self, device: int) -> _Watcher | None:
        """Return who watches a card; for one that nobody watches, the first who watches another."""
        watchers = self._watchers  # read once: another thread may close a session
        return watchers.get(device) or next(iter(watchers.values()), None)


class _Watcher(NamedTuple):
    """Who is told of a card's work."""

    sink: AccessWatch
    captured: Callable[[int], list[Any] | None]


class _Holder:
    """Stands for memory, for as long as a tracked array is in it. The memory's own object may take no weak references."""

    __slots__ = ("__weakref__", "lender", "memory", "piece")

    def __init__(self, memory: object, piece: Piece, lender: Scratch | None) -> None:
        self.memory = memory
        self.piece = piece
        self.lender = lender

    @property
    def data(self) -> _Holder:
        """Show the memory where CuPy's arrays do, as ``data.mem``: for those who keep it."""
        return self

    @property
    def mem(self) -> object:
        """The memory."""
        return self.memory


class _Mark(weakref.ref["_Holder"]):
    """Looks at a holder without keeping it."""

    __slots__ = ("key", "piece", "sink")
    key: int
    piece: Piece
    sink: AccessWatch


class _Use(NamedTuple):
    """The arrays of a call."""

    all: list[Any]
    reads: list[Any]
    writes: list[Any]
    some: object  # The array of which only some elements are touched


def _find_use(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], array_type: type) -> _Use:
    """Tell which arrays a call reads and writes, as far as its name and arguments say; its results come on top."""
    given = list(find_arrays(args, array_type))
    named = list(find_arrays([value for key, value in kwargs.items() if key != "out"], array_type))
    writes = list(find_arrays(kwargs.get("out"), array_type))
    reads = [*given, *named]
    is_in_place = name in WRITES_FIRST or (name[:3] == "__i" and name in OPERATORS and name != "__invert__")
    some: object = None
    if is_in_place and given:
        writes.append(given[0])
        reads = reads[1:] if name in OVERWRITES_FIRST else reads
    chooses = name in CHOOSES or (name in {"__getitem__", "__setitem__"} and not is_basic(args[1]))
    if given and chooses:
        some = given[0]
    elif writes and kwargs.get("where", True) is not True:
        some = writes[0]
    if name == "__setitem__" and some is None and given:
        writes = [given[0][args[1]]] if given[0].ndim else writes  # a view: just the elements that are set
    return _Use([*reads, *writes, *given], reads, writes, some)


def find_arrays(value: Any, array_type: type) -> Iterator[Any]:
    """Find the arrays in arguments or results, in lists and tuples too."""
    if isinstance(value, array_type):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_arrays(item, array_type)


def is_basic(index: Any) -> bool:
    """Tell whether an index gives a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None or part is Ellipsis or (isinstance(part, (int, slice)) and not isinstance(part, bool)) for part in parts
    )


def _make_array_type(tracker: Tracker, base: Any) -> type:
    """Make a subclass whose methods and operators go through the tracker."""
    names = [
        name
        for name in dir(base)
        if name in OPERATORS or name in READS_BACK or (name[0] != "_" and callable(getattr(base, name)))
    ]
    members: dict[str, Any] = {
        name: _forward(tracker, base, name) for name in names if name not in PASSED_METHODS and hasattr(base, name)
    }
    members |= {name: _forward_view(tracker, base, name) for name in VIEWS if hasattr(base, name)}
    members["__doc__"] = f"A {base.__module__}.{base.__qualname__} that tells what is read and written."
    members["__module__"] = base.__module__
    members["__hash__"] = None
    members["tracked_memory"] = None

    def finalize(self: Any, template: Any) -> None:
        """Keep the memory's stand-in: a view that is made elsewhere is in it too."""
        if template is not None and type(template) is type(self):
            self.tracked_memory = template.tracked_memory

    def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        def run(*plain: Any, **options: Any) -> Any:
            return base.__array_ufunc__(base.view(self, base), ufunc, method, *plain, **options)

        return tracker.call("at" if method == "at" else ufunc.__name__, run, inputs, kwargs)

    def array_function(self: Any, function: Any, types: Iterable[type], args: Any, kwargs: Any) -> Any:
        plain_types = tuple(base if issubclass(kind, base) else kind for kind in types)

        def run(*plain: Any, **options: Any) -> Any:
            return base.__array_function__(base.view(self, base), function, plain_types, plain, options)

        return tracker.call(function.__name__, run, args, kwargs)

    members |= {"__array_finalize__": finalize, "__array_ufunc__": array_ufunc, "__array_function__": array_function}
    return type(base.__name__, (base,), members)


def _forward(tracker: Tracker, base: Any, name: str) -> Callable[..., Any]:
    plain = getattr(base, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return tracker.call(name, plain, (self, *args), kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = plain.__doc__
    return method


def _forward_view(tracker: Tracker, base: Any, name: str) -> property:
    plain = getattr(base, name)

    def look(self: Any) -> Any:
        return tracker.call(name, plain.__get__, (self,), {})

    def change(self: Any, value: Any) -> None:
        tracker.call("set", plain.__set__, (self, value), {})

    return property(look, change if name in {"real", "imag"} else None, doc=plain.__doc__)


SUBMODULES = frozenset({"fft", "linalg", "random"})  # Submodules whose functions are followed too
_MAKES_GENERATORS = frozenset({"default_rng", "RandomState", "Generator"})


class TrackedModule:
    """An array module whose arrays tell what is read and written."""

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
        if name in _MAKES_GENERATORS:
            return wraps(value, updated=())(
                lambda *args, **kwargs: TrackedFunction(name, value(*args, **kwargs), self._tracker)
            )
        if not callable(value) or isinstance(value, type) or name.startswith("_") or name in METADATA:
            return value
        return TrackedFunction(name, value, self._tracker)


class TrackedFunction:
    """A function whose calls are followed, or a random generator. Its attributes that are functions are followed too."""

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


def cupy_library(cupy: Any) -> ArrayLibrary:
    """Return what tracking has to know of CuPy."""

    def memory_of(array: Any) -> Memory:
        memory = array.data.mem
        lender = getattr(memory, "_owner", None)  # of cupy.cuda.UnownedMemory: what `CudaScratch.array` gave it
        lender = lender if hasattr(lender, "ending") else None
        return Memory(memory, memory.ptr, memory.ptr + memory.size, lender, int(memory.device_id))

    def current_stream(device: int | None) -> tuple[int, int]:
        number = cupy.cuda.runtime.getDevice() if device is None else device
        return number, int(cupy.cuda.get_current_stream(number).ptr)

    return ArrayLibrary(
        module=cupy,
        array_type=cupy.ndarray,
        memory_of=memory_of,
        address_of=lambda array: int(array.data.ptr),
        current_stream=current_stream,
    )
