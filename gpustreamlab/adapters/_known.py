"""What makes a library follow the selected stream, and the libraries that are known: what each does about it."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from gpustreamlab.errors import AdapterError
from gpustreamlab.typing import AdapterState


class LaneStream(Protocol):
    """The stream that an adapter selects."""

    @property
    def handle(self) -> int:
        """Address of the ``cudaStream_t``. A stream that moves to another partition has another."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream by the CUDA Python stream protocol."""


class Adapter(Protocol):
    """Lets one library follow the selected stream, on one device.

    Calls come from many threads at once, and concern the thread that they come from. Both are on the path of every selection:
    a microsecond in either counts. An adapter that raises is switched off for its device. One that has a method ``close`` is
    told by it that no session is left.
    """

    def select(self, stream: LaneStream) -> object:
        """Make the library of this thread work on the stream; return what `restore` needs to put back what it worked on."""

    def restore(self, token: Any) -> None:
        """Put back what the library worked on before the `select` that gave the token. After an interrupt it may come twice."""


AdapterFactory: TypeAlias = Callable[[Any, int], Adapter]
"""Makes an adapter of the library's module and the device's number. It raises `AdapterError`, with the reason,
where the library cannot follow."""


StreamKey: TypeAlias = tuple[int, int, int]  # How torch knows a stream: its id, the device's index, the device's type

NO_CUDA = "this build of torch has no CUDA, so it has no work to follow with"  # What is said of a build for the CPU

KEPT_STREAMS = 1_024  # Handles whose keys are kept; a key follows from its handle, so an old one does no harm


def make_torch(torch: Any, ordinal: int) -> Adapter:
    """Make torch follow; its CUDA part is started if it has not been."""
    if torch.version.cuda is None:
        raise AdapterError(NO_CUDA, has_work=False)
    if not torch.cuda.is_initialized():
        try:
            torch.cuda.init()
        except Exception as error:
            raise AdapterError(f"its CUDA part does not start: {error}", has_work=False) from error
    if ordinal >= torch.cuda.device_count():
        raise AdapterError(f"it sees {torch.cuda.device_count()} devices, so no device {ordinal}", has_work=False)
    missing = [name for name in ("set_stream", "current_stream", "ExternalStream") if not hasattr(torch.cuda, name)]
    if missing:
        raise AdapterError(f"torch.cuda has no {missing[0]}, which is what sets its stream")
    return TorchSelection(torch, ordinal)


