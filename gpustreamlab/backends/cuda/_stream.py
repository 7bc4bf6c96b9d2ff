"""A CUDA stream, ours or lent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpustreamlab.backends.cuda._access_order import AccessOrder
from gpustreamlab.backends.cuda._errors import map_error, mapped_errors


class CudaStream:
    """One stream of the primary context.

    Parameters
    ----------
    core_stream
        The `cuda.core.Stream`.
    cupy_stream
        The same stream as CuPy sees it.
    key
        Device ordinal, context number, handle.
    sm_count
        How many SMs its kernels may run on.
    lender
        The object that owns the stream, kept alive; None if the stream is ours.
    give_back
        Called when a stream of ours is closed: libraries may still know its handle, so it is kept for another session.
    fence
        ``fence(handle)`` lets the next event stay out of the queue of a copy engine; see `gpustreamlab.backends.cuda._fence`.
    order
        Is told of what orders work, for those who watch accesses.
    free_arena
        Gives back what CuPy's pool keeps for the stream; called before a stream of ours is given back.
    """

    def __init__(
        self,
        core_stream: Any,
        cupy_stream: Any,
        *,
        key: tuple[int, int, int],
        priority: int,
        sm_count: int,
        lender: object,
        free_arena: Callable[[Any], None],
        give_back: Callable[[], object],
        fence: Callable[[int], object],
        order: AccessOrder | None = None,
    ) -> None:
        self.core = core_stream
        self.cupy = cupy_stream
        self.key = key
        self.handle = key[2]
        self.priority = priority
        self.sm_count = sm_count
        self._lender = lender
        self._free_arena = free_arena
        self._give_back = give_back
        self._fence = fence
        self._order = order or AccessOrder()
        self._record = core_stream.record
        self._is_closed = False

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream to an adapter: protocol version 0 and the handle."""
        return (0, self.handle)

    def record_raw(self, event: Any) -> object:
        """Record a timing event of a range."""
        self._fence(self.handle)
        return self._record(event)

    def record(self, event: Any) -> object:
        """Record a `cuda.core.Event` behind the work enqueued so far."""
        try:
            recorded = self._record(event)
        except Exception as error:
            raise map_error(error, f"Recording an event on stream {self.handle:#x}") from error
        self._order.record(self.handle, event)
        return recorded

    def wait(self, event: Any) -> None:
        """Make later work wait for a `cuda.core.Event`."""
        with mapped_errors(f"Making stream {self.handle:#x} wait for an event"):
            self.core.wait(event)
        self._order.wait(self.handle, event)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""
        with mapped_errors(f"Asking stream {self.handle:#x} whether it is done"):
            is_done = bool(self.cupy.done)
        if is_done:
            self._order.host_wait_stream(self.handle)
        return is_done

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    @property
    def is_capturing(self) -> bool:
        """Whether its work is being captured into a CUDA graph."""
        with mapped_errors(f"Asking stream {self.handle:#x} whether it is captured"):
            return bool(self.cupy.is_capturing())

    @property
    def is_idle(self) -> bool:
        """True if nothing of ours runs here any more: it is closed, or all its work has ended. Never raises."""
        try:
            return self._is_closed or bool(self.cupy.done)
        except Exception:  # noqa: BLE001 - a context that is lost runs nothing either
            return True

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        with mapped_errors(f"Waiting for stream {self.handle:#x}"):
            self.core.sync()
        self._order.host_wait_stream(self.handle)

    def close(self) -> None:
        """Give the stream back if it is ours, without the memory that CuPy's pool keeps for it; forget it if it was lent."""
        if self._is_closed:
            return
        self._is_closed = True
        with mapped_errors(f"Closing stream {self.handle:#x}"):
            if self._lender is None:
                self._free_arena(self.cupy)
                self._order.close_stream(self.handle)
                self._give_back()
            else:
                self.core.close()
        self._lender = None
