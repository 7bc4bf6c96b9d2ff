"""The CUPTI library, called through ctypes: loading, versions, and which calls of the host are recorded.

cupti-python hands over one Python object a record, 15 us each (FACTS.md); here the raw buffers are taken instead.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.words import update_line
from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends.cuda._libcuda import cupti_line, exact_cupti_line, load_libcuda
from gpustreamlab.backends.cuda.cupti._arguments import Shape, shape_of
from gpustreamlab.backends.cuda.cupti._layouts import CALLED, WORK_KINDS, CallbackDomain, Layouts, RecordKind, find_layouts
from gpustreamlab.errors import CaptureUnavailableError, MissingExtraError

_log = logging.getLogger(__name__)


MULTIPLE_SUBSCRIBERS = 39
"""What subscribing gives where another client holds the one place. Source: ``cupti_result.h``."""
_FIRST_WITH_SEVERAL_SUBSCRIBERS = 130300
"""With a driver r610 or newer; an older one refuses. Not run on such a machine yet."""
NOT_COMPATIBLE = 14
"""What CUPTI gives where it does not go with the driver."""
INSUFFICIENT_PRIVILEGES = 35
"""What CUPTI gives where only administrators may profile."""
NO_SUCH_FUNCTION = -1
"""What `Cupti.call` gives where this version has no such function."""

_FIRST_WITH_NUMBER = 130_000
"""From CUDA 13.0 on CUPTI's API version holds the CUDA version."""
_LAST_CALLBACK = 2_000
"""No CUDA function has a higher callback id; about 900 are in use."""

_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_CLASSES = (
    (CallClass.LAUNCH, re.compile(r"Launch(Grid(Async)?|(Cooperative)?Kernel(Ex|ExC|MultiDevice)?)?|GraphLaunch")),
    (CallClass.LAUNCH, re.compile(r"(Memcpy|Memset)\w*")),
    (CallClass.SYNCHRONIZE, re.compile(r"(Stream|Device|Ctx|Event|Thread)Synchronize")),
    (
        CallClass.MEMORY,
        re.compile(r"(Malloc|MemAlloc|Free|MemFree)(Async|Managed|Pitch|Host|FromPoolAsync|3D|Array|MipmappedArray)?"),
    ),
    (CallClass.MEMORY, re.compile(r"(Mem)?HostAlloc")),
    (CallClass.EVENT, re.compile(r"(Stream|Ctx|GreenCtx)WaitEvent")),
    (CallClass.CREATE, re.compile(r"Stream(Create\w*)|GreenCtx(Stream)?Create|GraphInstantiate\w*")),
    (CallClass.OTHER, re.compile(r"(Module|Library)Load\w*|LaunchHostFunc|StreamAddCallback")),
)
"""What calls are recorded, by their names without ``cu`` and ``cuda``. Recorded events are in records of their own kind."""

_SAME_CLOCK_NS = 10_000_000_000
"""Two readings of the wall clock are less apart than this, also where somebody sets it; another clock's zero is far away."""
_SUBSCRIBE_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)

_DETACHING_CALL = "cuCtxGetDevice"
"""A driver function that does nothing but answer: CUPTI leaves as it returns."""
_CALL_RETURNS = 1
"""CUPTI_API_EXIT: the first field of what a callback is told of a call."""
CALL_DOMAINS: dict[int, CallbackDomain] = {
    RecordKind.DRIVER: CallbackDomain.DRIVER_API,
    RecordKind.RUNTIME: CallbackDomain.RUNTIME_API,
    CALLED: CallbackDomain.DRIVER_API,
}
"""Records of calls, and the functions whose calls they are of."""
_callbacks: list[Any] = []
"""What CUPTI was given to call."""

_loading = threading.Lock()
_loaded: dict[str, Cupti] = {}


