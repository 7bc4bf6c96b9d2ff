"""CuPy's arenas of streams that are gone, against a stand-in of its pool."""

from collections import OrderedDict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from gpustreamlab.backends.cuda import _memory as _arenas
from gpustreamlab.backends.cuda._memory import KEPT_POINTERS, SWEEP_EVERY, StreamArenas


class Pool:
    def __init__(self):
        self.free = {}

    def free_all_blocks(self, stream):
        self.free.pop(stream.ptr, None)


@pytest.fixture(autouse=True)
def gone(monkeypatch):
    gone = OrderedDict()
    monkeypatch.setattr(_arenas, "_gone", gone)
    return gone


@pytest.fixture
def pool():
    return Pool()


def stream(pointer):
    return SimpleNamespace(ptr=pointer)


def test_memory_that_comes_back_after_the_stream_is_given_back_too(pool):
    arenas = StreamArenas(pool, 0, nullcontext)
    arenas.begin(1)
    pool.free[1] = 10
    arenas.end(stream(1))
    assert not pool.free
    pool.free |= {1: 20, 2: 5}  # of an array that was alive, and of a stream that there is
    StreamArenas(pool, 0, nullcontext).sweep()  # another session
    assert pool.free == {2: 5}


def test_a_stream_with_the_pointer_of_another_keeps_what_it_has(pool):
    arenas = StreamArenas(pool, 0, nullcontext)
    arenas.end(stream(1))
    arenas.begin(1)
    pool.free[1] = 20
    arenas.sweep()
    assert pool.free == {1: 20}


def test_another_device_is_left_alone(pool):
    StreamArenas(pool, 1, nullcontext).end(stream(1))
    pool.free[1] = 20
    StreamArenas(pool, 0, nullcontext).sweep()
    assert pool.free == {1: 20}


def test_a_long_session_sweeps_now_and_then(pool):
    arenas = StreamArenas(pool, 0, nullcontext)
    arenas.end(stream(1))
    pool.free[1] = 20
    for pointer in range(2, SWEEP_EVERY):
        arenas.end(stream(pointer))
    assert pool.free == {1: 20}
    arenas.end(stream(SWEEP_EVERY))
    assert not pool.free


def test_no_more_pointers_are_remembered_than_that(pool, gone):
    arenas = StreamArenas(pool, 0, nullcontext)
    for pointer in range(KEPT_POINTERS + 5):
        arenas.end(stream(pointer))
    assert len(gone) == KEPT_POINTERS
    assert min(pointer for _, pointer in gone) == 5
