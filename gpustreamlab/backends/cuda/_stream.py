"""A CUDA stream, ours or lent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gpustreamlab.analysis import Moment
from gpustreamlab.backends._features import refuse_capture, refuse_stream
from gpustreamlab.backends.cuda._libcuda import map_error, mapped_errors
from gpustreamlab.backends.cuda._tracked import Tracker
from gpustreamlab.backends.cuda.cupti._memory import PoolWatch

if TYPE_CHECKING:
    from gpustreamlab.memory.hazards import AccessWatch


class AccessOrder:
    """Hands the order on while somebody watches. One for each backend; its streams tell it.

    Events of ranges are not told of: nobody waits for them. What a tool sees done while it only looks on is no order that the
    program has.
    """

    def __init__(self, beside: AccessOrder | None = None) -> None:
        self.sink: AccessWatch | None = None  # Who watches; None for nobody
        self.tracker: Tracker | None = None  # What follows CuPy's calls; the same for all cards that are watched
        self.moments: dict[int, Moment] = {}
        """What events stand for, by the identity of each, which may take no weak references."""
        self.cards: list[AccessOrder] = [] if beside is None else beside.cards  # Those of all cards of the node
        self.cards.append(self)
        self._thread = threading.local()

    def watch(self, sink: AccessWatch | None) -> None:
        """Tell somebody from now on, or nobody."""
        self.sink = sink
        self.moments.clear()

    def record(self, handle: int, event: object) -> None:
        """Note that an event was recorded."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                self.moments[id(event)] = sink.record(handle)

    def wait(self, handle: int, event: object) -> None:
        """Note that a stream's later work waits for an event."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                sink.wait(handle, self._find(event))

    def host_wait(self, event: object) -> None:
        """Note that the host has seen an event reached."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait(self._find(event))

    def host_wait_stream(self, handle: int) -> None:
        """Note that the host has seen a stream idle."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait_stream(handle)

    def host_wait_all(self) -> None:
        """Note that the host has seen the device idle."""
        sink = self.sink
        if sink is not None and not self._is_looking_on:
            with sink.lock:
                sink.host_wait_all()

    def close_stream(self, handle: int) -> None:
        """Note that a stream was destroyed."""
        sink = self.sink
        if sink is not None:
            with sink.lock:
                sink.close_stream(handle)

    def forget(self, events: Iterable[object]) -> None:
        """Let events mean nothing any more: they go back to their pool, and ranges record them next."""
        for event in events:
            self.moments.pop(id(event), None)

    @contextmanager
    def looking_on(self) -> Iterator[None]:
        """Let what this thread sees done be no order."""
        before = self._is_looking_on
        self._thread.is_looking_on = True
        try:
            yield
        finally:
            self._thread.is_looking_on = before

    def _find(self, event: object) -> Moment | None:
        """Return what an event stands for, of whichever card it is: each is recorded on streams of its own."""
        return next((moment for card in self.cards if (moment := card.moments.get(id(event))) is not None), None)

    @property
    def _is_looking_on(self) -> bool:
        return getattr(self._thread, "is_looking_on", False)


class NullStream:
    """CUDA's NULL stream, on which a wait is put in where work with no stream selected lacks one."""

    def __init__(self, core_stream: Any, order: AccessOrder, scope: Callable[[], AbstractContextManager[None]]) -> None:
        self._core_stream = core_stream
        self._order = order
        self._scope = scope

    def record(self, event: Any) -> None:
        """Record an event."""
        with self._scope():
            self._core_stream.record(event)
        self._order.record(0, event)

    def wait(self, event: Any) -> None:
        """Make later work wait for an event."""
        with self._scope():
            self._core_stream.wait(event)
        self._order.wait(0, event)


