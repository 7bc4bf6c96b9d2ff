"""What CuPy's pool holds for each stream, with a fake CuPy whose hooks and streams are per thread."""

from __future__ import annotations

import gc
import threading
import types
from collections import deque
from itertools import count

import pytest

from gpustreamlab.backends.cuda._stream import CupySelection
from gpustreamlab.backends.cuda.cupti import _memory
from gpustreamlab.backends.cuda.cupti._memory import RESERVED, USED, PoolWatch
from gpustreamlab.errors import DeviceError

FIRST, SECOND = 0x10, 0x20
KEYS = {FIRST: (1, 13), SECOND: (1, 14)}


class FakeStream:
    def __init__(self, cupy, ptr):
        self.cupy, self.ptr = cupy, ptr

    def __enter__(self):
        self.cupy.stack().append(self)

    def __exit__(self, *error):
        self.cupy.stack().pop()

    def use(self):
        self.cupy.stack()[:] = [self]


class FakeCupy:
    """A pool of blocks that calls the hooks of the current thread, as CuPy does."""

    def __init__(self):
        self.local = threading.local()
        outer = self

        class MemoryHook:
            name = "hook"

            def __enter__(self):
                assert self.name not in outer.hooks(), "CuPy refuses a hook that is there"
                outer.hooks()[self.name] = self
                return self

            def __exit__(self, *error):
                del outer.hooks()[self.name]

        self.streams = {}
        self.device = 0
        runtime = types.SimpleNamespace(getDevice=lambda: self.device)
        self.cuda = types.SimpleNamespace(
            MemoryHook=MemoryHook, Device=None, runtime=runtime, get_current_stream=lambda: self.stack()[-1]
        )

    def stream(self, handle):
        """Return a handle's stream: one object for as long as it is not destroyed."""
        return self.streams.setdefault(handle, FakeStream(self, handle))

    def use(self, handle):
        self.stream(handle).use()

    def stack(self):
        return self.local.__dict__.setdefault("stack", [self.stream(FIRST)])

    def hooks(self):
        return self.local.__dict__.setdefault("hooks", {})

    def malloc(self, address, size, *, device=0, is_new=False):
        facts = {"device_id": 0, "mem_size": size, "mem_ptr": address}  # whatever the device is: so CuPy was seen to do
        self.device = device
        for hook in self.hooks().values():
            if is_new:
                hook.alloc_postprocess(**facts)
            hook.malloc_postprocess(**facts, size=size, pmem_id=1)
        self.device = 0

    def free(self, address, *, device=0):
        for hook in self.hooks().values():
            hook.free_postprocess(device_id=device, mem_size=0, mem_ptr=address, pmem_id=1)


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def watch(cupy):
    watch = PoolWatch(cupy, 0, count(1_000, 10).__next__)
    watch.start(KEYS.__getitem__)
    yield watch
    watch.stop()


def values(watch, name=USED):
    return [(sample.key[1], sample.value_bytes) for sample in watch.take() if sample.name == name]


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_each_stream_has_its_own_sum(cupy, watch):
    cupy.malloc(1, 100)
    cupy.use(SECOND)
    cupy.malloc(2, 50)
    cupy.free(1)  # it goes back to the arena of the stream that it came from
    for ignored in ({"address": 9, "size": 100, "device": 1}, {"address": 0, "size": 0}):
        cupy.malloc(**ignored)
    cupy.free(99)

    assert values(watch) == [(13, 100), (14, 50), (13, 0)]
    assert values(watch) == []


def test_what_the_pool_took_from_the_driver_is_reserved(cupy, watch):
    cupy.malloc(1, 512, is_new=True)
    cupy.free(1)
    samples = watch.take()

    assert [(sample.name, sample.value_bytes) for sample in samples] == [(RESERVED, 512), (USED, 512), (USED, 0)]
    assert [sample.host_ns for sample in samples] == sorted(sample.host_ns for sample in samples)
    # A late word of a release does not take a newer block: the driver gave the same address again before the record came.
    watch.note_new(RESERVED, 1, 300)
    watch.note_gone(RESERVED, 1, at_host_ns=samples[-1].host_ns + 1)
    assert values(watch, RESERVED) == [(13, 0), (13, 300)]
    watch.note_gone(RESERVED, 1)
    assert values(watch, RESERVED) == [(13, 0)]


def test_only_threads_that_were_entered_are_followed(cupy, watch):
    def follow():
        watch.enter()
        watch.enter()
        cupy.malloc(2, 70)
        watch.leave()
        watch.leave()
        cupy.malloc(3, 5)

    in_thread(lambda: cupy.malloc(1, 100))
    in_thread(follow)
    assert values(watch) == [(13, 70)]

    # A free where nobody looks is noticed when the address is used again.
    in_thread(lambda: cupy.free(2))
    cupy.use(SECOND)
    cupy.malloc(2, 30)
    assert values(watch) == [(13, 0), (14, 30)]