class Cupti:
    """A loaded libcupti."""

    def __init__(self, library: Any, path: str) -> None:
        self.library = library
        self.path = path
        number = ctypes.c_uint32()
        self.call("cuptiGetVersion", ctypes.byref(number))
        self.version: int = number.value
        """CUPTI's API version, for example 130001."""
        layouts = find_layouts(self.version)
        if layouts is None:
            raise CaptureUnavailableError(
                f"The records of this CUPTI (API version {self.version}, {path}) are not known to this gpustreamlab; "
                f"ranges are timed without it. Update with: {update_line()}"
            )
        self.layouts: Layouts = layouts
        """How its records are laid out."""
        self.has_seen_graphs = False
        """Whether a CUDA graph was launched while calls were recorded."""
        self.sampled_cards: set[int] = set()
        """CUDA device numbers of the cards whose counters are sampled."""
        self.has_profiled = False
        """Whether its profiler was used: CUPTI then stays in the process."""
        self.has_left = False
        """Whether it was taken out of the process before."""
        self._subscriber: ctypes.c_void_p | None = None

    @property
    def title(self) -> str:
        """Name and version as people write it, for example ``"CUPTI 13.0"``."""
        if self.version < _FIRST_WITH_NUMBER:
            return f"CUPTI 12 (API {self.version})"
        return f"CUPTI {self.version // 10_000}.{self.version // 100 % 100}"

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result code, 0 for success, or `NO_SUCH_FUNCTION`."""
        function = getattr(self.library, name, None)
        return NO_SUCH_FUNCTION if function is None else int(function(*arguments))

    def require(self, name: str, *arguments: Any) -> None:
        """Call a function, and raise `CaptureUnavailableError` unless it succeeds."""
        code = self.call(name, *arguments)
        if code:
            raise CaptureUnavailableError(f"{self.title} refused {name}: {self.explain(code)}")

    def explain(self, code: int) -> str:
        """Return what a result code means, and what to do about it."""
        text = ctypes.c_char_p()
        known = self.call("cuptiGetResultString", code, ctypes.byref(text)) == 0 and text.value is not None
        name = text.value.decode() if known and text.value is not None else f"code {code}"
        if code == INSUFFICIENT_PRIVILEGES:
            return f"{name}. Allow it for users: https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        if code == NOT_COMPATIBLE:
            return f"{name}. Install the CUPTI of the driver's CUDA version: {exact_cupti_line()}"
        return name

    def is_held_by_another(self) -> bool:
        """Tell whether another client has subscribed; nothing of it is changed."""
        if self._subscriber is not None:
            return False
        callback = _SUBSCRIBE_CALLBACK(lambda *_: None)
        handle = ctypes.c_void_p()
        code = self.call("cuptiSubscribe", ctypes.byref(handle), callback, None)
        if code == 0:
            # Who holds the place keeps torch.profiler from working for good, so it is given back at once.
            self.call("cuptiUnsubscribe", handle)
        return code == MULTIPLE_SUBSCRIBERS

    def look_for_graphs(self, columns: Mapping[int, Mapping[str, NDArray[Any]]]) -> None:
        """Note CUDA graphs among the records."""
        if self.has_seen_graphs:
            return
        calls = (
            np.isin(columns[kind]["cbid"], self._graph_calls[domain]).any()
            for kind, domain in CALL_DOMAINS.items()
            if kind in columns
        )
        work = (columns[kind]["graphId"].any() for kind in WORK_KINDS if kind in columns)
        self.has_seen_graphs = any(calls) or any(work)

    def detach(self) -> bool:
        """Take CUPTI out of the process's calls until it is used again; tell whether that was possible.

        ``cuptiFinalize`` is to be called where a CUDA call returns, in a callback of a subscriber. Source: CUPTI user guide,
        Dynamic Attach and Detach. It waits for the work that the device has then, so the interpreter's lock is not kept: that
        work may wait for Python, as a host function does.
        """
        names = self._names[CallbackDomain.DRIVER_API]
        number = next((number for number, name in names.items() if name == _DETACHING_CALL), None)
        if number is None:
            return False
        caller = threading.get_ident()
        begun: list[bool] = []
        codes: list[int] = []

        def finalize(_data: int, _domain: int, _number: int, info: int) -> None:
            is_return = ctypes.cast(info, ctypes.POINTER(ctypes.c_int))[0] == _CALL_RETURNS
            if is_return and not begun and threading.get_ident() == caller:  # other threads make that call, too
                begun.append(True)
                codes.append(self.call("cuptiFinalize"))

        callback = _SUBSCRIBE_CALLBACK(finalize)
        handle = ctypes.c_void_p()
        if self.call("cuptiSubscribe", ctypes.byref(handle), callback, None):
            return False
        _callbacks.append(callback)  # CUPTI may call it later, so it stays
        where = int(CallbackDomain.DRIVER_API), ctypes.c_uint32(number)
        if self.call("cuptiEnableCallback", ctypes.c_uint32(1), handle, *where) == 0:
            _make_detaching_call()
        if codes != [0]:
            self.call("cuptiUnsubscribe", handle)
        self.has_left = self.has_left or codes == [0]
        return codes == [0]

    def bring_back(self) -> None:
        """Have CUPTI in the process again where it has left: a subscriber does that, its profiler alone does not (13.0)."""
        handle = ctypes.c_void_p()
        if self.has_left and not self.call("cuptiSubscribe", ctypes.byref(handle), None, None):
            self.call("cuptiUnsubscribe", handle)
        self.has_left = False

    def tells_wall_time(self) -> bool:
        """Tell whether CUPTI's clock is the wall clock: torch.profiler sets its own at each start, and leaves it there."""
        now_ns = ctypes.c_uint64()
        is_told = self.call("cuptiGetTimestamp", ctypes.byref(now_ns)) == 0
        return is_told and abs(now_ns.value - time.time_ns()) < _SAME_CLOCK_NS

    def use_wall_clock(self) -> None:
        """Let CUPTI tell times by the wall clock, as it does by itself. Nothing may be enabled meanwhile.

        Records that were not flushed yet lose their times by it, so it is for a clock that others have set, and nothing else.
        """
        address = _wall_clock_address()
        if address is None or self.call("cuptiActivityRegisterTimestampCallback", ctypes.c_void_p(address)):
            _log.info("CUPTI's clock could not be set; where another profiler has set it, kernels cannot be placed")

    def enable(self, kinds: Iterable[RecordKind]) -> None:
        """Record these kinds from now on."""
        for kind in kinds:
            self.require("cuptiActivityEnable", int(kind))

    def disable(self, kinds: Iterable[RecordKind]) -> None:
        """Record these kinds no more."""
        for kind in kinds:
            self.call("cuptiActivityDisable", int(kind))

    @property
    def follows_calls(self) -> bool:
        """Whether calls are followed by a callback, and not recorded."""
        return self._subscriber is not None

    def enable_calls(self, callback: Any) -> None:
        """Follow the calls of the driver that launch, order or allocate by this callback; record them where another subscribed.

        The runtime's calls pass through the driver's. Beside records of kernels, records of calls make a launch 1.35 to 2.1
        times as long, and an empty callback no longer than it is: docs/explanations/decisions/0036.
        """
        if self._subscriber is None and not self._subscribe(callback):
            self.enable((RecordKind.DRIVER, RecordKind.RUNTIME))
            # Enabling single functions alone is accepted by 13.0 and records nothing; leaving all others out works.
            self._set_other_calls(is_on=0)
            return
        self._follow(self.followed_calls, is_on=1)

    def disable_calls(self) -> None:
        """Follow and record no calls."""
        self.leave_calls_to_others()
        self.disable((RecordKind.DRIVER, RecordKind.RUNTIME))

    def watch_for_graphs(self) -> None:
        """Miss no launch of a graph from now on; see `look_for_graphs`."""
        if self._subscriber is not None:
            domain = CallbackDomain.DRIVER_API
            self._follow(self.followed_calls.keys() - {*self._graph_calls[domain]}, is_on=0)
            return
        for kind in (RecordKind.DRIVER, RecordKind.RUNTIME):
            self.call("cuptiActivityEnable", int(kind))
        self._set_other_calls(is_on=1)

    def leave_calls_to_others(self) -> None:
        """Give the subscriber's place back, and leave no calls out: who records next, as torch.profiler, needs both."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            self.call("cuptiUnsubscribe", subscriber)
        self._set_other_calls(is_on=1)

    def _subscribe(self, callback: Any) -> bool:
        """Take the one place of a subscriber, or, from 13.3 on, one beside those who allow it; tell whether there was one."""
        handle = ctypes.c_void_p()
        code = self.call("cuptiSubscribe", ctypes.byref(handle), callback, None)
        if code == MULTIPLE_SUBSCRIBERS and self.version >= _FIRST_WITH_SEVERAL_SUBSCRIBERS:
            beside = _SubscriberParams(ctypes.sizeof(_SubscriberParams), b"gpustreamlab", None, 0, 1)
            code = self.call("cuptiSubscribe_v2", ctypes.byref(handle), callback, None, ctypes.byref(beside))
        if code:
            return False
        self._subscriber = handle
        return True

    def _follow(self, numbers: Iterable[int], *, is_on: int) -> None:
        """Have the callback called at these functions of the driver, or no more."""
        where = self._subscriber, int(CallbackDomain.DRIVER_API)
        for number in numbers:
            self.call("cuptiEnableCallback", ctypes.c_uint32(is_on), *where, ctypes.c_uint32(number))

    def _set_other_calls(self, *, is_on: int) -> None:
        """Let the functions that we do not record be left out of the calls, or be among them again."""
        for domain, setter in _SETTERS.items():
            for number in self._names[domain].keys() - self.call_classes[domain].keys():
                if self.call(setter, ctypes.c_uint32(number), ctypes.c_uint8(is_on)) == NO_SUCH_FUNCTION:
                    return

    def call_name(self, domain: CallbackDomain, number: int) -> str:
        """Return a function's name as it is called in programs, for example ``"cudaLaunchKernel"``; empty if there is none."""
        return self._names[domain].get(number, "")

    @cached_property
    def call_classes(self) -> dict[CallbackDomain, dict[int, CallClass]]:
        """For the driver's and the runtime's functions that are recorded: by callback id what they are for."""
        return {
            domain: {number: kind for number, name in names.items() if (kind := classify_call(name)) is not None}
            for domain, names in self._names.items()
        }

    @cached_property
    def followed_calls(self) -> dict[int, str]:
        """The driver's functions that are followed where a callback can be: by number the name as CUPTI has it."""
        names = self._full_names[CallbackDomain.DRIVER_API]
        shown = self.call_classes[CallbackDomain.DRIVER_API]
        return {number: name for number, name in names.items() if number in shown or shape_of(name) is not None}

    @cached_property
    def ending_calls(self) -> list[int]:
        """The driver's functions that may end a context, by number: what CUPTI holds of it then goes, too."""
        names = self._names[CallbackDomain.DRIVER_API]
        return [number for number, name in names.items() if name in _ENDING]

    @cached_property
    def shapes(self) -> dict[int, Shape]:
        """What is noted of the driver's functions that say something of memory or order, by number."""
        found = {number: shape_of(name) for number, name in self.followed_calls.items()}
        return {number: shape for number, shape in found.items() if shape is not None}

    @cached_property
    def _graph_calls(self) -> dict[CallbackDomain, list[int]]:
        """The functions that launch a graph."""
        return {
            domain: [number for number, name in names.items() if "GraphLaunch" in name] for domain, names in self._names.items()
        }

    @cached_property
    def _names(self) -> dict[CallbackDomain, dict[int, str]]:
        """The name of every callback id in use, as it is called in programs."""
        return {
            domain: {number: bare_name(name) for number, name in names.items()} for domain, names in self._full_names.items()
        }

    @cached_property
    def _full_names(self) -> dict[CallbackDomain, dict[int, str]]:
        """The name of every callback id in use, with the version of its parameters."""
        found: dict[CallbackDomain, dict[int, str]] = {domain: {} for domain in _SETTERS}
        text = ctypes.c_char_p()
        for domain, names in found.items():
            for number in range(1, _LAST_CALLBACK):
                code = self.call("cuptiGetCallbackName", int(domain), ctypes.c_uint32(number), ctypes.byref(text))
                if code == 0 and text.value:
                    names[number] = text.value.decode().lstrip("_")
        return found


