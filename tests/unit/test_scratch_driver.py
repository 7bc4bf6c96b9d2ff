"""Which calls of the CUDA runtime scratch is made of, on a fake one; `tests/gpu` has the real one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab.backends.cuda._memory import CudaScratch, has_memory_pools
from gpustreamlab.errors import DeviceError, DeviceMemoryError


class FakeRuntime:
    """Notes every call; answers as a device that has memory, or as the test says."""

    def __init__(self):
        self.calls, self.failing, self.is_capturing, self.attribute, self.used_bytes = [], {}, False, 1, 0

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, *args))
            if name in self.failing:
                raise RuntimeError(self.failing[name])
            return {"mallocFromPoolAsync": 0x1000, "malloc": 0x2000, "memPoolCreate": 77, "deviceGetDefaultMemPool": 5}.get(
                name
            )

        return call

    def streamIsCapturing(self, handle):  # noqa: N802 - the runtime's name
        return self.is_capturing

    def deviceGetAttribute(self, attribute, ordinal):  # noqa: N802
        if isinstance(self.attribute, Exception):
            raise self.attribute
        return self.attribute

    def memPoolGetAttribute(self, pool, attribute):  # noqa: N802
        return self.used_bytes

    def memGetInfo(self):  # noqa: N802
        return 30, 100

    @property
    def names(self):
        return [name for name, *_ in self.calls]


class FakeStream:
    handle = 0x99

    def __init__(self, runtime):
        self.runtime = runtime

    def synchronize(self):
        self.runtime.calls.append(("synchronize", self.handle))


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def stream(runtime):
    return FakeStream(runtime)


@pytest.fixture
def cupy(runtime):
    pool = SimpleNamespace(free_all_blocks=lambda: runtime.calls.append(("free_all_blocks",)))
    cuda = SimpleNamespace(
        runtime=runtime, UnownedMemory=lambda *facts: facts, MemoryPointer=lambda memory, offset: (memory, offset)
    )
    return SimpleNamespace(
        cuda=cuda, get_default_memory_pool=lambda: pool, ndarray=lambda shape, dtype, memptr: (shape, dtype, memptr)
    )


def make(cupy, *, is_ordered=True):
    return CudaScratch(cupy, 0, is_ordered=is_ordered, scope=nullcontext)


def test_each_stream_has_a_pool_that_keeps_what_it_has_and_gives_it_back_with_the_stream(cupy, runtime, stream):
    scratch = make(cupy)
    assert [scratch.allocate(stream, 512) for _ in range(2)] == [0x1000] * 2
    scratch.free(stream, 0x1000)
    assert runtime.names == [
        "MemPoolProps",
        "memPoolCreate",
        "memPoolSetAttribute",
        "memPoolSetAttribute",
        "mallocFromPoolAsync",
        "mallocFromPoolAsync",
        "freeAsync",
    ]
    assert runtime.calls[2:4] == [("memPoolSetAttribute", 77, 3, 0), ("memPoolSetAttribute", 77, 4, (1 << 64) - 1)]
    assert runtime.calls[4] == ("mallocFromPoolAsync", 512, 77, 0x99)
    assert runtime.calls[-1] == ("freeAsync", 0x1000, 0x99)
    for _ in range(2):
        scratch.end(stream.handle)
    assert runtime.calls[-2:] == [("memPoolSetAttribute", 77, 4, 0), ("memPoolTrimTo", 77, 0)]


def test_a_pool_serves_another_stream_once_nothing_of_it_is_held(cupy, runtime, stream):
    scratch = make(cupy)
    scratch.allocate(stream, 512)
    scratch.end(stream.handle)
    runtime.used_bytes = 512
    stream.handle = 0x9A
    scratch.allocate(stream, 512)
    assert runtime.names.count("memPoolCreate") == 2
    scratch.end(stream.handle)
    runtime.used_bytes = 0
    stream.handle = 0x9B
    scratch.allocate(stream, 512)
    assert runtime.names.count("memPoolCreate") == 2


@pytest.mark.parametrize(("used_bytes", "destroyed_count"), [(0, 1), (512, 0)])
def test_a_pool_of_which_a_block_is_held_is_never_destroyed(cupy, runtime, stream, used_bytes, destroyed_count):
    scratch = make(cupy)
    scratch.allocate(stream, 512)
    runtime.used_bytes = used_bytes
    scratch.end(stream.handle)
    assert runtime.names.count("memPoolDestroy") == 0
    scratch.close()
    scratch.close()
    assert runtime.names.count("memPoolDestroy") == destroyed_count


def test_without_pools_it_waits_before_it_frees(cupy, runtime, stream):
    scratch = make(cupy, is_ordered=False)
    assert scratch.allocate(stream, 512) == 0x2000
    scratch.free(stream, 0x2000)
    assert runtime.calls == [("malloc", 512), ("synchronize", 0x99), ("free", 0x2000)]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_stream_that_is_captured_takes_none(cupy, runtime, stream, is_ordered):
    scratch = make(cupy, is_ordered=is_ordered)
    runtime.is_capturing = True
    with pytest.raises(DeviceError, match=r"cannot take scratch .* before the capture begins"):
        scratch.allocate(stream, 512)
    assert runtime.calls == []


def test_without_memory_what_nobody_uses_is_given_back_once(cupy, runtime, stream):
    scratch = make(cupy)
    scratch.allocate(stream, 512)
    del runtime.calls[:]
    runtime.failing = {"mallocFromPoolAsync": "cudaErrorMemoryAllocation: out of memory"}
    with pytest.raises(DeviceMemoryError, match=r"Allocating 1,048,576 .* 0x99, with 30 of 100 bytes .* free,") as raised:
        scratch.allocate(stream, 1 << 20)
    assert raised.value.driver_code == "OUT_OF_MEMORY"
    runtime.failing["freeAsync"] = "cudaErrorInvalidValue"
    with pytest.raises(DeviceError, match="Freeing the scratch at 0x1000"):
        scratch.free(stream, 0x1000)
    runtime.calls.pop()
    assert runtime.names == [
        "mallocFromPoolAsync",
        "free_all_blocks",
        "deviceSynchronize",
        "memPoolTrimTo",
        "mallocFromPoolAsync",
    ]


def test_arrays_keep_their_owner(cupy):
    owner = object()
    shape, dtype, pointer = make(cupy).array(0x1000, 4096, (2, 3), "f4", owner)
    assert (shape, dtype, pointer) == ((2, 3), np.float32, ((0x1000, 4096, owner, 0), 0))


@pytest.mark.parametrize(("attribute", "found"), [(1, True), (0, False), (RuntimeError("cudaErrorInvalidValue"), False)])
def test_whether_there_are_pools_is_asked_of_the_device(cupy, runtime, attribute, found):
    runtime.attribute = attribute
    assert has_memory_pools(cupy, 0) is found
