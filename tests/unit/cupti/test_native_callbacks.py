"""The native callbacks: lock-free, without the interpreter, and made from the source that is committed."""

from __future__ import annotations

import ctypes
import mmap
import platform
import shutil
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _native_callbacks
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers, PythonPool
from gpustreamlab.backends.cuda.cupti._native_callbacks import CODE, SOURCE_SHA256, STATE_OFFSET, NativePool
from scripts import cupti_callbacks

# The start routine of a thread that no Python made: calls args[5] with args[0] to args[4].
SHIMS = {
    # mov rsi,[rdi+8]; mov rdx,[rdi+16]; mov rcx,[rdi+24]; mov r8,[rdi+32]; mov rax,[rdi+40]; mov rdi,[rdi]; jmp rax
    "x86_64": "488b7708 488b5710 488b4f18 4c8b4720 488b4728 488b3f ffe0",
    # ldr x4,[x0,#32]; ldr x9,[x0,#40]; ldp x2,x3,[x0,#16]; ldp x0,x1,[x0]; br x9
    "aarch64": "041040f9 091440f9 020c41a9 000440a9 20011fd6",
}


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def request(pool):
    address, size, most = ctypes.c_void_p(7), ctypes.c_size_t(8), ctypes.c_size_t(9)
    pool.request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
    return address.value


# The code and its source


def test_the_code_was_made_from_the_source_beside_it():
    assert cupti_callbacks.source_digest() == SOURCE_SHA256, "run: python -m scripts.cupti_callbacks"
    assert cupti_callbacks.STATE_OFFSET == STATE_OFFSET
    assert CODE.keys() == cupti_callbacks.TOOLS.keys()


@pytest.mark.parametrize("machine", CODE)
def test_the_code_is_what_its_compiler_makes(machine):
    native = CODE[machine]
    assert len(native.code) < mmap.PAGESIZE
    assert native.offsets.keys() == set(cupti_callbacks.FUNCTIONS)
    if shutil.which(cupti_callbacks.TOOLS[machine][0] + "gcc") is None:
        return  # the digest above tells as much as can be told here
    code, offsets = cupti_callbacks.build(machine)  # raises where it depends on its place
    if cupti_callbacks.compiler_of(machine) == native.compiler:
        assert (code, offsets) == (native.code, native.offsets)


def test_what_depends_on_its_place_is_not_taken(monkeypatch, tmp_path):
    if shutil.which(cupti_callbacks.TOOLS["x86_64"][0] + "gcc") is None:
        return
    source = tmp_path / "wrong.c"
    source.write_text(cupti_callbacks.SOURCE.read_text() + "void *const place = &state;")
    monkeypatch.setattr(cupti_callbacks, "SOURCE", source)

    with pytest.raises(ValueError, match=r"The code for x86_64 is not all in \.text"):
        cupti_callbacks.build("x86_64")


def test_the_code_cannot_be_written():
    pool = NativePool(buffer_bytes=64, buffer_limit=1)
    begin = pool._state.ctypes.data - STATE_OFFSET
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    rights = {range(*(int(end, 16) for end in places.split("-"))): flags for places, flags, *_ in lines}

    assert next(flags for places, flags in rights.items() if begin in places) == "r-xp"
    assert next(flags for places, flags in rights.items() if begin + STATE_OFFSET in places) == "rw-p"


# The lists


@pytest.mark.parametrize("buffer_limit", [1, 2, 256])
def test_every_buffer_is_lent_once_and_each_has_its_place(buffer_limit):
    pool = NativePool(buffer_bytes=4096, buffer_limit=buffer_limit)
    lent = [request(pool) for _ in range(buffer_limit)]

    assert sorted(np.diff(sorted(lent)).tolist()) == [4096] * (buffer_limit - 1)
    assert min(lent) == pool._arena.ctypes.data
    assert request(pool) is None
    assert pool.refused_count == 1


