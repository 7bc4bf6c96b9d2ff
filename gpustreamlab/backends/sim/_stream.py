"""Streams, green contexts and CUDA graphs of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.backends._features import explain_unjoined, refuse_capture
from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.backends.sim._driver import SimDriver, closed_stream
from gpustreamlab.backends.sim._memory import owner_of
from gpustreamlab.errors import GraphCaptureError, InvalidHandleError
from gpustreamlab.schedule._commands import CopyRun, CopySpec, KernelSpec, Mark, SimEvent, StreamQueue, Wait

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._source import Collecting


class SimStream:
    """A stream of the simulated device; see `gpustreamlab.backends._protocol.BackendStream`."""

    __slots__ = ("_is_owned", "driver", "is_closed", "key", "priority", "queue")
    is_blocking = False
    """No stream of the simulated device and the default stream wait for each other."""

    def __init__(self, driver: SimDriver, queue: StreamQueue, *, is_owned: bool) -> None:
        self._is_owned = is_owned
        self.driver = driver
        """The driver of the device that it is on."""
        self.queue = queue
        """The stream inside the simulation."""
        self.key = (driver.ordinal, queue.context, queue.number)
        """Device ordinal, context number, handle."""
        self.priority = queue.level + driver.preset.priority_range[1]
        """CUDA priority: lower runs first."""
        self.is_closed = False
        """Whether `close` was called."""

    def __repr__(self) -> str:
        return f"<SimStream {self.handle}{', closed' if self.is_closed else ''}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream to other parts of the simulated device; no real driver knows the handle."""
        return 0, self.handle

    @property
    def handle(self) -> int:
        """The stream's number, 3 or more."""
        return self.queue.number

    @property
    def sm_count(self) -> int:
        """How many SMs its kernels may run on."""
        return self.queue.sm_count

    def check_open(self) -> None:
        """Raise if the stream was closed."""
        if self.is_closed:
            raise closed_stream(self.queue)

    @property
    def is_capturing(self) -> bool:
        """Whether its work is being captured into a CUDA graph."""
        return self.queue in self.driver.captures

    def record(self, event: SimEvent) -> None:
        """Record the event behind the work enqueued so far."""
        self.check_open()
        self.driver.record(self.queue, event)

    def record_raw(self, event: SimEvent) -> None:
        """Do what `record` does, for a range: nobody waits for it. There are no errors of a driver's to map."""
        self.check_open()
        self.driver.record(self.queue, event, is_noted=False)

    def wait(self, event: SimEvent) -> None:
        """Make work enqueued from now on wait for the event."""
        self.check_open()
        self.driver.wait(self.queue, event)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""
        self.check_open()
        return self.driver.is_stream_idle(self.queue)

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        self.check_open()
        self.driver.synchronize_stream(self.queue)

    def close(self) -> None:
        """Destroy the stream, or forget it if it was lent. Work that it holds still runs. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            if self._is_owned:
                self.driver.destroy_stream(self.queue)


class SimContext:
    """A green context of the simulated device; see `gpustreamlab.backends._protocol.BackendContext`."""

    def __init__(self, driver: SimDriver, sm_ids: frozenset[int]) -> None:
        self._driver = driver
        self._sm_ids = sm_ids
        self._streams: list[SimStream] = []
        self.number = driver.create_context(len(sm_ids))
        """Number of the context, from 1."""
        self.sm_count = len(sm_ids)
        """How many SMs it has."""
        self.is_closed = False
        """Whether `close` was called."""

    def __repr__(self) -> str:
        return f"<SimContext {self.number}, {self.sm_count} SMs{', closed' if self.is_closed else ''}>"

    def create_stream(self, *, priority: int = 0) -> SimStream:
        """Make a non-blocking stream whose kernels run on these SMs only."""
        with self._driver.lock:
            if self.is_closed:
                self._driver.check_open()
                raise InvalidHandleError(
                    f"Context {self.number} of the simulated device was closed before this call. Share the SMs out "
                    "anew: lab.partition(name=32).",
                    driver_code="CONTEXT_IS_DESTROYED",
                )
            queue = self._driver.create_stream(priority, self._sm_ids, context=self.number)
            stream = SimStream(self._driver, queue, is_owned=True)
            self._streams = [other for other in self._streams if not other.is_closed]
            self._streams.append(stream)
            return stream

    def close(self) -> None:
        """Destroy the context and its streams. Work that they hold still runs. Idempotent."""
        with self._driver.lock:
            if not self.is_closed:
                self.is_closed = True
                for stream in self._streams:
                    stream.close()
                self._streams.clear()
                self._driver.destroy_context()


class NodeWork(NamedTuple):
    """What a node computes, and which memory it touches."""

    name: str
    """What the work is called where accesses are watched."""
    again: Callable[[], object] | None
    """Computes the values anew, into the memory that they have; None for work without values."""
    reads: Sequence[NDArray[Any]]
    writes: Sequence[NDArray[Any]]
    some: NDArray[Any] | None
    """Of this array only some elements are meant, and it is not known which."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A kernel, copy or fill of a graph."""

    stream: StreamQueue
    """On which it was captured: its SMs and its priority stay the node's."""
    spec: KernelSpec | CopySpec
    ahead: frozenset[int]
    """Numbers of the nodes that end before it begins."""
    work: NodeWork | None


