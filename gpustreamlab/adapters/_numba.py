"""Numba-CUDA follows the selected stream: what names no stream goes there."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpustreamlab.adapters._known import Adapter, LaneStream
from gpustreamlab.errors import AdapterError, OptionError

_NEEDED = (
    "dispatcher._Kernel",
    "cudadrv.driver.Context.create_external_stream",
    "cudadrv.devices.get_context",
)
_LAUNCH_ARGS = 1  # The place of a kernel's own arguments among those of ``_Kernel.launch``, behind the kernel


class NumbaLane:
    """A stream as Numba has it. Made when the first work is enqueued: making it needs Numba's context."""

    def __init__(self, hooks: NumbaHooks, ordinal: int, handle: int) -> None:
        self._hooks = hooks
        self._handle = handle
        self._ordinal = ordinal

    @property
    def is_here(self) -> bool:
        """True if Numba works on the stream's device in this thread; another device's work stays where it is."""
        return bool(self._hooks.get_context().device.id == self._ordinal)

    @functools.cached_property
    def stream(self) -> Any:
        """Numba's stream object, which copies and events take."""
        return self._hooks.get_context().create_external_stream(self._handle)

    @functools.cached_property
    def launch_stream(self) -> Any:
        """What launches take: the same, or a stream of cuda.core where Numba launches through that."""
        convert = self._hooks.to_launch_stream
        return self.stream if convert is None else convert(self.stream)


class Hook(NamedTuple):
    """One function that is replaced, and by what."""

    owner: Any
    name: str
    original: Any
    replacement: Any


class NumbaHooks:
    """All hooks of one Numba-CUDA: put in together, taken out together. Made and released under the registry's lock."""

    _installed: ClassVar[dict[int, NumbaHooks]] = {}

    def __init__(self, cuda: Any) -> None:
        self.local = threading.local()
        """``lane`` of each thread: what stands for the default stream."""
        driver = _require(cuda, "cudadrv.driver")
        for path in _NEEDED:
            _require(cuda, path)
        self.get_context: Callable[[], Any] = cuda.cudadrv.devices.get_context
        self.to_launch_stream: Callable[[Any], Any] | None = getattr(driver, "_to_core_stream", None)
        self._key = id(driver)
        self._user_count = 0
        self._hooks = self._plan(cuda)

    @classmethod
    def of(cls, cuda: Any) -> NumbaHooks:
        """Return the hooks of a Numba-CUDA for one user more, put in for the first."""
        known = cls._installed.get(id(_require(cuda, "cudadrv.driver")))
        if known is None:
            known = cls(cuda)
            known._install()
        known._user_count += 1
        return known

    def release(self) -> None:
        """Let one user go, and take the hooks out with the last. What others have put in place of a hook stays."""
        self._user_count -= 1
        if self._user_count > 0:
            return
        self._installed.pop(self._key, None)
        for hook in self._hooks:
            if getattr(hook.owner, hook.name, None) is hook.replacement:
                setattr(hook.owner, hook.name, hook.original)

    def _install(self) -> None:
        done: list[Hook] = []
        try:
            for hook in self._hooks:
                done.append(hook)
                setattr(hook.owner, hook.name, hook.replacement)
        except BaseException:
            for hook in done:
                setattr(hook.owner, hook.name, hook.original)
            raise
        self._installed[self._key] = self

    def _plan(self, cuda: Any) -> list[Hook]:
        driver = cuda.cudadrv.driver
        copies = ("host_to_device", "device_to_host", "device_to_device", "device_memset")
        return [
            self._hook(cuda.dispatcher._Kernel, "launch", self._follow_launch),  # noqa: SLF001 - there is no public place
            *(self._hook(driver, name, self._follow_copy) for name in copies),
            *(self._hook(_require(cuda, "cudadrv.driver.Event"), name, self._follow_event) for name in ("record", "wait")),
            self._hook(_require(cuda, "cudadrv.driver.Stream"), "synchronize", self._follow_synchronize, takes_stream=False),
        ]

    def _hook(self, owner: Any, name: str, follow: Callable[[Any, int], Any], *, takes_stream: bool = True) -> Hook:
        original = getattr(owner, name, None)
        what = f"{getattr(owner, '__name__', owner)}.{name}"
        if not callable(original):
            raise AdapterError(f"it has no {what}, so its work cannot be led to the selected stream")
        names = list(inspect.signature(original).parameters)
        if takes_stream and "stream" not in names:
            raise AdapterError(f"{what} takes no stream, so its work cannot be led to the selected stream")
        replacement = follow(original, names.index("stream") if takes_stream else 0)
        return Hook(owner, name, original, functools.wraps(original)(replacement))

    def _lane_for(self, given: Any) -> NumbaLane | None:
        """Return what stands for the stream given; None where that is another, or none is selected here."""
        lane: NumbaLane | None = getattr(self.local, "lane", None)
        return lane if lane is not None and _is_default(given) and lane.is_here else None

    def _follow_launch(self, original: Any, place: int) -> Any:
        def launch(*args: Any, **kwargs: Any) -> Any:
            lane = self._lane_for(_given(args, kwargs, place))
            if lane is None:
                return original(*args, **kwargs)
            args, kwargs = _with(args, kwargs, "stream", place, lane.launch_stream)
            _refuse_host_arrays(kwargs["args"] if "args" in kwargs else args[_LAUNCH_ARGS])
            return original(*args, **kwargs)

        return launch

    def _follow_copy(self, original: Any, place: int) -> Any:
        def copy(*args: Any, **kwargs: Any) -> Any:
            given = _given(args, kwargs, place)
            result = event_call(*args, **kwargs)
            lane = self._lane_for(given)
            if lane is not None and not given:
                lane.stream.synchronize()  # with no stream given the call waits for its end; the default stream's does not
            return result

        event_call = self._follow_event(original, place)
        return copy

    def _follow_event(self, original: Any, place: int) -> Any:
        def event_call(*args: Any, **kwargs: Any) -> Any:
            lane = self._lane_for(_given(args, kwargs, place))
            if lane is not None:
                args, kwargs = _with(args, kwargs, "stream", place, lane.stream)
            return original(*args, **kwargs)

        return event_call

    def _follow_synchronize(self, original: Any, place: int) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            lane = self._lane_for(args[place])
            if lane is not None:
                lane.stream.synchronize()
            return original(*args, **kwargs)

        return synchronize


