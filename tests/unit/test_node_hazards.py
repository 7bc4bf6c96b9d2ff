"""Hazards between the cards of a node, on simulated cards: each is found, and no correct program is accused."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab import Node
from gpustreamlab.analysis import LaneClock, Piece
from gpustreamlab.backends.cuda._tracked import Tracker
from gpustreamlab.draw import Drawn, hazard_entries
from tests.helpers.long_runs import count
from tests.helpers.node_hazard_cases import CASES, LAST_WAITS, RAW, SIZE, UAF, by_copy, by_kernel, overwrite, produce, take
from tests.helpers.node_programs import NodePrograms, RealAddresses, SimulatedPools, differences
from tests.helpers.traces import data_order
from tests.helpers.tracked_numpy import TrackedNumpyBackend, memory_of, numpy_library

CHUNK = 100


@pytest.fixture
def node():
    with Node(backend="sim") as node:
        node.stream("first")
        node.stream("last", device=1)
        yield node


@pytest.fixture
def tracked_node(monkeypatch):
    """A function that opens a node whose arrays are followed as CuPy's are."""

    def open_backends(_backend, devices):
        first = TrackedNumpyBackend()
        return [first, *(TrackedNumpyBackend(beside=first) for _ in devices[1:])]

    monkeypatch.setattr("gpustreamlab.node.open_node", open_backends)
    return lambda **options: Node([0, 1], **options)


def run_many(node, seeds, **options):
    programs, steps, between = NodePrograms(node, **options), 0, 0
    for seed in seeds:
        found, met = programs.run(seed)
        wrong = differences(found, met)
        assert not wrong, f"seed {seed}: {wrong}"
        assert not found.let_go_count
        steps += len(met)
        between += sum(row.first.device != row.second.device for row in found.hazards)
    return steps, between


@pytest.mark.parametrize("first", range(0, count(200, 2_000), CHUNK))
def test_random_programs_have_exactly_the_hazards_that_no_path_orders(first):
    with Node([0, 1, 2][: 2 + first // CHUNK % 2], backend="sim", capture="ranges") as node:
        steps, between = run_many(node, range(first, first + CHUNK), has_peer_kernels=False, memory=SimulatedPools())
    assert steps > CHUNK
    assert between > CHUNK


@pytest.mark.parametrize("first", range(0, count(100, 1_000), CHUNK))
def test_random_programs_with_kernels_that_read_and_write_other_cards(tracked_node, first):
    with tracked_node(capture="ranges") as node:
        steps, between = run_many(node, range(first, first + CHUNK), has_peer_kernels=True, memory=RealAddresses())
    assert steps > CHUNK
    assert between > CHUNK


def check_case(node, name, use):
    """Run a program of the table, and compare what is found."""
    node.stream("first")
    node.stream("last", device=1)
    case = CASES[name]
    kept = case.run(node, use)
    found = node.hazards()
    assert [row.kind.value for row in found.hazards] == list(case.found), str(found)
    assert not case.found or found.hazards[0].fix == case.missing
    del kept


@pytest.mark.parametrize("name", CASES)
def test_a_copy_from_another_card_has_the_hazards_that_were_planted(node, name):
    check_case(node, name, by_copy)


@pytest.mark.parametrize("use", [by_copy, by_kernel])
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("freed_while")])  # malloc gives what it likes
def test_tracked_arrays_of_two_cards_have_the_hazards_that_were_planted(tracked_node, name, use):
    with tracked_node() as node:
        check_case(node, name, use)


@pytest.mark.parametrize("name", CASES)
def test_waits_that_are_put_in_order_two_cards(name):
    with Node(backend="sim", hazards="wait") as node:
        node.stream("first")
        node.stream("last", device=1)
        kept = CASES[name].run(node, by_copy)
        found = node.hazards()
        node.synchronize()
    assert not found, str(found)
    assert bool(found.wait_count) is (CASES[name].found not in {(), (UAF,)})  # memory that crosses is kept instead
    del kept


def test_a_row_names_the_cards_and_has_a_line_to_type(node):
    CASES["taken_without_a_wait"].run(node, by_copy)
    told = " ".join(str(node.hazards()).split())
    assert "read-after-write: put this line before 'take' (copy from another GPU)" in told
    assert "first first (GPU 0): 'produce' (ones); then, unordered, last (GPU 1): 'take' (copy from another GPU)" in told
    exec(node.hazards().hazards[0].fix, {"node": node})
    assert [side.device for side in (node.hazards().hazards[0].first, node.hazards().hazards[0].second)] == [0, 1]


def test_the_default_streams_of_two_cards_are_two(node):
    x = node[0].xp.ones(8)
    y = node[1].xp.array(x)
    row = node.hazards().hazards[0]
    assert (row.first.stream, row.first.device, row.second.stream, row.second.device) == ("no stream", 0, "no stream", 1)
    assert (row.fix, row.where) == ("node.synchronize()", "after ones (no stream selected), or select a stream for that too")
    del y