def test_nothing_is_followed_after_a_stop_and_every_capture_counts_from_zero(cupy, watch):
    cupy.malloc(1, 100, is_new=True)
    cupy.malloc(2, 70)
    watch.stop()
    assert cupy.hooks() == {}
    cupy.malloc(4, 100)
    cupy.free(1)  # nobody looks
    watch.take()

    watch.start(KEYS.__getitem__)
    cupy.malloc(3, 8, is_new=True)
    cupy.free(2)  # it is of before

    assert [(sample.name, sample.value_bytes) for sample in watch.take()] == [(RESERVED, 8), (USED, 8)]


class CollectingSamples(deque):
    """Runs a garbage collection whenever a sample is kept, with the sums half changed."""

    def __init__(self, collect):
        super().__init__()
        self.collect = collect

    def append(self, sample):
        self.collect()
        super().append(sample)


def test_the_garbage_collector_may_free_arrays_anywhere(cupy, watch):
    """As it does, at any allocation of Python, also in the middle of the watch: deterministic, and no deadlock."""
    waiting = [1, 2]

    def free_one(outer):
        def call(*arguments):
            if waiting:
                cupy.free(waiting.pop())
            return outer(*arguments)

        return call

    cupy.malloc(1, 100)
    cupy.malloc(2, 50)
    watch._key_of, watch._host_time_ns = free_one(watch._key_of), free_one(watch._host_time_ns)
    watch._samples = CollectingSamples(lambda: waiting and cupy.free(waiting.pop()))
    cupy.malloc(3, 7)

    assert values(watch)[-1] == (13, 7)
    assert waiting == []


def test_arrays_in_reference_cycles_are_freed_in_the_middle_of_an_allocation(cupy, watch):
    class Array:
        def __init__(self, address):
            self.address, self.cycle = address, self
            cupy.malloc(address, 512)

        def __del__(self):
            cupy.free(self.address)
            freed.append(self.address)

    freed = []

    def work():
        watch.enter()
        before = gc.get_threshold()
        gc.set_threshold(3)
        try:
            for number in range(1, 500):
                Array(512 * number)
        finally:
            gc.set_threshold(*before)
            while len(freed) < 499:  # a collection that another thread has begun, as xdist's may, keeps this one from running
                gc.collect()
            watch.leave()

    in_thread(work)
    assert values(watch)[-1] == (13, 0)


def test_a_stream_is_asked_for_its_number_once_and_a_new_one_with_its_handle_again(cupy):
    asked, numbers = [], iter([(1, 13), (1, 99)])
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(lambda handle: asked.append(handle) or next(numbers))
    cupy.malloc(1, 100)
    cupy.malloc(3, 100)
    cupy.streams.clear()
    cupy.use(FIRST)
    cupy.malloc(2, 30)
    cupy.free(1)
    watch.stop()

    assert asked == [FIRST, FIRST]
    assert values(watch) == [(13, 100), (13, 200), (99, 30), (13, 100)]


def test_streams_that_hold_nothing_are_forgotten(cupy):
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(lambda handle: (1, handle))
    for handle in range(200):
        cupy.use(handle)
        cupy.malloc(1, 100)
        cupy.free(1)
    watch.stop()

    assert len(watch.take()) == 400
    assert sum(len(held) for held in watch._held.values()) == 0


@pytest.mark.parametrize("error", [DeviceError("unknown stream"), MemoryError()])
def test_what_fails_in_a_hook_does_not_fail_the_allocation(cupy, error):
    def refuse(handle):
        raise error

    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(refuse)
    cupy.malloc(1, 100, is_new=True)
    cupy.free(1)
    watch.stop()

    assert watch.take() == []


def test_memory_for_samples_and_blocks_is_bounded(cupy, monkeypatch):
    monkeypatch.setattr(_memory, "KEPT_SAMPLES", 4)
    monkeypatch.setattr(_memory, "FOLLOWED_BLOCKS", 10)
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(KEYS.__getitem__)
    for address in range(1, 100):
        cupy.malloc(address, 1)
    watch.stop()

    assert values(watch) == [(13, value) for value in (7, 8, 9, 10)]


def test_the_hook_of_another_thread_goes_with_its_next_selection(cupy):
    selection, lane = CupySelection(cupy, 0), types.SimpleNamespace(cupy=cupy.stream(SECOND))
    turns, done = [threading.Event(), threading.Event()], threading.Semaphore(0)
    hooks = []

    def work():
        for turn in turns:
            assert turn.wait(60)
            selection.restore(selection.select(lane))
            hooks.append((len(cupy.hooks()), cupy.stack()[-1].ptr))
            done.release()

    thread = threading.Thread(target=work)
    thread.start()
    selection.watch.start(KEYS.__getitem__)
    turns[0].set()
    assert done.acquire(timeout=60)
    selection.watch.stop()
    turns[1].set()
    thread.join(60)

    assert hooks == [(1, FIRST), (0, FIRST)]
    assert cupy.hooks() == {}