_ENDING = {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease", "cuCtxDestroy"}
_SETTERS = {
    CallbackDomain.DRIVER_API: "cuptiActivityEnableDriverApi",
    CallbackDomain.RUNTIME_API: "cuptiActivityEnableRuntimeApi",
}


class _SubscriberParams(ctypes.Structure):
    """``CUpti_SubscriberParams``, of ``cuptiSubscribe_v2``."""

    _fields_ = (
        ("structSize", ctypes.c_size_t),
        ("subscriberName", ctypes.c_char_p),
        ("oldSubscriberName", ctypes.c_char_p),
        ("oldSubscriberSize", ctypes.c_size_t),
        ("allowMultipleSubscribers", ctypes.c_uint8),
    )


def _make_detaching_call() -> None:
    load_libcuda().cuCtxGetDevice(ctypes.byref(ctypes.c_int()))


def bare_name(name: str) -> str:
    """Return what programs call a function that CUPTI names with the version of its parameters.

    Examples
    --------
    >>> bare_name("cuMemcpyHtoDAsync_v2_ptsz")
    'cuMemcpyHtoDAsync'
    """
    return _SUFFIX.sub("", name)


def classify_call(name: str) -> CallClass | None:
    """Return what a CUDA function is for, or None where it is none of what is recorded.

    Examples
    --------
    >>> classify_call("cudaStreamSynchronize").name, classify_call("cuLaunchKernelEx").name, classify_call("cuCtxGetCurrent")
    ('SYNCHRONIZE', 'LAUNCH', None)
    """
    bare = name.removeprefix("cuda") if name.startswith("cuda") else name.removeprefix("cu")
    if bare == name:
        return None
    return next((kind for kind, pattern in _CLASSES if pattern.fullmatch(bare)), None)


def _wall_clock_address() -> int | None:
    """Return the address of a function without arguments that gives the wall clock in ns, as CUPTI wants one."""
    try:
        now = ctypes.CDLL("libstdc++.so.6")["_ZNSt6chrono3_V212system_clock3nowEv"]
    except (OSError, AttributeError):
        return None
    return ctypes.cast(now, ctypes.c_void_p).value


def load_cupti() -> Cupti:
    """Load libcupti once: the one that is in this process already, else the installed one."""
    with _loading:
        if not _loaded:
            path = find_loaded() or find_installed()
            try:
                library = ctypes.CDLL(path)
            except OSError as error:
                raise MissingExtraError(
                    f"CUPTI cannot be loaded ({error}). Install it with: {cupti_line()}", name="cupti"
                ) from error
            _loaded["cupti"] = Cupti(library, path)
        return _loaded["cupti"]


def find_loaded() -> str | None:
    """Return the path of the libcupti that is in this process: a second one of another version would fight with it."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(maxsplit=5)[-1] for line in lines if "/libcupti.so" in line), None)


def find_installed() -> str:
    """Return the path of the installed libcupti."""
    try:
        from cuda import pathfinder

        found = pathfinder.load_nvidia_dynamic_lib("cupti").abs_path
    except Exception as error:
        raise MissingExtraError(
            f"CUPTI, which records every kernel, is not installed. Install it with: {cupti_line()}",
            name="cupti",
        ) from error
    return str(found)
