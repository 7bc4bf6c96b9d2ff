"""Parameters and memory of every kind that a kernel may be given: which of it is among its accesses."""

import ctypes
import struct
import subprocess
import sys

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.cuda.cupti import _clients

SIZE_BYTES = 1 << 20
SLOTS = 256
CODE = r"""
struct Wide { float* at[512]; };  // 4 KiB: the most that parameters could be before CUDA 12.1
extern "C" __global__ void of_4_kib(const Wide w) { w.at[threadIdx.x][0] = 1; }
extern "C" __global__ void write(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void take(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void ignore(const float* x, float* y) { if (!threadIdx.x) y[0] = 1; }
"""
MANY = f"""extern "C" __global__ void of_many({", ".join(f"float* x{place}" for place in range(SLOTS))}) {{
    {" ".join(f"x{place}[threadIdx.x] = {place};" for place in range(SLOTS))}
}}"""
IPC = f"""
import sys, cupy
x = cupy.cuda.runtime.malloc({SIZE_BYTES})
cupy.cuda.runtime.deviceSynchronize()
print(cupy.cuda.runtime.ipcGetMemHandle(x).hex(), flush=True)
sys.stdin.read()
"""
driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name} returned {code}"


@pytest.fixture(scope="module")
def lab():
    with Session("cuda", capture="kernels", hazards="report") as lab:
        yield lab


@pytest.fixture(scope="module")
def kernels():
    module = cupy.RawModule(code=CODE)
    return {name: module.get_function(name) for name in ("of_4_kib", "write", "take", "ignore")}


@pytest.fixture
def memory():
    """Return what allocates memory as ``cuMemAlloc`` does, each piece by itself."""
    made = []

    def allocate(size_bytes=SIZE_BYTES):
        made.append(cupy.cuda.runtime.malloc(size_bytes))
        return made[-1]

    yield allocate
    cupy.cuda.runtime.deviceSynchronize()
    for address in made:
        cupy.cuda.runtime.free(address)


def accesses_of(lab, launch):
    """Return the accesses of what is launched: of each piece of memory whether it is written, and whether it is the host's."""
    cupy.cuda.runtime.deviceSynchronize()
    lab.clear()
    launch()
    cupy.cuda.runtime.deviceSynchronize()
    found = lab.trace.accesses
    told = {}
    for number, is_write, is_host in zip(*(c.tolist() for c in (found.buffer, found.is_write, found.is_host)), strict=True):
        told[number] = told.get(number, (False, False))[0] or is_write, is_host
    return told


def number_at(address):
    """Return the number of the memory that an address is in; 0 where none is known."""
    return _clients.SHARING._accesses[0].find(address)


def launch(kernel, *addresses):
    kernel((1,), (32,), tuple(map(np.uint64, addresses)))


def test_parameters_of_4_kib_are_read_to_their_end(lab, kernels, memory):
    pieces = [memory(4_096) for _ in range(512)]
    held = (ctypes.c_uint64 * 512)(*pieces)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(held))
    function = kernels["of_4_kib"].kernel.ptr
    told = accesses_of(
        lab,
        lambda: call("cuLaunchKernel", ctypes.c_void_p(function), 1, 1, 1, 512, 1, 1, 0, None, pointers, None),
    )
    assert told == {number_at(one): (True, False) for one in pieces}


def test_256_parameters_are_read(lab, memory):
    kernel = cupy.RawKernel(MANY, "of_many")
    pieces = [memory(4_096) for _ in range(SLOTS)]
    told = accesses_of(lab, lambda: launch(kernel, *pieces))
    assert told == {number_at(one): (True, False) for one in pieces}


def test_memory_that_was_freed_is_no_memory_and_another_piece_in_its_place_is_another_one(lab, kernels, memory):
    y = memory()
    gone = cupy.cuda.runtime.malloc(SIZE_BYTES)
    accesses_of(lab, lambda: launch(kernels["ignore"], gone, y))
    number = number_at(gone)
    cupy.cuda.runtime.free(gone)

    told = accesses_of(lab, lambda: launch(kernels["ignore"], gone, y))

    assert number not in told
    assert number_at(gone) == 0
    assert told[number_at(y)][0]
    again = memory()
    told = accesses_of(lab, lambda: launch(kernels["take"], again, y))
    assert number_at(again) in told
    assert number not in told


