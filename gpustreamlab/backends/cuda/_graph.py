"""CUDA graphs: what streams capture, and how it runs again."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from gpustreamlab.backends._features import explain_unjoined, refuse_capture
from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.backends.cuda._idle import keep_for_good
from gpustreamlab.backends.cuda._libcuda import map_error, mapped_errors
from gpustreamlab.backends.cuda._stream import CudaStream
from gpustreamlab.errors import GraphCaptureError, InvalidHandleError


class GraphParts(NamedTuple):
    """What graphs of one device stand on."""

    cupy: Any
    ordinal: int  # The CUDA device number
    scope: Callable[[], AbstractContextManager[None]]  # Makes the device current
    create_event: Callable[[], Any]  # Makes an event that has no time
    find_id: Callable[[int, int], int]
    """``find_id(handle, node_count)`` returns as what CUPTI knows an executable graph; 0 where it is not loaded."""
    tell: Callable[[int, list[Any]], object]
    """``tell(stream_handle, accesses)`` tells who watches accesses of those of a launch."""


class CudaGraphs:
    """The graphs of one backend, and what is being captured."""

    def __init__(self, parts: GraphParts) -> None:
        self._parts = parts
        self.captures: dict[int, CudaCapture] = {}  # By the driver's id of each capture
        self.streams: WeakValueDictionary[int, CudaStream] = WeakValueDictionary()
        """Streams of the backend by their `id`, some of which may have joined a capture."""
        self._left: list[tuple[Any, object]] = []

    def begin(self, stream: CudaStream) -> CudaCapture:
        """Let a stream capture from now on."""
        self.sweep()
        if stream.is_capturing:
            raise refuse_capture("A capture inside another", "End the first one before.")
        return CudaCapture(self, self._parts, stream)

    def find(self, stream: BackendStream) -> CudaCapture | None:
        """Return the capture of this backend that a stream is part of."""
        if not self.captures:
            return None
        info = ask_capture(stream.handle)
        return None if info is None else self.captures.get(info.number)

    def find_accesses(self, handle: int) -> list[Any] | None:
        """Return what takes the accesses of a stream that captures; None where its work runs."""
        info = ask_capture(handle) if self.captures and handle else None
        capture = None if info is None else self.captures.get(info.number)
        return None if capture is None else capture.accesses

    def find_unjoined(self, capture: int, first: CudaStream) -> list[int]:
        """Return the handles of the streams of a capture behind whose work the first one does not come."""
        origin = ask_capture(first.handle)
        joined = set() if origin is None else {int(node) for node in origin.behind}
        unjoined = []
        streams = [known() for known in self.streams.valuerefs()]  # other threads make some meanwhile
        for stream in filter(None, streams):
            info = None if stream is first or stream.is_closed else ask_capture(stream.handle)
            if (
                info is not None
                and info.number == capture
                and any(int(node) not in joined and _is_leaf(node) for node in info.behind)
            ):
                unjoined.append(stream.handle)
        return sorted(unjoined)

    def leave(self, event: Any, things: object) -> None:
        """Keep what a closed graph needs until its last launch has ended."""
        self._left.append((event, things))
        self.sweep()

    def sweep(self) -> None:
        """Let go of what closed graphs needed, where their last launches have ended."""
        done = [pair for pair in self._left if _has_happened(pair[0])]
        self._left = [pair for pair in self._left if pair not in done]

    def close(self) -> None:
        """End all captures. Idempotent."""
        for capture in [*self.captures.values()]:
            capture.abandon()
        self._left.clear()


class TorchPool:
    """One of torch's memory pools, for as long as a graph has it."""

    def __init__(self, torch_pool: Any) -> None:
        self.torch_pool = torch_pool


_torch_pools: dict[int, list[tuple[Any, weakref.ref[TorchPool]]]] = {}
"""By device, torch's pools, and who has each. One that is destroyed while anybody captures ends the process (torch 2.11), and
nobody tells when that is so. None is destroyed, therefore; the next graph takes one that no graph has any more."""
keep_for_good(_torch_pools)


def borrow_torch_pool(torch: Any, ordinal: int) -> TorchPool:
    """Return a pool that no graph has, and that goes back when what is returned is dropped."""
    pools = _torch_pools.setdefault(ordinal, [])
    found = next((place for place, (_, holder) in enumerate(pools) if holder() is None), len(pools))
    torch_pool = pools[found][0] if found < len(pools) else torch.cuda.MemPool()
    borrowed = TorchPool(torch_pool)
    pools[found:] = [(torch_pool, weakref.ref(borrowed)), *pools[found + 1 :]]
    return borrowed