@dataclass(eq=False, repr=False, kw_only=True)
class CudaStream:
    """One stream of the primary context."""

    core: Any  # The `cuda.core.Stream`
    cupy: Any  # The same stream as CuPy sees it
    key: tuple[int, int, int]  # Device ordinal, context number, handle
    priority: int
    sm_count: int  # How many SMs its kernels may run on
    lender: object  # The object that owns the stream, kept alive; None if the stream is ours
    free_arena: Callable[[Any], None]
    """Gives back what CuPy's pool keeps for the stream; called before a stream of ours is given back."""
    end_scratch: Callable[[int], object]  # ``end_scratch(handle)`` lets the pool of the stream's scratch go
    give_back: Callable[[], object]
    """Called when a stream of ours is closed: libraries may still know its handle, so it is kept for another session."""
    fence: Callable[[int], object]
    """``fence(handle)`` lets the next event stay out of the queue of a copy engine; see `_kernels.Fence`."""
    order: AccessOrder  # Is told of what orders work, for those who watch accesses
    is_closed: bool = field(default=False, init=False)  # True once `close` was called

    def __post_init__(self) -> None:
        self.handle = self.key[2]
        self._record = self.core.record

    @property
    def is_blocking(self) -> bool:
        """Whether it and the legacy default stream wait for each other; true of that itself, too."""
        return not self.core.is_nonblocking

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream to an adapter: protocol version 0 and the handle."""
        return (0, self.handle)

    def record_raw(self, event: Any) -> object:
        """Record a timing event of a range."""
        self.fence(self.handle)
        return self._record(event)

    def record(self, event: Any) -> object:
        """Record a `cuda.core.Event` behind the work enqueued so far."""
        try:
            recorded = self._record(event)
        except Exception as error:
            raise map_error(error, f"Recording an event on stream {self.handle:#x}") from error
        if not self._is_untold:
            self.order.record(self.handle, event)
        return recorded

    def wait(self, event: Any) -> None:
        """Make later work wait for a `cuda.core.Event`."""
        with mapped_errors(f"Making stream {self.handle:#x} wait for an event"):
            self.core.wait(event)
        if not self._is_untold:
            self.order.wait(self.handle, event)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""
        with mapped_errors(f"Asking stream {self.handle:#x} whether it is done"):
            is_done = bool(self.cupy.done)
        if not is_done and self.is_capturing:  # CuPy takes the driver's refusal for a no
            raise refuse_capture(
                f"Asking stream {self.handle:#x} whether it is done", "Ask before the capture, or after the graph's launch."
            )
        if is_done:
            self.order.host_wait_stream(self.handle)
        return is_done

    @property
    def is_capturing(self) -> bool:
        """Whether its work is being captured into a CUDA graph, also where an error has broken the capture."""
        from cuda.bindings import driver

        # Not through CuPy, which raises for a capture that is broken.
        status, state = driver.cuStreamIsCapturing(driver.CUstream(self.handle))
        if status != driver.CUresult.CUDA_SUCCESS:
            raise map_error(RuntimeError(status.name), f"Asking stream {self.handle:#x} whether it is captured")
        return bool(state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    @property
    def _is_untold(self) -> bool:
        """Whether what orders its work now is of a graph, of which those who watch accesses are told at each launch."""
        return self.order.sink is not None and self.is_capturing

    @property
    def is_idle(self) -> bool:
        """True if nothing of ours runs here any more: it is closed, or all its work has ended. Never raises."""
        try:
            return self.is_closed or bool(self.cupy.done)
        except Exception:  # noqa: BLE001 - a context that is lost runs nothing either
            return True

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        with mapped_errors(f"Waiting for stream {self.handle:#x}"):
            self.core.sync()
        self.order.host_wait_stream(self.handle)

    def close(self) -> None:
        """Give the stream back if it is ours, without the memory that CuPy's pool keeps for it; forget it if it was lent."""
        if self.is_closed:
            return
        self.is_closed = True
        with mapped_errors(f"Closing stream {self.handle:#x}"):
            self.end_scratch(self.handle)
            if self.lender is None:
                self.free_arena(self.cupy)
                self.order.close_stream(self.handle)
                self.give_back()
            else:
                self.core.close()
        self.lender = None