@pytest.mark.parametrize("address", [0, 8, 1 << 47, (1 << 64) - 8, 0x7FFF_FFFF_FFF8])
def test_words_that_are_no_addresses_are_no_memory(lab, kernels, memory, address):
    y = memory()
    told = accesses_of(lab, lambda: launch(kernels["ignore"], address, y))
    assert {*told} == {number_at(y)}


def test_managed_memory_is_the_hosts_as_well(lab, kernels, memory):
    y, x = memory(), cupy.cuda.runtime.mallocManaged(SIZE_BYTES)
    try:
        told = accesses_of(lab, lambda: (launch(kernels["write"], x), launch(kernels["take"], x, y)))
        assert told == {number_at(x): (True, True), number_at(y): (True, False)}
    finally:
        cupy.cuda.runtime.free(x)


def test_memory_of_the_host_that_a_kernel_reads_is_told_of(lab, kernels, memory):
    y = memory()
    x = cupy.cuda.alloc_pinned_memory(SIZE_BYTES)
    told = accesses_of(lab, lambda: launch(kernels["take"], x.ptr, y))
    assert told[number_at(x.ptr)][1]
    assert told[number_at(y)] == (True, False)


@pytest.fixture
def mapped():
    """Return the address of two pieces of memory that are mapped behind each other, and the size of each."""
    # CUmemAllocationProp: page-locked, no handles, on device 0. Source: cuda.h of 13.0.
    prop, size = ctypes.create_string_buffer(struct.pack("<iiiiQQ", 1, 0, 1, 0, 0, 0)), ctypes.c_size_t()
    call("cuMemGetAllocationGranularity", ctypes.byref(size), prop, 0)
    start, access = ctypes.c_uint64(), ctypes.create_string_buffer(struct.pack("<iii", 1, 0, 3))
    whole = ctypes.c_size_t(2 * size.value)
    call("cuMemAddressReserve", ctypes.byref(start), whole, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    for place in range(2):
        handle, at = ctypes.c_uint64(), ctypes.c_uint64(start.value + place * size.value)
        call("cuMemCreate", ctypes.byref(handle), size, prop, ctypes.c_uint64(0))
        call("cuMemMap", at, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        call("cuMemRelease", handle)
    call("cuMemSetAccess", start, whole, access, ctypes.c_size_t(1))
    yield start.value, size.value
    cupy.cuda.runtime.deviceSynchronize()
    call("cuMemUnmap", start, whole)
    call("cuMemAddressFree", start, whole)


def test_each_mapped_range_is_a_piece_of_memory(lab, kernels, mapped):
    start, size = mapped
    told = accesses_of(lab, lambda: (launch(kernels["write"], start + size), launch(kernels["take"], start + size, start)))
    assert number_at(start) != number_at(start + size)
    assert told == {number_at(start): (True, False), number_at(start + size): (True, False)}


def test_memory_of_another_process_is_known_until_its_handle_is_closed(lab, kernels, memory):
    y = memory()
    with subprocess.Popen([sys.executable, "-c", IPC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        handle = bytes.fromhex(other.stdout.readline())
        x = cupy.cuda.runtime.ipcOpenMemHandle(handle)
        told = accesses_of(lab, lambda: launch(kernels["take"], x, y))
        number = number_at(x)
        cupy.cuda.runtime.ipcCloseMemHandle(x)
        after = accesses_of(lab, lambda: launch(kernels["ignore"], x, y))
        other.stdin.close()
    assert number
    assert {*told} == {number, number_at(y)}
    assert number not in after


@pytest.mark.skipif(cupy.cuda.runtime.getDeviceCount() < 2, reason="This needs two cards.")
def test_memory_of_another_card_is_told_of(lab, kernels, memory):
    y = memory()
    with cupy.cuda.Device(1):
        x = cupy.cuda.runtime.malloc(SIZE_BYTES)
    told = accesses_of(lab, lambda: launch(kernels["ignore"], x, y))
    numbers = number_at(x), number_at(y)
    with cupy.cuda.Device(1):
        cupy.cuda.runtime.free(x)
    assert all(numbers)
    assert {*told} == {*numbers}
    assert told[numbers[1]] == (True, False)