class TorchSelection:
    """Sets torch's current stream by the calls that ``torch.cuda.stream`` makes, which cost a tenth of what it does.

    They are private; where they are gone, by its public functions.
    """

    def __init__(self, torch: Any, ordinal: int) -> None:
        cuda = torch.cuda

        def set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
            cuda.set_stream(cuda.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

        native = getattr(torch, "_C", None)
        self._set = getattr(native, "_cuda_setStream", set_stream)
        self._get = getattr(native, "_cuda_getCurrentStream", lambda ordinal: _stream_key(cuda.current_stream(ordinal)))
        self._ordinal = ordinal

        @functools.lru_cache(maxsize=KEPT_STREAMS)
        def find_key(handle: int) -> StreamKey:
            return _stream_key(cuda.ExternalStream(handle, device=ordinal))

        self._find_key = find_key

    def select(self, stream: LaneStream) -> StreamKey:
        """Make the stream torch's current one in this thread; return what was."""
        key = self._find_key(stream.handle)
        before: StreamKey = self._get(self._ordinal)
        try:
            self._set(stream_id=key[0], device_index=key[1], device_type=key[2])
            return before
        except BaseException:  # an interrupt may come after the call has worked
            self.restore(before)
            raise

    def restore(self, token: StreamKey) -> None:
        """Make current what was."""
        self._set(stream_id=token[0], device_index=token[1], device_type=token[2])


def _stream_key(stream: Any) -> StreamKey:
    return stream.stream_id, stream.device_index, stream.device_type


class Library(NamedTuple):
    """One library, and what it does about a selected stream once it is loaded."""

    name: str
    """How the table calls it."""
    module: str
    """The module that has to be loaded."""
    distributions: tuple[str, ...]
    """Packages that bring it, the usual ones first."""
    state: AdapterState
    """What it does where nothing is in the way."""
    reason: str
    """How it comes to that, in words."""


class Obstacle(NamedTuple):
    """Why a library that is installed cannot follow, as far as that is seen without importing it."""

    reason: str
    """In words."""
    fix: str
    """What to type; empty where nothing is wrong with the installation."""


KNOWN = (
    Library(
        "cupy",
        "cupy",
        ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        AdapterState.FOLLOWS,
        "its current stream is set, with its memory pool's arena",
    ),
    Library("torch", "torch", ("torch",), AdapterState.FOLLOWS, "its current stream is set"),
    Library(
        "numba-cuda",
        "numba.cuda",
        ("numba-cuda", "numba"),
        AdapterState.FOLLOWS,
        "launches and copies that name no stream go to the selected one; copies still wait for their end",
    ),
    Library("triton", "triton", ("triton",), AdapterState.THROUGH_TORCH, "it launches on torch's current stream"),
    Library(
        "cuda.core",
        "cuda.core",
        ("cuda-core",),
        AdapterState.TAKES_STREAM,
        "it has no current stream: pass stream.core to launch() and the like",
    ),
    Library(
        "jax",
        "jax",
        ("jax",),
        AdapterState.CANNOT_FOLLOW,
        "it has its own streams; its work is found by lab.trace.strays()",
    ),
    Library(
        "onnxruntime",
        "onnxruntime",
        ("onnxruntime-gpu", "onnxruntime"),
        AdapterState.TAKES_STREAM,
        "a session keeps the stream that it was made with: the CUDA provider's option user_compute_stream=str(stream.handle)",
    ),
)
"""In the order of the table."""

LAST_WITH_ROW_STACK = (0, 30, 4)  # The newest Numba-CUDA that was seen to need names which NumPy 2.5 took out


def library_of(module: str) -> Library:
    """Return what is known of a library, by its module."""
    return next(library for library in KNOWN if library.module == module)


def obstacle_of(library: Library, version: str) -> Obstacle | None:
    """Tell why a library of this version cannot follow, or None where nothing is known to be in the way. Imports nothing."""
    if library.module == "torch" and version.endswith("+cpu"):
        return Obstacle(NO_CUDA, "")
    if library.state is AdapterState.THROUGH_TORCH and obstacle_of(library_of("torch"), installed_version("torch")):
        return Obstacle(f"it launches on torch's current stream, and torch: {AdapterState.CANNOT_FOLLOW}", "")
    numbers = tuple(map(int, re.findall(r"\d+", version)[: len(LAST_WITH_ROW_STACK)]))
    needs_row_stack = library.module == "numba.cuda" and () < numbers <= LAST_WITH_ROW_STACK
    if needs_row_stack and not hasattr(np, "row_stack"):
        reason = f"it cannot be imported: it asks for numpy.row_stack, which NumPy {np.__version__} has not any more"
        return Obstacle(reason, "pip install 'numpy<2.5'")
    return None


def what_it_does(library: Library, version: str) -> str:
    """Say what a library does about a selected stream: the words of ``lab.recording.adapters`` and of ``doctor``."""
    obstacle = obstacle_of(library, version)
    return f"{library.state}, {library.reason}" if obstacle is None else f"{AdapterState.CANNOT_FOLLOW}, {obstacle.reason}"


def installed_version(module: str) -> str:
    """Return the version of a library, or ``""`` where it is not installed. Imports nothing."""
    loaded = sys.modules.get(module)
    known = getattr(loaded, "__version__", None) if is_loaded(loaded) else None
    if isinstance(known, str):
        return known
    distributions = next((library.distributions for library in KNOWN if library.module == module), (module.partition(".")[0],))
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return ""


def is_loaded(module: Any) -> bool:
    """Tell whether a module of `sys.modules` is imported to its end. One that `importlib.util.LazyLoader` made is not, yet."""
    if module is None or type(module).__name__ == "_LazyModule":  # whatever it is asked for would import it
        return False
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)