def check_lent_stream(lender: object, handle: int, ordinal: int) -> None:
    """Refuse a stream of another device, and one that the driver does not know.

    A handle is an address, and drivers need not check it: one that was destroyed, or is no stream at all, may pass unnoticed,
    be that of a new stream meanwhile, or end the process. A lender that is alive and owns its stream is the safe source; it
    is kept alive. A stream that is being captured into a CUDA graph passes unasked: any of these questions would end the
    capture (seen with the driver for CUDA 13.0). Source: CUDA driver API, ``cuStreamIsCapturing``, ``cuStreamGetDevice`` (12.8
    and later), ``cuStreamGetCtx``.
    """
    answer, device = _ask(handle)
    if answer:
        raise refuse_stream(
            lender,
            handle,
            f"is not known to the driver ({answer}): it was destroyed, or never was one of this process",
            fix="Keep the stream's owner alive while the session uses it, or make one with lab.stream('name').",
        )
    if device is not None and device != ordinal:
        raise refuse_stream(
            lender,
            handle,
            f"is on CUDA device {device}, and this session on device {ordinal}",
            fix=f"Use gpustreamlab.Session(device={device}), or make a stream here with lab.stream('name').",
        )


def _ask(handle: int) -> tuple[str, int | None]:
    """Return the driver's complaint or an empty text, and the stream's device where this driver tells."""
    from cuda.bindings import driver

    stream, device = driver.CUstream(handle), None
    status, capture = driver.cuStreamIsCapturing(stream)
    done, idle = driver.CUresult.CUDA_SUCCESS, driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    if status == done and capture == idle:
        try:
            status, device = driver.cuStreamGetDevice(stream)
        except (AttributeError, RuntimeError):  # bindings, or a driver, before 12.8
            status, _ = driver.cuStreamGetCtx(stream)
    if status != done:
        return status.name, None
    return "", None if device is None else int(device)


SelectionToken: TypeAlias = tuple[int, Any, int]
"""What was current before a selection: device, CuPy stream, and how many selections were entered in this thread."""


class CupySelection:
    """CuPy's current stream of each thread, as a stack.

    CuPy keeps a stack of streams for ``with stream``, and what ``stream.use()`` sets is not on it: leaving a ``with`` inside
    puts back what an outer ``with`` selected, or the NULL stream (seen with CuPy 14.2). So a selection enters the stream as
    ``with`` does, and what ``use`` had set before is set again at the end.
    """

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self.watch = PoolWatch(cupy, ordinal, time.perf_counter_ns)
        """Follows what CuPy's pool holds for each stream, in threads that select one while kernels are captured."""
        self._device = cupy.cuda.Device
        self._get_ordinal = cupy.cuda.runtime.getDevice
        self._get_stream = cupy.cuda.get_current_stream
        self._ordinal = ordinal
        self._local = threading.local()

    def select(self, stream: Any) -> SelectionToken:
        """Make the CuPy stream in ``stream.cupy`` current in this thread; the device is switched only where it differs."""
        ordinal = self._get_ordinal()
        if ordinal != self._ordinal:
            self._device(self._ordinal).use()
        try:
            entered = self._local.entered
        except AttributeError:
            entered = self._local.entered = []
        token = ordinal, self._get_stream(), len(entered)
        cupy_stream = stream.cupy
        cupy_stream.__enter__()
        entered.append(cupy_stream)
        if self.watch.is_on:
            self.watch.enter()
        else:
            self.watch.leave()  # from a capture that another thread has ended
        return token

    def restore(self, token: Any) -> None:
        """Put back what was current before the selection that gave the token; selections entered after it are left too."""
        ordinal, stream, depth = token
        entered = self._local.entered
        while len(entered) > depth:
            entered.pop().__exit__(None, None, None)
        current = self._get_stream()
        if current is not stream and current != stream:  # comparing two streams of CuPy takes a quarter of a microsecond
            stream.use()
        if ordinal != self._ordinal:
            self._device(ordinal).use()