@pytest.mark.parametrize("start", [0, (1 << 48) - 3])
def test_threads_get_every_buffer_and_lose_none(start):
    pool = NativePool(buffer_bytes=64, buffer_limit=8)
    pool._state["free"] += np.uint64(start << 16)  # so many changes that the count begins again
    rounds, thread_count = 400, 6
    got, refused, seen = [[] for _ in range(thread_count)], [0] * thread_count, []
    counters = np.zeros(8, np.int64)

    def work(number):
        for turn in range(rounds):
            address = request(pool)
            if address is None:
                refused[number] += 1
                continue
            word = ctypes.c_uint64.from_address(address)
            word.value = number << 32 | turn
            got[number].append(word.value)
            pool.complete(None, 0, address, 64, 8)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or pool.full_count:
        for address, data, _ in pool.take():
            counters[(address - pool._arena.ctypes.data) // 64] += 1
            seen.append(int(data.view(np.uint64)[0]))
            pool.give_back(address)
    for thread in threads:
        thread.join()

    assert sorted(seen) == sorted(chain.from_iterable(got))
    assert pool.refused_count == sum(refused)
    assert len(seen) + sum(refused) == rounds * thread_count == counters.sum() + sum(refused)
    assert len({request(pool) for _ in range(8)} - {None}) == 8  # all are there again, each once


def test_a_completion_that_comes_twice_at_once_counts_once():
    pool = NativePool(buffer_bytes=64, buffer_limit=4)
    for _ in range(200):
        address, gate = request(pool), threading.Barrier(3)

        def finish(address=address, gate=gate):
            gate.wait()
            pool.complete(None, 0, address, 64, 8)

        threads = [threading.Thread(target=finish) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((ticket, _, _),) = pool.take()
        pool.give_back(ticket)

    assert pool.refused_count == 0


def test_memory_is_taken_by_what_is_used_alone():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    pool = NativePool(buffer_bytes=1 << 20, buffer_limit=256)
    for _ in range(1_000):  # what was given back last is lent first
        address = request(pool)
        ctypes.memset(address, 1, 1 << 20)
        pool.complete(None, 0, address, 1 << 20, 1 << 20)
        ((ticket, _, _),) = pool.take()
        pool.give_back(ticket)

    assert resident_bytes() - before < 16 << 20


# The interpreter's lock


class ForeignThread:
    """A thread that calls a function with up to five arguments, and never enters Python unless the function does."""

    def __init__(self, function, *arguments):
        self._libc = ctypes.PyDLL(None)  # keeps the interpreter's lock while it calls
        self._libc.pthread_timedjoin_np.argtypes = [ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
        code = bytes.fromhex(SHIMS[platform.machine()])
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._page[: len(code)] = code
        begin = _native_callbacks._protect(self._page, mmap.PAGESIZE)
        values = [ctypes.cast(value, ctypes.c_void_p).value or 0 for value in arguments]
        self._arguments = (ctypes.c_void_p * 6)(*values, *[0] * (5 - len(values)), address_of(function))
        self._thread = ctypes.c_ulong()
        self._start = ctypes.c_void_p(begin)

    def run_with_lock_held(self, *, limit_ns):
        """Start it and wait for it, the interpreter's lock held throughout; tell whether it came to an end."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(1_000)  # nor is it given away between the two calls
        try:
            assert self._libc.pthread_create(ctypes.byref(self._thread), None, self._start, self._arguments) == 0
            return self._join(limit_ns)
        finally:
            sys.setswitchinterval(before_s)

    def join(self):
        """Wait for it, and let it have the lock."""
        while not self._join(1_000_000):
            threading.Event().wait(0.001)

    def _join(self, limit_ns):
        now = (ctypes.c_int64 * 2)()
        self._libc.clock_gettime(0, now)
        total_ns = now[1] + limit_ns
        until = (ctypes.c_int64 * 2)(now[0] + total_ns // 1_000_000_000, total_ns % 1_000_000_000)
        return self._libc.pthread_timedjoin_np(self._thread, None, until) == 0


@pytest.fixture
def place():
    """Room for what a request writes: address, size, records."""
    return (ctypes.c_uint64 * 3)(1, 2, 3)


def request_thread(pool, place):
    begin = ctypes.addressof(place)
    return ForeignThread(pool.request, *(ctypes.c_void_p(begin + 8 * number) for number in range(3)))


def test_native_callbacks_do_not_wait_for_the_interpreter(place):
    pool = NativePool(buffer_bytes=64, buffer_limit=1)

    assert request_thread(pool, place).run_with_lock_held(limit_ns=30_000_000_000)
    assert list(place) == [pool._arena.ctypes.data, 64, 0]

    arguments = [ctypes.c_void_p(number) for number in (0, 0, place[0], 64, 5)]
    assert ForeignThread(pool.complete, *arguments).run_with_lock_held(limit_ns=30_000_000_000)
    assert [(address, len(data)) for address, data, _ in pool.take()] == [(place[0], 5)]


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no lock to wait for")
def test_python_callbacks_do(place):
    pool = PythonPool(buffer_bytes=64, buffer_limit=1)
    thread = request_thread(pool, place)

    assert not thread.run_with_lock_held(limit_ns=100_000_000)
    thread.join()
    assert list(place)[1:] == [64, 0]


AT_EXIT = """
import ctypes
from gpustreamlab.backends.cuda.cupti import _buffers as _cupti_buffers
from gpustreamlab.backends.cuda.cupti._library import Cupti
from tests.helpers.fake_cupti import FakeCuptiLibrary

buffers = _cupti_buffers.ActivityBuffers()
assert buffers.is_native
buffers.register(Cupti(FakeCuptiLibrary(), ""))
place = ctypes.cast(buffers._pool._take_full, ctypes.c_void_p)
ctypes.CDLL(None)["__cxa_atexit"](place, None, None)  # runs after the interpreter is gone
"""


def test_what_cupti_knows_outlives_the_interpreter():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], check=False, cwd=Path(__file__).parents[3], capture_output=True)

    assert (done.returncode, done.stderr) == (0, b"")  # without the reference that is kept: SIGSEGV


# Where there is none


def test_an_unknown_machine_is_told(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    with pytest.raises(OSError, match=r"no code for linux on riscv64 with pages of \d+ bytes"):
        NativePool(buffer_bytes=64, buffer_limit=1)


def test_a_kernel_that_lets_no_memory_become_executable_is_told(monkeypatch):
    monkeypatch.setattr(_native_callbacks.mmap, "PROT_EXEC", 1 << 20)  # no such right: EINVAL

    with pytest.raises(OSError, match="Memory may not be made executable: Invalid argument"):
        NativePool(buffer_bytes=64, buffer_limit=1)
    assert not ActivityBuffers(buffer_bytes=64).is_native


def test_more_buffers_than_a_link_can_name_are_refused():
    with pytest.raises(OSError, match="65536 buffers are not from 1 to 65535"):
        NativePool(buffer_bytes=64, buffer_limit=1 << 16)