class SimCapture:
    """What one stream, and those that join it, capture; see `gpustreamlab.backends.GraphCapture`."""

    def __init__(self, driver: SimDriver, origin: StreamQueue) -> None:
        self._driver = driver
        self._origin = origin
        self._nodes: list[Node] = []
        self._tails: dict[StreamQueue, frozenset[int]] = {}
        self._failure = ""
        self._aside: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}  # Memory, and what captured work has computed for it
        self.is_over = False
        """Whether the capture has ended."""
        self.keep: list[object] = []
        """What lives as long as the graph."""
        self.join(origin, frozenset())

    def __repr__(self) -> str:
        return f"<SimCapture of {self.node_count} nodes, {'ended' if self.is_over else 'capturing'}>"

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that were captured so far."""
        return len(self._nodes)

    # What the driver tells, with its lock held

    def add(self, stream: StreamQueue, spec: KernelSpec | CopySpec, work: NodeWork | None) -> None:
        """Take work of a stream that captures."""
        self._nodes.append(Node(stream, spec, self._tails[stream], work))
        self._tails[stream] = frozenset((len(self._nodes) - 1,))

    def tails(self, stream: StreamQueue) -> frozenset[int]:
        """Return the nodes behind which the stream's next work comes."""
        return self._tails[stream]

    def join(self, stream: StreamQueue, behind: frozenset[int]) -> None:
        """Let a stream's next work come behind nodes too; it captures from now on."""
        self._driver.captures[stream] = self
        self._tails[stream] = self._tails.get(stream, frozenset()) | behind

    @contextmanager
    def computing(self, given: Iterable[NDArray[Any]]) -> Iterator[None]:
        """Let NumPy compute captured work on values of its own: memory holds what it held, as CUDA runs nothing meanwhile."""
        owners = {id(owner): owner for owner in map(owner_of, given) if owner.flags.writeable}
        self._exchange(owners)
        try:
            yield
        finally:
            self._exchange(owners)

    def _exchange(self, owners: Mapping[int, NDArray[Any]]) -> None:
        for key, owner in owners.items():
            held = owner.copy()
            owner[...] = self._aside.get(key, (owner, held))[1]
            self._aside[key] = owner, held

    def refuse(self, call: str, fix: str) -> GraphCaptureError:
        """Return the error for a call that cannot be captured; there will be no graph, as in CUDA."""
        error = refuse_capture(call, fix)
        self._failure = self._failure or str(error)
        return error

    # The end

    def instantiate(self) -> SimGraph:
        """End the capture, and return what runs it again."""
        with self._driver.lock:
            self._end()
            self._driver.instantiate(self._driver.preset.host.instantiate_ns + self._node_cost_ns)
            return SimGraph(self._driver, self._nodes, self.keep)

    def abandon(self) -> None:
        """End the capture without a graph. Idempotent."""
        with self._driver.lock:
            self.is_over = True
            self._aside.clear()
            for stream in self._tails:
                self._driver.captures.pop(stream, None)

    @property
    def _node_cost_ns(self) -> int:
        return len(self._nodes) * self._driver.preset.host.instantiate_node_ns

    def _end(self) -> None:
        self._driver.check_open()
        if self.is_over:
            raise GraphCaptureError("This capture has ended before. Begin another: backend.begin_graph(stream).")
        self.abandon()
        if self._failure:
            raise GraphCaptureError(f"There is no graph, because a call could not be captured. {self._failure}")
        awaited = frozenset[int]().union(*(node.ahead for node in self._nodes), self._tails[self._origin])
        unjoined = {node.stream.number for number, node in enumerate(self._nodes) if number not in awaited}
        if unjoined:
            raise explain_unjoined(self._origin.number, sorted(unjoined))


