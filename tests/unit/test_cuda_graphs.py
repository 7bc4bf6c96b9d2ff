"""What the CUDA backend asks the driver for graphs, with a fake driver that has the bindings' signatures."""

# ruff: noqa: N802 - the driver's own names

from __future__ import annotations

import contextlib
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from gpustreamlab.backends.cuda._graph import CudaGraphs, GraphParts
from gpustreamlab.backends.cuda._stream import AccessOrder, CudaStream
from gpustreamlab.errors import GraphCaptureError, InvalidHandleError


class Result(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904


class State(Enum):
    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2


class Mode(Enum):
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class Kind(Enum):
    CU_GRAPH_NODE_TYPE_KERNEL = 0
    CU_GRAPH_NODE_TYPE_MEMCPY = 1
    CU_GRAPH_NODE_TYPE_MEMSET = 2
    CU_GRAPH_NODE_TYPE_EMPTY = 5


class Driver(ModuleType):
    """Streams by handle: state, capture and the nodes behind which they are; nodes by number: kind, dependent count."""

    CUresult, CUstreamCaptureStatus, CUstreamCaptureMode, CUgraphNodeType, CUstream = Result, State, Mode, Kind, int

    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.streams, self.nodes, self.graphs, self.executables = {}, {}, set(), set()
        self.end = Result.CUDA_SUCCESS

    def capture(self, handle, behind, number=7):
        self.streams[handle] = State.CU_STREAM_CAPTURE_STATUS_ACTIVE, number, behind

    def cuStreamBeginCapture(self, stream, mode):
        assert mode is Mode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.capture(stream, [])
        self.graphs.add(70)
        return (Result.CUDA_SUCCESS,)

    def _of(self, stream):
        return self.streams.get(stream, (State.CU_STREAM_CAPTURE_STATUS_NONE, 0, []))

    def cuStreamIsCapturing(self, stream):
        return Result.CUDA_SUCCESS, self._of(stream)[0]

    def cuStreamGetCaptureInfo(self, stream):
        state, number, behind = self._of(stream)
        return Result.CUDA_SUCCESS, state, number, 70, behind, [], len(behind)

    def cuStreamEndCapture(self, stream):
        self.streams.clear()
        if self.end is not Result.CUDA_SUCCESS:
            self.graphs.clear()
        return self.end, 70 if self.end is Result.CUDA_SUCCESS else 0

    def cuGraphGetNodes(self, graph, count=0):
        assert graph in self.graphs
        return Result.CUDA_SUCCESS, [*self.nodes][:count], len(self.nodes)

    def cuGraphNodeGetType(self, node):
        return Result.CUDA_SUCCESS, self.nodes[node][0]

    def cuGraphNodeGetDependentNodes(self, node):
        return Result.CUDA_SUCCESS, [], [], self.nodes[node][1]

    def cuGraphInstantiate(self, graph, flags):
        self.executables.add(71)
        return Result.CUDA_SUCCESS, 71

    def cuGraphDestroy(self, graph):
        self.graphs.remove(graph)
        return (Result.CUDA_SUCCESS,)

    def cuGraphExecDestroy(self, executable):
        self.executables.remove(executable)
        return (Result.CUDA_SUCCESS,)


@pytest.fixture
def driver(monkeypatch):
    made, bindings = Driver(), ModuleType("cuda.bindings")
    bindings.driver = made
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), ("cuda.bindings.driver", made)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return made


class Lab:
    def __init__(self):
        self.log = []
        self.event = SimpleNamespace(is_done=False)
        cuda = SimpleNamespace(
            MemoryPool=lambda: SimpleNamespace(malloc="pool"),
            using_allocator=lambda allocator: self.logged(allocator),
            runtime=SimpleNamespace(graphLaunch=lambda *given: self.log.append(given)),
        )
        self.graphs = CudaGraphs(
            GraphParts(
                cupy=SimpleNamespace(cuda=cuda),
                ordinal=0,
                scope=contextlib.nullcontext,
                create_event=lambda: self.event,
                find_id=lambda handle, count: handle + count,
                tell=lambda handle, accesses: self.log.append(("accesses", handle, [*accesses])),
            )
        )

    @contextlib.contextmanager
    def logged(self, what):
        self.log.append(f"begin {what}")
        yield
        self.log.append(f"end {what}")

    def stream(self, handle):
        core = SimpleNamespace(record=lambda event: self.log.append("record"))
        made = CudaStream(
            core=core,
            cupy=None,
            key=(0, 0, handle),
            priority=0,
            sm_count=1,
            lender=None,
            free_arena=bool,
            end_scratch=bool,
            give_back=bool,
            fence=bool,
            order=AccessOrder(),
        )
        self.graphs.streams[id(made)] = made
        return made