class CaptureInfo(NamedTuple):
    """What the driver says of a stream that captures."""

    number: int  # The driver's id of the capture; equal for all streams of it
    graph: Any  # The ``CUgraph`` so far
    behind: Iterable[Any]  # The nodes behind which the stream's next work comes


def ask_capture(handle: int) -> CaptureInfo | None:
    """Return what a stream captures into; None where it does not capture, or an error has ended that."""
    from cuda.bindings import driver

    status, state, number, graph, behind, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(handle))
    _check(status, f"Asking what stream {handle:#x} captures")
    if state != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        return None
    return CaptureInfo(int(number), graph, behind or ())


class CudaCapture:
    """What one stream, and those that join it, capture; see `gpustreamlab.backends.GraphCapture`.

    Arrays that CuPy and torch allocate in this thread until the end are of pools of the graph's own: nobody else is given
    their memory, for as long as the graph is there.
    """

    def __init__(self, house: CudaGraphs, parts: GraphParts, stream: CudaStream) -> None:
        from cuda.bindings import driver

        self._house, self._parts, self._stream = house, parts, stream
        self.keep: list[object] = []  # What lives as long as the graph
        self.accesses: list[Any] = []  # Of tracked arrays, in order: told again at each launch
        self.is_over = False  # Whether the capture has ended
        with parts.scope():
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            (status,) = driver.cuStreamBeginCapture(driver.CUstream(stream.handle), mode)
            _check(status, f"Capturing stream {stream.handle:#x}")
        info = ask_capture(stream.handle)
        if info is None:
            raise GraphCaptureError(f"Stream {stream.handle:#x} does not capture, although the driver was asked to.")
        self._number, self._graph = info.number, info.graph
        house.captures[self._number] = self
        self._pools = ExitStack()
        try:
            self._take_pools()
        except BaseException:
            self.abandon()
            raise

    def __repr__(self) -> str:
        return f"<CudaCapture on stream {self._stream.handle:#x}, {'ended' if self.is_over else 'capturing'}>"

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that were captured so far."""
        if self.is_over or ask_capture(self._stream.handle) is None:  # the driver destroys the graph of a broken capture
            raise GraphCaptureError(
                "This capture has ended, or a call that cannot be captured has broken it. Begin another: "
                "backend.begin_graph(stream)."
            )
        return _count_nodes(self._graph)

    def instantiate(self) -> CudaGraph:
        """End the capture, and return what runs it again."""
        from cuda.bindings import driver

        graph = self._end()
        try:
            with self._parts.scope():
                status, made = driver.cuGraphInstantiate(graph, 0)
                _check(status, "Making an executable graph")
            return CudaGraph(self._house, self._parts, made, _count_nodes(graph), self)
        finally:
            driver.cuGraphDestroy(graph)

    def abandon(self) -> None:
        """End the capture without a graph. Idempotent."""
        from cuda.bindings import driver

        if not self.is_over:
            status, graph = self._finish()
            if status == driver.CUresult.CUDA_SUCCESS and int(graph):
                driver.cuGraphDestroy(graph)
            self.keep.clear()  # nothing of it runs

    def _take_pools(self) -> None:
        cupy, torch = self._parts.cupy, sys.modules.get("torch")
        pool = cupy.cuda.MemoryPool()
        self.keep.append(pool)
        self._pools.enter_context(cupy.cuda.using_allocator(pool.malloc))
        if torch is not None and hasattr(torch.cuda, "use_mem_pool") and torch.cuda.is_initialized():
            pool = borrow_torch_pool(torch, self._parts.ordinal)
            self.keep.append(pool)
            self._pools.enter_context(torch.cuda.use_mem_pool(pool.torch_pool, device=self._parts.ordinal))

    def _end(self) -> Any:
        """End the capture, and return the ``CUgraph``."""
        from cuda.bindings import driver

        if self.is_over:
            raise GraphCaptureError("This capture has ended before. Begin another: backend.begin_graph(stream).")
        unjoined = self._house.find_unjoined(self._number, self._stream)
        status, graph = self._finish()
        if status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
            raise explain_unjoined(self._stream.handle, unjoined)
        _check(status, f"Ending the capture of stream {self._stream.handle:#x}")
        return graph

    def _finish(self) -> tuple[Any, Any]:
        from cuda.bindings import driver

        self.is_over = True
        self._house.captures.pop(self._number, None)
        try:
            with self._parts.scope():
                status, graph = driver.cuStreamEndCapture(driver.CUstream(self._stream.handle))
        finally:
            self._pools.close()
        return status, graph


class CudaGraph:
    """An executable graph; see `gpustreamlab.backends.BackendGraph`. Made by `CudaCapture.instantiate`."""

    def __init__(self, house: CudaGraphs, parts: GraphParts, executable: Any, node_count: int, capture: CudaCapture) -> None:
        self._house, self._parts = house, parts
        self.executable = executable  # The ``CUgraphExec``
        self.node_count = node_count  # Its kernels, copies and fills
        self.is_closed = False  # Whether `close` was called
        self._address = int(executable)
        self._launch = parts.cupy.cuda.runtime.graphLaunch
        self._id = parts.find_id(self._address, node_count)  # at once: CUPTI stays in a process that has graphs
        self._event: Any = None
        self._keep, capture.keep = capture.keep, []
        self._accesses = capture.accesses

    def __repr__(self) -> str:
        return f"<CudaGraph {self._address:#x}, {self.node_count} nodes{', closed' if self.is_closed else ''}>"

    @property
    def id(self) -> int:
        """As `WorkDetail.graph` of its kernels says it; 0 where CUPTI is not loaded."""
        if not (self._id or self.is_closed):
            self._id = self._parts.find_id(self._address, self.node_count)
        return self._id

    def launch(self, stream: BackendStream) -> None:
        """Run its work behind what a stream holds now; the stream's later work comes behind all of it."""
        if self.is_closed:
            raise InvalidHandleError("This graph was closed before this call. Capture its work anew.")
        if not isinstance(stream, CudaStream):
            raise InvalidHandleError(f"A CUDA graph cannot run on {stream!r}. Use a stream of its session.")
        if self._house.captures and stream.is_capturing:
            raise GraphCaptureError("Launching a graph cannot be captured into another one. Launch it after the capture.")
        if self._event is None:
            self._event = self._parts.create_event()
        if self._accesses:
            self._parts.tell(stream.handle, self._accesses)
        try:
            self._launch(self._address, stream.handle)
            stream.core.record(self._event)
        except Exception as error:
            raise map_error(error, f"Launching a graph of {self.node_count} nodes on stream {stream.handle:#x}") from error

    def close(self) -> None:
        """Let go of the graph, and of what it keeps as soon as no launch is in flight. Idempotent."""
        from cuda.bindings import driver

        if self.is_closed:
            return
        self.is_closed = True
        # The driver frees one that runs when it has ended. Source: CUDA driver API, cuGraphExecDestroy.
        with mapped_errors("Destroying a graph"), self._parts.scope():
            (status,) = driver.cuGraphExecDestroy(self.executable)
            _check(status, "Destroying a graph")
        self._house.leave(self._event, self._keep)
        self._keep, self._accesses = [], []