class SimGraph:
    """Work that runs again with one call; see `gpustreamlab.backends.BackendGraph`. Made by `SimCapture.instantiate`."""

    def __init__(self, driver: SimDriver, nodes: list[Node], keep: list[object]) -> None:
        self._driver = driver
        self._nodes = nodes
        self._keep = keep
        self.id = driver.take_graph_id()
        """As `WorkDetail.graph` of its kernels says it."""
        self.is_closed = False
        """Whether `close` was called."""
        # One launch ends before the next begins, so each captured stream needs one queue.
        self._queues = {stream: driver.scheduler.add_twin(stream) for stream in dict.fromkeys(node.stream for node in nodes)}
        self._awaited = self._find_awaited()
        self._end: Mark | None = None

    def __repr__(self) -> str:
        return f"<SimGraph {self.id}, {self.node_count} nodes{', closed' if self.is_closed else ''}>"

    @property
    def node_count(self) -> int:
        """Its kernels, copies and fills."""
        return len(self._nodes)

    def launch(self, stream: BackendStream) -> None:
        """Run its work behind what a stream holds now; the stream's later work comes behind all of it."""
        driver = self._driver
        if not isinstance(stream, SimStream) or stream.driver is not driver:
            raise InvalidHandleError(
                f"Graph {self.id} of a simulated device cannot run on {stream!r}. Use a stream of its session."
            )
        stream.check_open()
        own = stream.queue
        with driver.lock:
            self._check_open()
            if own in driver.captures:
                raise driver.captures[own].refuse("Launching a graph", "Launch it after the capture.")
            nodes = self._nodes
        works = [node.work for node in nodes if node.work is not None]
        for work in works:  # in front of the launch: where it lacks a wait, one may be put in
            driver.note_accesses(own, work.name, work.reads, work.writes, work.some)
        with driver.lock, np.errstate(all="ignore"):
            correlation, source = self._enqueue(own)
            if source is not None:
                for number, node in enumerate(self._nodes):
                    if node.work is not None:
                        source.note_accesses(correlation, driver.memory.find_accesses(node.work), number)
            for work in works:
                if work.again is not None:
                    work.again()

    def close(self) -> None:
        """Let go of the graph and of what it keeps; a launch in flight still ends. Idempotent."""
        with self._driver.lock:
            if not self.is_closed:
                self.is_closed = True
                for queue in self._queues.values():
                    self._driver.scheduler.remove_stream(queue)
                self._nodes, self._keep = [], []

    def _check_open(self) -> None:
        self._driver.check_open()
        if self.is_closed:
            raise InvalidHandleError(f"Graph {self.id} was closed before this call. Capture its work anew.")

    def _find_awaited(self) -> frozenset[int]:
        """Return the nodes for which one waits that was captured on another stream."""
        nodes = self._nodes
        return frozenset(number for node in nodes for number in node.ahead if nodes[number].stream is not node.stream)

    def _enqueue(self, stream: StreamQueue) -> tuple[int, Collecting | None]:
        """Put the work into its queues; return the number of the launch, and whom to tell what it touches."""
        driver, submit = self._driver, self._driver.scheduler.submit
        now_ns, correlation, source = driver.enter_graph(stream, self.node_count)
        if self._end is not None:
            submit(stream, Wait(self._end), now_ns)
        begin = Mark()
        submit(stream, begin, now_ns)
        for queue in self._queues.values():
            submit(queue, Wait(begin), now_ns)
        ends: dict[int, Mark] = {}
        for number, node in enumerate(self._nodes):
            queue, spec, place = self._queues[node.stream], node.spec, (self.id, number)
            for ahead in sorted(node.ahead & ends.keys()):
                submit(queue, Wait(ends[ahead]), now_ns)
            if isinstance(spec, CopySpec):
                submit(queue, CopyRun(queue, spec, correlation, source, node=place), now_ns)
            else:
                driver.scheduler.submit_kernel(queue, spec, now_ns, correlation, source, node=place)
            if number in self._awaited:
                ends[number] = Mark()
                submit(queue, ends[number], now_ns)
        for queue in self._queues.values():
            end = Mark()
            submit(queue, end, now_ns)
            submit(stream, Wait(end), now_ns)
        self._end = Mark()
        submit(stream, self._end, now_ns)
        return correlation, source
