"""Tracked arrays, as on CUDA: with NumPy in CuPy's place, and with CuPy's own class as far as it goes without a GPU."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import LaneClock, Piece
from gpustreamlab.backends.cuda._tracked import TrackedModule
from gpustreamlab.typing import HazardKind
from tests.helpers.hazard_cases import CASES
from tests.helpers.tracked_numpy import TrackedNumpyBackend, memory_of, tracked_by

NEEDS_DEVICE_ARRAYS = {
    "read_back_too_early": "NumPy's arrays have no get()",
    "pinned_buffer": "NumPy's arrays have no get()",
    "value_read_back": "an element of a NumPy array is no array",
    "use_after_free": "malloc gives out what it likes",
    "fresh_memory_elsewhere": "malloc gives out what it likes",
}


class Notes:
    """A sink that writes down what it is told."""

    def __init__(self):
        self.lock = threading.RLock()
        self.told, self.pending = [], []
        self.made_count = 0

    def allocate(self, handle, start, end, shape, dtype):
        self.made_count += 1
        return Piece(self.made_count, start, end, shape, dtype, LaneClock(handle))

    def free(self, piece):
        self.told.append(("free", piece.number))

    def work(self, handle, work, reads, writes):
        self.told.append((work, [piece.number for piece, _ in reads], [piece.number for piece, _ in writes]))

    def ended(self, handle, work, piece, lender):
        self.told.append(("ended", work, piece.number, lender.stream.name))

    def host_wait_stream(self, handle):
        self.told.append(("host waits", handle))

    def take(self):
        told, self.told = self.told, []
        return told


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def xp(notes):
    return TrackedModule(np, tracked_by(notes))


@pytest.mark.parametrize("name", [name for name in CASES if name not in NEEDS_DEVICE_ARRAYS])
def test_a_program_has_the_hazards_that_were_planted_and_with_waits_put_in_none(name):
    case = CASES[name]
    with Session(TrackedNumpyBackend(), hazards="report") as lab:
        kept = case.run(lab)
        result = lab.memory.hazards()
    assert sorted(hazard.kind.value for hazard in result.hazards) == sorted(case.found), str(result)
    assert not case.found or case.missing in [hazard.fix for hazard in result.hazards]
    with Session(TrackedNumpyBackend(), hazards="wait") as lab:
        kept = case.run(lab)
        assert {row.kind for row in lab.memory.hazards().hazards} <= {HazardKind.USE_AFTER_FREE}
    del kept


def test_a_copy_that_was_enqueued_before_its_wait_was_put_in_is_made_once_more():
    with Session(TrackedNumpyBackend(), hazards="wait") as lab:
        with lab.on(lab.stream("a")):
            x = lab.xp.ones(8)
        waits = []

        def array(values):  # may be a view, for all that its name tells
            waits.append(lab.memory.hazards().wait_count)
            return np.array(values)

        with lab.on(lab.stream("b")):
            copies = [lab._backend.tracker.call("array", array, (x,), {}) for _ in range(2)]
        assert waits == [0, 1, 1]
        assert [copy.tolist() for copy in copies] == [[1.0] * 8] * 2
        assert not lab.memory.hazards()


CALLS = {
    "an operator reads both and makes a third": (lambda xp, x, y: x + y, [("add", [1, 2], []), ("add", [], [3])]),
    "an operator in place": (lambda xp, x, y: x.__iadd__(y), [("iadd", [1, 2], [1])]),
    "out=": (lambda xp, x, y: xp.add(x, x, out=y), [("add", [1, 1], [2])]),
    "a method": (lambda xp, x, y: x.cumsum(), [("cumsum", [1], []), ("cumsum", [], [3])]),
    "fill writes only": (lambda xp, x, y: x.fill(3), [("fill", [], [1])]),
    "sort reads and writes": (lambda xp, x, y: x.sort(), [("sort", [1], [1])]),
    "setitem reads the value": (lambda xp, x, y: x.__setitem__(slice(2), y[:2]), [("setitem", [2], [1])]),
    "copyto": (lambda xp, x, y: xp.copyto(x, y), [("copyto", [2], [1])]),
    "lists of arrays": (lambda xp, x, y: xp.concatenate([x, y]), [("concatenate", [1, 2], []), ("concatenate", [], [3])]),
    "a keyword": (
        lambda xp, x, y: xp.where(x > 0, x, y),
        [("gt", [1], []), ("gt", [], [3]), ("where", [3, 1, 2], []), ("where", [], [4]), ("free", 3)],
    ),
    "a view reads nothing": (lambda xp, x, y: [x[1:], x.T, x.reshape(2, 2), xp.split(x, 2), x.real, x[None]], []),
    "a reshape that copies": (
        lambda xp, x, y: x[::2].reshape(1, 2).T.copy().size,
        [("copy", [1], []), ("copy", [], [3]), ("free", 3)],
    ),
    "a gather": (lambda xp, x, y: x[[0, 2]], [("getitem", [1], [3])]),
    "metadata": (lambda xp, x, y: (xp.shape(x), xp.result_type(x, y), xp.may_share_memory(x, y), x.dtype, len(x)), []),
    "a value on the host": (lambda xp, x, y: x.item(0), [("item", [1], []), ("host waits", 7)]),
    "text": (lambda xp, x, y: repr(x), [("repr", [1], []), ("host waits", 7)]),
    "a size that the host must know": (
        lambda xp, x, y: xp.nonzero(x),
        [("nonzero", [1], []), ("nonzero", [], [3]), ("host waits", 7)],
    ),
    "NumPy's own ufunc": (lambda xp, x, y: np.subtract(x, y), [("subtract", [1, 2], []), ("subtract", [], [3])]),
    "NumPy's own function": (lambda xp, x, y: np.stack([x, y]), [("stack", [1, 2], []), ("stack", [], [3])]),
    "a ufunc's method": (lambda xp, x, y: xp.add.reduce(x), [("reduce", [1], [])]),
    "a submodule": (lambda xp, x, y: xp.fft.fft(x), [("fft", [1], []), ("fft", [], [3])]),
    "a generator": (lambda xp, x, y: xp.random.default_rng(0).random(3), [("random", [], [3])]),
    "an empty array": (lambda xp, x, y: xp.zeros(0) + 1, []),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_tells_what_it_reads_and_writes_and_gives_what_the_library_gives(xp, notes, name):
    x, y = xp.ones(4), xp.ones(4)
    notes.take()
    call, expected = CALLS[name]
    kept = call(xp, x, y)
    gc.collect()
    xp.zeros(0)
    assert notes.take() == expected
    del kept
    if name != "a generator":
        tracked = call(xp, xp.arange(1.0, 5), xp.arange(2.0, 6))
        np.testing.assert_equal(tracked, call(np, np.arange(1.0, 5), np.arange(2.0, 6)))


def test_arrays_are_the_librarys_own_and_a_subclass(xp):
    x = xp.ones(4)
    assert isinstance(x, np.ndarray)
    assert type(x) is not np.ndarray
    assert {type(part) for part in (x[1:], x + 1, np.exp(x), x.T, xp.split(x, 2)[0], xp.asarray(np.ones(3)))} == {type(x)}
    assert x.__iadd__(1) is x
    assert xp.add(x, 1, out=x) is x


def test_what_is_no_function_is_the_librarys_own(xp):
    assert (xp.float32, xp.pi, xp.ndarray, xp.newaxis, xp.testing) == (np.float32, np.pi, np.ndarray, None, np.testing)
    assert dir(xp) == dir(np)
    assert repr(xp) == "<numpy with tracked arrays>"
    assert xp.add.identity == 0
    assert repr(xp.add) == repr(np.add)
    assert xp.add is xp.add
    assert xp.mean.__name__ == "mean"
    assert xp.mean.__doc__ == np.mean.__doc__
    with pytest.raises(AttributeError, match="no attribute 'ad'"):
        xp.ad  # noqa: B018


def test_memory_is_free_when_its_last_view_goes(xp, notes):
    x = xp.ones(8)
    view = x[2:][1:]
    rows = list(x.reshape(4, 2))
    del x
    xp.zeros(0)
    xp.ones(1)
    assert ("free", 1) not in notes.take()
    del view, rows
    xp.ones(1)
    assert ("free", 1) in notes.take()


def test_arrays_go_on_working_when_nobody_watches_any_more(notes):
    tracker = tracked_by(notes)
    xp = TrackedModule(np, tracker)
    x = xp.ones(4)
    notes.take()
    tracker.leave(0)
    assert (x + xp.ones(4)).tolist() == [2.0] * 4
    assert tracker.find(x) is None
    assert notes.take() == []


def test_what_a_graph_captures_is_told_of_at_each_launch(notes):
    is_captured, captured = False, []
    tracker = tracked_by(notes, lambda handle: captured if is_captured and handle == 7 else None)
    xp = TrackedModule(np, tracker)
    x = xp.ones(4)
    notes.take()
    is_captured = True
    xp.add(x, 1, out=x)
    x + 1
    assert [told for told in notes.take() if told[0] == "add"] == []
    is_captured = False
    for _ in range(2):
        tracker.tell_again(0, 9, captured)
        told = notes.take()
        assert [name for name, *_ in told] == [name for name, *_ in captured]
        assert told[0][1:] == ([1], [1])
    tracker.leave(0)
    tracker.tell_again(0, 9, captured)
    assert notes.take() == []


class Lender:
    """Scratch, as far as tracking knows it."""

    nbytes = 32
    ending = ""

    class stream:  # noqa: N801 - stands for a stream
        name, handle = "a", 9


def test_an_array_in_scratch_is_told_of_once_the_scratch_has_ended(notes):
    lender = Lender()
    lent = np.ones(4)

    def memory_of_lent(array):
        memory = memory_of(array)
        return memory._replace(lender=lender if memory.owner is lent else None)

    tracker = tracked_by(notes, memory_of=memory_of_lent)
    xp = TrackedModule(np, tracker)
    x = tracker.track(lent)
    other = xp.ones(4)
    x.sum()
    assert notes.take() == [("ones", [], [2]), ("sum", [1], [])]
    lender.ending = "given back"
    x[1:].sum()
    other.sum()
    assert notes.take() == [("sum", [1], []), ("ended", "sum", 1, "a"), ("sum", [2], [])]
    assert tracker.find(x)[0].lane.handle == 9


def test_an_error_of_the_library_comes_through(xp):
    with pytest.raises(ValueError, match="could not be broadcast"):
        xp.ones(3) + xp.ones(4)


def test_arrays_made_elsewhere_are_tracked_once_they_pass_through_the_module(xp, notes):
    plain = np.ones(4)
    xp.ones(4) + plain
    notes.take()
    x = xp.asarray(plain)
    assert notes.take()[-1:] != [("asarray", [], [3])]  # nothing was written
    x + 1
    assert ("add", [3], []) in notes.take()