@pytest.fixture
def lab(driver):
    return Lab()


def test_a_graph_is_captured_launched_and_closed(lab, driver):
    stream = lab.stream(30)
    capture = lab.graphs.begin(stream)
    assert lab.graphs.find(stream) is capture
    assert lab.graphs.find(lab.stream(31)) is None
    kept = object()
    capture.keep.append(kept)
    lab.graphs.find_accesses(30).append("read")
    driver.nodes = {1: (Kind.CU_GRAPH_NODE_TYPE_KERNEL, 1), 2: (Kind.CU_GRAPH_NODE_TYPE_EMPTY, 0)}
    driver.capture(30, [2])
    assert capture.node_count == 1
    graph = capture.instantiate()
    assert (graph.node_count, graph.id, lab.graphs.captures, driver.graphs) == (1, 72, {}, set())
    graph.launch(stream)
    assert lab.log == ["begin pool", "end pool", ("accesses", 30, ["read"]), (71, 30), "record"]
    graph.close()
    graph.close()
    assert not driver.executables
    assert kept in lab.graphs._left[0][1]  # the launch is in flight
    lab.event.is_done = True
    lab.graphs.sweep()
    assert not lab.graphs._left
    with pytest.raises(InvalidHandleError, match="closed before"):
        graph.launch(stream)
    with pytest.raises(GraphCaptureError, match="ended before"):
        capture.instantiate()


def test_streams_that_were_not_joined_are_named(lab, driver):
    first, joined, forgotten, other = (lab.stream(handle) for handle in (30, 31, 32, 33))
    capture = lab.graphs.begin(first)
    kernel = Kind.CU_GRAPH_NODE_TYPE_KERNEL
    driver.nodes = {1: (kernel, 2), 2: (kernel, 0), 3: (kernel, 0), 4: (kernel, 0)}
    driver.capture(30, [2])
    driver.capture(31, [2])
    driver.capture(32, [3])
    driver.capture(33, [4], number=8)
    driver.end = Result.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    with pytest.raises(GraphCaptureError, match="0x20") as caught:
        capture.instantiate()
    assert caught.value.unjoined == (32,)
    assert [stream.is_closed for stream in (joined, forgotten, other)] == [False] * 3


def test_streams_can_be_made_by_other_threads_as_a_capture_ends(lab, driver, monkeypatch):
    made, ask = [], driver.cuStreamGetCaptureInfo
    capture = lab.graphs.begin(lab.stream(30))
    made.append(lab.stream(31))
    monkeypatch.setattr(driver, "cuStreamGetCaptureInfo", lambda stream: (made.append(lab.stream(32)), ask(stream))[1])
    capture.instantiate().close()
    assert len(made) > 1


def test_a_broken_capture_is_told_and_ends(lab, driver):
    stream = lab.stream(30)
    capture = lab.graphs.begin(stream)
    with pytest.raises(GraphCaptureError, match="inside another"):
        lab.graphs.begin(stream)
    driver.streams[30] = State.CU_STREAM_CAPTURE_STATUS_INVALIDATED, 0, []
    driver.end = Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert stream.is_capturing
    with pytest.raises(GraphCaptureError, match="broken"):
        _ = capture.node_count
    with pytest.raises(GraphCaptureError, match="CAPTURE_INVALIDATED"):
        capture.instantiate()
    capture.abandon()
    assert lab.log == ["begin pool", "end pool"]


def test_closing_the_backend_ends_what_is_captured(lab, driver):
    capture = lab.graphs.begin(lab.stream(30))
    lab.graphs.close()
    lab.graphs.close()
    assert capture.is_over
    assert not driver.graphs


def test_torch_gets_a_pool_of_its_own_once_it_has_worked(lab, driver, monkeypatch):
    for is_initialized in (False, True):
        cuda = SimpleNamespace(
            is_initialized=lambda known=is_initialized: known,
            MemPool=lambda: "torch pool",
            use_mem_pool=lambda pool, device: lab.logged(f"{pool} of {device}"),
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        lab.graphs.begin(lab.stream(30)).abandon()
    assert lab.log == ["begin pool", "end pool", "begin pool", "begin torch pool of 0", "end torch pool of 0", "end pool"]