def _check(status: Any, doing: str) -> None:
    from cuda.bindings import driver

    if status != driver.CUresult.CUDA_SUCCESS:
        raise map_error(RuntimeError(status.name), doing)


def _has_happened(event: Any) -> bool:
    with contextlib.suppress(Exception):  # a device that has failed runs nothing either
        return event is None or bool(event.is_done)
    return True


def _is_leaf(node: Any) -> bool:
    """Tell whether no other node comes behind a node."""
    from cuda.bindings import driver

    status, *_, count = driver.cuGraphNodeGetDependentNodes(node)
    _check(status, "Asking what comes behind a node")
    return int(count) == 0


def _count_nodes(graph: Any) -> int:
    """Return how many kernels, copies and fills a ``CUgraph`` has."""
    from cuda.bindings import driver

    kinds = driver.CUgraphNodeType
    counted = {kinds.CU_GRAPH_NODE_TYPE_KERNEL, kinds.CU_GRAPH_NODE_TYPE_MEMCPY, kinds.CU_GRAPH_NODE_TYPE_MEMSET}
    status, _, count = driver.cuGraphGetNodes(graph)
    _check(status, "Counting the nodes of a graph")
    if not count:
        return 0
    status, nodes, count = driver.cuGraphGetNodes(graph, count)
    _check(status, "Counting the nodes of a graph")
    return sum(driver.cuGraphNodeGetType(node)[1] in counted for node in nodes[: int(count)])
