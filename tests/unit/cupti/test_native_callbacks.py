"""The native callbacks: compiled once, lost by nobody, and without the interpreter's lock."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import shutil
import subprocess
import sys
import threading
from itertools import chain, pairwise
from pathlib import Path

import pytest

from gpustreamlab.backends.cuda.cupti import _native_callbacks
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
from gpustreamlab.backends.cuda.cupti._native_callbacks import NativePool, compile_source
from gpustreamlab.errors import CaptureUnavailableError
from tests.helpers.python_pool import PythonPool

pytestmark = pytest.mark.skipif(not any(map(shutil.which, _native_callbacks.COMPILERS)), reason="there is no C compiler")
find_library = _native_callbacks.find_library  # before a fixture gives each pool its own

IN_THREAD = """
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

static pthread_t thread;
static void *place[3];

static void *call(void *request) { ((void (*)(void *, void *, void *))request)(place, place + 1, place + 2); return NULL; }

/* Ask for a buffer in a thread that no Python made, and wait for it; tell whether it has come in time. */
int request_in_thread(void *request) { return pthread_create(&thread, NULL, call, request); }
int join(int limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    until.tv_sec += limit_ms / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    return pthread_timedjoin_np(thread, NULL, &until) == 0;
}
"""


def request(pool):
    address, size, most = ctypes.c_void_p(7), ctypes.c_size_t(8), ctypes.c_size_t(9)
    pool.request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
    return address.value


# Making it


def test_the_source_has_no_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(_native_callbacks, "_FLAGS", (*_native_callbacks._FLAGS, "-Wall", "-Wextra", "-Werror"))
    compile_source(_native_callbacks.SOURCE, tmp_path / "strict.so")


def test_it_is_compiled_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = find_library()
    monkeypatch.setattr(_native_callbacks, "COMPILERS", ())

    assert find_library() == library
    assert [*library.parent.iterdir()] == [library]


def test_without_a_compiler_kernels_are_not_captured_and_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_native_callbacks, "find_library", find_library)
    monkeypatch.setattr(_native_callbacks, "COMPILERS", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(CaptureUnavailableError, match=r"(?s)no C compiler.*pip install 'gpustreamlab\[native\]'"):
        ActivityBuffers(buffer_bytes=64)


def test_the_extra_is_a_compiler(monkeypatch):
    monkeypatch.setattr(_native_callbacks, "COMPILERS", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang")

    assert _native_callbacks._find_compiler() == [sys.executable, "-m", "ziglang", "cc"]


def test_what_a_compiler_says_is_told(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("no C")
    with pytest.raises(OSError, match=r"(?s)could not compile wrong\.c: .*error"):
        compile_source(source, tmp_path / "wrong.so")


def test_a_home_that_takes_no_file_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        find_library()


def test_a_process_has_one_pool(monkeypatch, compiled):
    monkeypatch.setattr(_native_callbacks, "find_library", lambda: compiled)
    first = NativePool(buffer_bytes=64, buffer_limit=1)
    with pytest.raises(OSError, match="were made before"):
        NativePool(buffer_bytes=64, buffer_limit=1)
    assert request(first)


# The lists


@pytest.mark.parametrize("buffer_limit", [1, 2, 256])
def test_every_buffer_is_lent_once_and_each_has_its_place(buffer_limit):
    pool = NativePool(buffer_bytes=4096, buffer_limit=buffer_limit)
    lent = [request(pool) for _ in range(buffer_limit)]

    assert [later - one for one, later in pairwise(lent)] == [4096] * (buffer_limit - 1)
    assert request(pool) is None
    assert pool.refused_count == 1


def test_threads_get_every_buffer_and_lose_none():
    pool = NativePool(buffer_bytes=64, buffer_limit=8)
    rounds, thread_count = 400, 6
    got, refused, seen = [[] for _ in range(thread_count)], [0] * thread_count, []

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
            seen.append(int(data.view("u8")[0]))
            pool.give_back(address)
    for thread in threads:
        thread.join()

    assert sorted(seen) == sorted(chain.from_iterable(got))
    assert pool.refused_count == sum(refused)
    assert len(seen) + sum(refused) == rounds * thread_count
    assert len({request(pool) for _ in range(8)} - {None}) == 8  # all are there again, each once


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


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no lock to wait for")
@pytest.mark.parametrize("make", [NativePool, PythonPool])
def test_native_callbacks_do_not_wait_for_the_interpreter_and_pythons_do(make, tmp_path):
    source = tmp_path / "in_thread.c"
    source.write_text(IN_THREAD)
    compile_source(source, tmp_path / "in_thread.so")
    helper = ctypes.PyDLL(str(tmp_path / "in_thread.so"))  # keeps the interpreter's lock while it calls
    pool = make(buffer_bytes=64, buffer_limit=1)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1_000)  # nor is it given away between the two calls
    try:
        assert helper.request_in_thread(pool.request) == 0
        is_served = bool(helper.join(30_000 if make is NativePool else 100))
    finally:
        sys.setswitchinterval(before_s)
    while not is_served and not helper.join(1):
        threading.Event().wait(0.001)

    assert is_served == (make is NativePool)
    assert request(pool) is None  # that thread has got it


AT_EXIT = """
import ctypes
from gpustreamlab.backends.cuda.cupti import _buffers as _cupti_buffers
from gpustreamlab.backends.cuda.cupti._library import Cupti
from tests.helpers.fake_cupti import FakeCuptiLibrary

buffers = _cupti_buffers.ActivityBuffers()
buffers.register(Cupti(FakeCuptiLibrary(), ""))
place = ctypes.cast(buffers._pool._library.give_back, ctypes.c_void_p)
ctypes.CDLL(None)["__cxa_atexit"](place, None, None)  # runs after the interpreter is gone
"""


def test_what_cupti_knows_outlives_the_interpreter(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    folder = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", AT_EXIT], check=False, cwd=folder, env=environment, capture_output=True)

    assert (done.returncode, done.stderr) == (0, b"")