def test_each_card_tells_of_what_its_streams_have_part_in(node):
    x = produce(node)
    y = take(node, x, by_copy)
    node.stream("other")
    with node.on("other", "read"):
        x.sum()
    kinds = [[(row.first.stream, row.second.stream) for row in told.memory.hazards().hazards] for told in node]
    assert kinds == [[("first", "last"), ("first", "other")], [("first", "last")]]
    assert len(node.hazards()) == 2
    node[1].clear()
    assert len(node.hazards()) == 1
    node.clear()
    assert not node.hazards()
    assert node.hazards().access_count == 0
    del y


def test_the_trace_has_a_sign_in_both_ranges(node):
    CASES["taken_without_a_wait"].run(node, by_copy)
    node.synchronize()
    trace = node.trace
    ranges = trace.where(kind="range")
    starts = {ranges.lanes[lane].name: int(start) for lane, start in zip(ranges.lane, ranges.start_ns, strict=True)}
    assert {note.stream: note.time_ns for note in trace.notes} == starts
    assert len({(note.text, note.fix) for note in trace.notes}) == 1
    assert trace.notes[0].fix == f"Put {LAST_WAITS} before 'take' (copy from another GPU)."
    (entry,) = hazard_entries(Drawn(trace, 0, trace.extra["number"]))
    assert entry["head"] == "A missing wait: last does not wait for first"
    assert [(trace.lanes[piece["late"][0]].name, piece["late"][1]) for piece in entry["pieces"]] == [*starts.items()]
    assert [[note.stream for note in told.trace.notes] for told in node] == [["first"], ["last"]]
    assert data_order(trace) == [("first", "last")]


def test_page_locked_memory_that_two_cards_use_is_one(node):
    buffer = node[0].memory.pinned_empty(SIZE)
    x = produce(node)
    with node.on("first", "download"):
        x.get(out=buffer, blocking=False)
    with node.on("last", "upload"):
        y = node[1].xp.asarray(buffer)
    row = node.hazards().hazards[0]
    assert (row.kind.value, row.first.range, row.second.range, row.fix) == (RAW, "download", "upload", LAST_WAITS)
    del y


def test_scratch_of_another_card_is_followed_until_its_end(node):
    with node.on("first", "fill"), node.streams["first"].scratch(4_096) as work:
        x = work.array(512, "f8")
        x.fill(1)
    node.streams["last"].wait(node.streams["first"])
    take(node, x, by_copy)
    row = node.hazards().hazards[0]
    assert (row.kind.value, row.first.stream, row.second.stream) == (UAF, "first", "last")
    assert row.fix == "work = node.stream('first').scratch(4096)"


def test_a_graph_that_copies_from_another_card_is_told_of_at_each_launch(node):
    x = produce(node)
    node.synchronize()
    backend, place = node[1].recording.backend, node.streams["last"]._backend_stream
    capture = backend.begin_graph(place)
    y = take(node, x, by_copy)
    graph = capture.instantiate()
    overwrite(node, x)
    assert not node.hazards()
    graph.launch(place)
    row = node.hazards().hazards[0]
    assert (row.kind.value, row.first.range, row.second.stream) == (RAW, "next", "last")
    del y


def test_work_on_another_card_than_that_of_the_selected_stream_is_that_cards(tracked_node):
    with tracked_node() as node:
        node.stream("first")
        last = node.stream("last", device=1)
        x = produce(node)
        with node.on("last", "read back"):
            y = node[1].xp.add(x, x)  # the current card works, whosever the array is
        assert [(row.second.stream, row.second.device) for row in node.hazards().hazards] == [("last", 1)]
        last.synchronize()
        assert y.tolist() == [2.0] * SIZE


def test_a_call_that_works_beside_its_array_is_noted_on_that_card():
    # GIVEN arrays of two cards, of which the first has stream 7 selected, and the second, the current one, stream 9
    sinks, owner = [Told(), Told()], {}

    def memory_of_card(array):
        memory = memory_of(array)
        return memory._replace(device=owner.get(id(memory.owner), 1))

    tracker = Tracker(
        dataclasses.replace(numpy_library(lambda device: (0, 7) if device == 0 else (1, 9)), memory_of=memory_of_card)
    )
    for device, sink in enumerate(sinks):
        tracker.watch(device, sink)
    here, there = np.ones(4), np.ones(4)
    owner[id(here)] = 0
    x, y = tracker.track(here), tracker.track(there)
    # WHEN
    x.tolist()
    y + x
    tracker.call("get", lambda array, *, stream, blocking: None, (y,), {"stream": SimpleNamespace(ptr=5), "blocking": False})
    # THEN
    assert [sink.told for sink in sinks] == [
        [("allocate", 7), ("tolist", 7), ("host", 7), ("get", 5)],
        [("beside",), ("allocate", 9), ("add", 9), ("allocate", 9), ("add", 9)],
    ]


class Told:
    """A sink that writes down on which stream it is told of what."""

    def __init__(self):
        self.told, self.lock, self.pending = [], threading.RLock(), []

    def stand_beside(self, other):
        self.told.append(("beside",))

    @staticmethod
    def has_stream(handle):
        return handle == 5

    def allocate(self, handle, start, end, shape, dtype):
        self.told.append(("allocate", handle))
        return Piece(0, start, end, shape, dtype, LaneClock(handle))

    def free(self, piece):
        pass

    def work(self, handle, work, reads, writes):
        self.told.append((work, handle))

    def host_wait_stream(self, handle):
        self.told.append(("host", handle))
