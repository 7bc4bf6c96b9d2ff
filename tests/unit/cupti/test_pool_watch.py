"""What CuPy's pool holds for each stream, with a fake CuPy whose hooks are per thread."""

from __future__ import annotations

import gc
import threading
import types
from collections import deque

import pytest

from gpustreamlab.backends.cuda.cupti import _memory as _pool_watch
from gpustreamlab.backends.cuda.cupti._memory import RESERVED, USED, PoolWatch
from gpustreamlab.errors import DeviceError

FIRST, SECOND = 0x10, 0x20
KEYS = {FIRST: (1, 13), SECOND: (1, 14)}


class FakeStream:
    def __init__(self, ptr):
        self.ptr = ptr


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
        self.stream = FIRST
        self.cuda = types.SimpleNamespace(MemoryHook=MemoryHook, get_current_stream=lambda: self.current)

    @property
    def stream(self):
        return self.current.ptr

    @stream.setter
    def stream(self, handle):
        """Make a stream current; a handle has one object for as long as it is not destroyed."""
        self.current = self.streams.setdefault(handle, FakeStream(handle))

    def destroy(self, handle):
        del self.streams[handle]

    def hooks(self):
        if not hasattr(self.local, "hooks"):
            self.local.hooks = {}
        return self.local.hooks

    def malloc(self, address, size, *, device=0, is_new=False):
        facts = {"device_id": device, "mem_size": size, "mem_ptr": address}
        for hook in self.hooks().values():
            if is_new:
                hook.alloc_postprocess(**facts)
            hook.malloc_postprocess(**facts, size=size, pmem_id=1)

    def free(self, address, *, device=0):
        for hook in self.hooks().values():
            hook.free_postprocess(device_id=device, mem_size=0, mem_ptr=address, pmem_id=1)


@pytest.fixture
def cupy():
    return FakeCupy()


@pytest.fixture
def watch(cupy):
    ticks = iter(range(1_000, 10**9, 10))
    watch = PoolWatch(cupy, 0, lambda: next(ticks))
    watch.start(KEYS.__getitem__)
    yield watch
    watch.stop()


def values(watch, name=USED):
    return [(sample.key[1], sample.value_bytes) for sample in watch.take() if sample.name == name]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_each_stream_has_its_own_sum(cupy, watch):
    cupy.malloc(1, 100)
    cupy.stream = SECOND
    cupy.malloc(2, 50)
    cupy.free(1)  # it goes back to the arena of the stream that it came from

    assert values(watch) == [(13, 100), (14, 50), (13, 0)]
    assert values(watch) == []


def test_what_the_pool_took_from_the_driver_is_reserved(cupy, watch):
    cupy.malloc(1, 512, is_new=True)
    cupy.free(1)
    samples = watch.take()

    assert [(sample.name, sample.value_bytes) for sample in samples] == [(RESERVED, 512), (USED, 512), (USED, 0)]
    assert [sample.host_ns for sample in samples] == sorted(sample.host_ns for sample in samples)
    watch.note_gone(RESERVED, 1)
    assert values(watch, RESERVED) == [(13, 0)]


def test_only_threads_that_were_entered_are_followed(cupy, watch):
    in_thread(lambda: cupy.malloc(1, 100))
    assert values(watch) == []

    def follow():
        watch.enter()
        watch.enter()
        cupy.malloc(2, 70)
        watch.leave()
        watch.leave()
        cupy.malloc(3, 5)

    in_thread(follow)

    assert values(watch) == [(13, 70)]


def test_a_free_where_nobody_looks_is_noticed_when_the_address_is_used_again(cupy, watch):
    cupy.malloc(1, 100)
    in_thread(lambda: cupy.free(1))
    cupy.stream = SECOND
    cupy.malloc(1, 30)

    assert values(watch) == [(13, 100), (13, 0), (14, 30)]


def test_a_late_word_of_a_release_does_not_take_a_newer_block(watch):
    watch.note_new(RESERVED, 0, 1, 100)
    released_ns = watch.take()[-1].host_ns + 1
    watch.note_new(RESERVED, 0, 1, 300)  # the driver gave the same address again before the record came

    watch.note_gone(RESERVED, 1, at_host_ns=released_ns)

    assert values(watch, RESERVED) == [(13, 0), (13, 300)]


def test_other_devices_and_empty_allocations_are_ignored(cupy, watch):
    cupy.malloc(1, 100, device=1)
    cupy.malloc(0, 0)
    cupy.free(99)

    assert values(watch) == []


def test_nothing_is_followed_after_a_stop(cupy, watch):
    cupy.malloc(1, 100)
    watch.stop()
    assert cupy.hooks() == {}
    cupy.malloc(2, 100)

    watch.start(KEYS.__getitem__)
    cupy.free(1)

    assert values(watch) == [(13, 100)]
    cupy.malloc(3, 8)
    assert values(watch) == [(13, 8)]