def _require(cuda: Any, path: str) -> Any:
    found = cuda
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise AdapterError(f"it has no numba.cuda.{path}, so its work cannot be led to the selected stream")
    return found


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
    if "stream" in kwargs:
        return kwargs["stream"]
    return args[place] if len(args) > place else 0


def _with(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str, place: int, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with another value for one of them."""
    if name not in kwargs and len(args) > place:
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _is_default(stream: Any) -> bool:
    """Tell whether a stream is none, or the default one by its handle."""
    if not stream:
        return True
    handle = getattr(stream, "handle", None)
    if handle is None:
        return False
    return int(getattr(handle, "value", handle) or 0) == 0  # a ctypes pointer has a value, other handles are numbers


def _refuse_host_arrays(values: Iterable[Any]) -> None:
    """Refuse arrays of the host, which numba-cuda copies in the default stream only: the copies have to be seen."""
    for value in values:
        if isinstance(value, tuple):
            _refuse_host_arrays(value)
        elif isinstance(getattr(value, "value", value), np.ndarray) and not hasattr(value, "__cuda_memory__"):
            raise OptionError(
                f"A kernel of Numba was given a {type(value).__name__} of the host while a stream is selected. Copy it to the "
                "stream, on_device = numba.cuda.to_device(array), and back: on_device.copy_to_host(array)."
            )


KEPT_LANES = 1_024  # Handles whose Numba streams are kept


def make_numba(cuda: Any, ordinal: int) -> Adapter:
    """Make Numba-CUDA follow. It has no current stream, so its launches and copies are hooked."""
    if hasattr(cuda, "simulator_init"):
        raise AdapterError("NUMBA_ENABLE_CUDASIM is set, so it runs on the CPU", has_work=False)
    return NumbaSelection(NumbaHooks.of(cuda), ordinal)


class NumbaSelection:
    """Notes for each thread which stream stands for the default stream. Nothing of Numba is called until work is enqueued."""

    def __init__(self, hooks: NumbaHooks, ordinal: int) -> None:
        self._hooks = hooks
        self._local = hooks.local
        self._find_lane = functools.lru_cache(maxsize=KEPT_LANES)(functools.partial(NumbaLane, hooks, ordinal))

    def select(self, stream: LaneStream) -> NumbaLane | None:
        """Let the stream stand for the default one in this thread; return what did."""
        lane = self._find_lane(stream.handle)
        before: NumbaLane | None = getattr(self._local, "lane", None)
        self._local.lane = lane
        return before

    def restore(self, token: NumbaLane | None) -> None:
        """Let stand what did before."""
        self._local.lane = token

    def close(self) -> None:
        """Take the hooks out, unless an adapter of another device uses them."""
        self._hooks.release()