def test_every_capture_counts_from_zero(cupy, watch):
    cupy.malloc(1, 100, is_new=True)
    cupy.malloc(2, 70)
    watch.stop()
    cupy.free(1)  # nobody looks
    watch.take()

    watch.start(KEYS.__getitem__)
    cupy.malloc(3, 8, is_new=True)
    cupy.free(2)  # it is of before

    assert [(sample.name, sample.value_bytes) for sample in watch.take()] == [(RESERVED, 8), (USED, 8)]


def test_the_garbage_collector_may_free_arrays_anywhere(cupy, watch):
    """As it does, at any allocation of Python, also in the middle of the watch: deterministic, and no deadlock."""
    key_of, clock = watch._key_of, watch._host_time_ns
    waiting = [1, 2]

    def free_one(outer):
        def call(*arguments):
            if waiting:
                cupy.free(waiting.pop())
            return outer(*arguments)

        return call

    cupy.malloc(1, 100)
    cupy.malloc(2, 50)
    watch._key_of, watch._host_time_ns = free_one(key_of), free_one(clock)
    watch._samples = CollectingSamples(lambda: waiting and cupy.free(waiting.pop()))
    cupy.malloc(3, 7)

    assert values(watch)[-1] == (13, 7)
    assert waiting == []


class CollectingSamples(deque):
    """Runs a garbage collection whenever a sample is kept, with the sums half changed."""

    def __init__(self, collect):
        super().__init__()
        self.collect = collect

    def append(self, sample):
        self.collect()
        super().append(sample)


def test_arrays_in_reference_cycles_are_freed_in_the_middle_of_an_allocation(cupy, watch):
    class Array:
        def __init__(self, address):
            self.address, self.cycle = address, self
            cupy.malloc(address, 512)

        def __del__(self):
            cupy.free(self.address)

    def work():
        watch.enter()
        before = gc.get_threshold()
        gc.set_threshold(3)
        try:
            for number in range(1, 500):
                Array(512 * number)
        finally:
            gc.set_threshold(*before)
            gc.collect()
            watch.leave()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert values(watch)[-1] == (13, 0)


def test_a_handle_that_is_another_streams_now_counts_for_that(cupy):
    keys = {FIRST: (1, 13)}
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(lambda handle: keys[handle])
    cupy.malloc(1, 100)
    cupy.destroy(FIRST)
    keys[FIRST] = (1, 99)
    cupy.stream = FIRST
    cupy.malloc(2, 30)
    cupy.free(1)
    watch.stop()

    assert values(watch) == [(13, 100), (99, 30), (13, 0)]


def test_streams_that_hold_nothing_are_forgotten(cupy):
    numbers = iter(range(10**6))
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(lambda handle: (1, next(numbers)))
    for handle in range(200):
        cupy.stream = handle
        cupy.malloc(1, 100)
        cupy.free(1)
    watch.stop()

    assert len(watch.take()) == 400
    assert sum(len(held) for held in watch._held.values()) == 0


def test_a_stream_is_asked_for_its_number_once_and_while_it_exists(cupy):
    asked = []

    def key_of(handle):
        asked.append(handle)
        return KEYS[handle]

    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(key_of)
    cupy.malloc(1, 100)
    cupy.malloc(2, 100)
    watch.take()
    watch.stop()

    assert asked == [FIRST]


def test_a_stream_without_a_number_is_left_out(cupy):
    def refuse(handle):
        raise DeviceError("unknown stream")

    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(refuse)
    cupy.malloc(1, 100)
    cupy.free(1)
    watch.stop()

    assert watch.take() == []


def test_what_fails_in_a_hook_does_not_fail_the_allocation(cupy, watch, monkeypatch):
    def fail(*facts):
        raise MemoryError

    monkeypatch.setattr(watch, "note_new", fail)
    monkeypatch.setattr(watch, "note_gone", fail)

    cupy.malloc(1, 100, is_new=True)
    cupy.free(1)

    assert watch.take() == []


def test_memory_for_samples_and_blocks_is_bounded(cupy, monkeypatch):
    monkeypatch.setattr(_pool_watch, "KEPT_SAMPLES", 4)
    monkeypatch.setattr(_pool_watch, "FOLLOWED_BLOCKS", 10)
    watch = PoolWatch(cupy, 0, lambda: 0)
    watch.start(KEYS.__getitem__)
    for address in range(1, 100):
        cupy.malloc(address, 1)
    watch.stop()

    assert values(watch) == [(13, value) for value in (7, 8, 9, 10)]
