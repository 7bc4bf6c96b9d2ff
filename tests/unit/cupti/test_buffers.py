"""The buffers that CUPTI fills: compiled once, bounded, lost by nobody, never another's, and without the interpreter's lock."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _buffers
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers, compile_sources
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.errors import CaptureUnavailableError
from tests.helpers.fake_cupti import NOT_COMPATIBLE, FakeCuptiLibrary
from tests.helpers.python_buffers import PythonBuffers

pytestmark = pytest.mark.skipif(not any(map(shutil.which, _buffers.COMPILERS)), reason="there is no C compiler")
find_library = _buffers.find_library  # before a fixture gives each test its own

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


def request(buffers):
    """Ask for a buffer as CUPTI does; return its address and size."""
    address, size, most = ctypes.c_void_p(7), ctypes.c_size_t(8), ctypes.c_size_t(9)
    buffers.request(ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
    assert most.value == 0  # as many records as fit
    return address.value, size.value


def complete(buffers, address, valid_bytes, text=b""):
    ctypes.memmove(address, text, len(text))
    buffers.complete(None, 0, address, buffers.buffer_bytes, valid_bytes)


# Making them


def test_the_source_has_no_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(_buffers, "_FLAGS", (*_buffers._FLAGS, "-Wall", "-Wextra", "-Werror"))
    compile_sources(_buffers.SOURCES, tmp_path / "strict.so")


def test_it_is_compiled_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = find_library()
    monkeypatch.setattr(_buffers, "COMPILERS", ())

    assert find_library() == library
    assert [*library.parent.iterdir()] == [library]


def test_what_came_compiled_with_the_package_is_used_unless_it_is_of_another_source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = _buffers.SOURCES[0].with_name(find_library().name)
    built.touch()
    monkeypatch.setattr(_buffers, "COMPILERS", ())
    assert find_library() == built

    _buffers.SOURCES[1].write_text("another")
    monkeypatch.setattr(_buffers, "compile_sources", lambda _sources, target: target.touch())
    assert find_library().parent == tmp_path / "gpustreamlab"


def test_without_a_compiler_kernels_are_not_captured_and_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_buffers, "find_library", find_library)
    monkeypatch.setattr(_buffers, "COMPILERS", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    assert _buffers._find_compiler() == [sys.executable, "-m", "ziglang", "cc"]  # the extra is a compiler

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CaptureUnavailableError, match=r"(?s)no C compiler.*pip install 'gpustreamlab\[native\]'"):
        ActivityBuffers(buffer_bytes=64)


def test_what_a_compiler_says_is_told(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("no C")
    with pytest.raises(OSError, match=r"(?s)could not compile wrong\.c: .*error"):
        compile_sources([source], tmp_path / "wrong.so")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Return where the library is cached: a file that is there already; a compiler writes "new"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(_buffers, "compile_sources", lambda _sources, target: target.write_text("new"))
    library = find_library()
    library.write_text("old")
    return library


def link(path):
    """Leave a link to what was there."""
    path.symlink_to(path.rename(path.with_name("elsewhere")))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder, _: folder.chmod(0o720),
        lambda folder, _: folder.chmod(0o702),
        lambda folder, _: folder.parent.chmod(0o777),
        lambda folder, _: link(folder),
        lambda folder, _: folder.parent.rename(folder.parent.with_name("away")).with_name("cache").touch(),
        lambda _, monkeypatch: monkeypatch.setattr(os, "geteuid", lambda: 12345),
    ],
    ids=["group writes", "all write", "all write above", "link", "no folder", "owner"],
)
def test_a_cache_of_others_is_not_used(cached, tmp_path, monkeypatch, caplog, spoil):
    spoil(cached.parent, monkeypatch)

    library = find_library()

    assert library.read_text() == "new"
    assert library.parent.parent == tmp_path
    assert library.parent.stat().st_mode & 0o777 == 0o700
    assert [record.getMessage().count("Set XDG_CACHE_HOME") for record in caplog.records] == [1]
    assert not cached.exists() or cached.read_text() == "old"


@pytest.mark.parametrize("spoil", [lambda library: library.chmod(0o720), link], ids=["group writes", "link"])
def test_a_cached_library_that_others_may_write_is_made_anew(cached, caplog, spoil):
    spoil(cached)
    old = cached.resolve()

    assert find_library() == cached

    assert (cached.read_text(), cached.is_symlink(), cached.stat().st_mode & 0o777) == ("new", False, 0o700)
    assert old == cached or old.read_text() == "old"
    assert not caplog.records


def test_a_cache_below_a_folder_as_tmp_is_used(cached):
    cached.parent.parent.chmod(0o1777)
    assert (find_library(), cached.read_text()) == (cached, "old")


def test_a_process_has_them_once(monkeypatch, compiled):
    monkeypatch.setattr(_buffers, "find_library", lambda: compiled)
    first = ActivityBuffers(buffer_bytes=64, buffer_limit=1)
    with pytest.raises(CaptureUnavailableError, match="were made before"):
        ActivityBuffers(buffer_bytes=64, buffer_limit=1)
    assert request(first)[1] == 64


# What goes in and out


def test_what_was_written_comes_back_and_the_buffer_is_used_again():
    buffers = ActivityBuffers(buffer_bytes=4096)
    first, size = request(buffers)
    complete(buffers, first, 5, b"hello")

    ((ticket, data),) = buffers.take()

    assert (size, data.tobytes()) == (4096, b"hello")
    assert first % 64 == 0
    assert buffers.take() == []
    second, _ = request(buffers)
    assert second != first  # it is still being read
    buffers.give_back(ticket)
    buffers.give_back(ticket)
    assert request(buffers)[0] == first
    assert request(buffers)[0] not in {first, second}


@pytest.mark.parametrize("size", [64, 100])
def test_there_is_a_limit_and_buffers_come_in_the_order_in_which_they_were_completed(size):
    buffers = ActivityBuffers(buffer_bytes=size, buffer_limit=3)
    lent = [request(buffers)[0] for _ in range(3)]
    assert request(buffers) == (None, 0)
    assert all(address % 64 == 0 for address in lent)
    order = [lent[1], lent[2], lent[0]]
    for address in order:
        complete(buffers, address, 8)

    assert buffers.full_bytes == 3 * size
    assert [ticket for ticket, _ in buffers.take()] == order
    assert buffers.full_bytes == 0
    assert request(buffers) == (None, 0)  # taken, and not given back


def test_a_buffer_of_another_client_is_not_touched():
    buffers = ActivityBuffers(buffer_bytes=64)
    foreign = np.zeros(64, np.uint8)
    ours, _ = request(buffers)

    for address in (foreign.ctypes.data, None, ours + 1, ours - 1, ours + (1 << 40), (1 << 64) - 64):
        buffers.complete(None, 0, address, 64, 64)
        buffers.give_back(address)

    assert buffers.take() == []
    assert buffers.full_bytes == 0


def test_a_buffer_counts_once_for_each_time_it_was_lent_and_no_more_bytes_than_it_has():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=1)
    first, _ = request(buffers)
    buffers.give_back(first)
    assert request(buffers) == (None, 0)  # it is still lent
    complete(buffers, first, 1 << 40)
    complete(buffers, first, 16)
    buffers.give_back(first)
    assert request(buffers) == (None, 0)  # full, and not taken yet

    ((ticket, data),) = buffers.take()
    complete(buffers, first, 24)

    assert (ticket, len(data)) == (first, 64)
    assert buffers.take() == []


def test_threads_get_every_buffer_and_lose_none():
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=8)
    rounds, thread_count = 400, 6
    got, refused, seen = [[] for _ in range(thread_count)], [0] * thread_count, []

    def work(number):
        for turn in range(rounds):
            address, _ = request(buffers)
            if address is None:
                refused[number] += 1
                continue
            word = number << 32 | turn
            got[number].append(word)
            complete(buffers, address, 8, word.to_bytes(8, "little"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or buffers.full_bytes:
        for address, data in buffers.take():
            seen.append(int(data.view("u8")[0]))
            buffers.give_back(address)
    for thread in threads:
        thread.join()

    assert sorted(seen) == sorted(chain.from_iterable(got))
    assert len(seen) + sum(refused) == rounds * thread_count
    assert len({request(buffers)[0] for _ in range(8)} - {None}) == 8  # all are there again, each once


def test_memory_is_taken_by_what_is_used_alone():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    buffers = ActivityBuffers(buffer_bytes=1 << 20, buffer_limit=256)
    for _ in range(1_000):  # what was given back last is lent first
        address, _ = request(buffers)
        ctypes.memset(address, 1, 1 << 20)
        complete(buffers, address, 1 << 20)
        ((ticket, _),) = buffers.take()
        buffers.give_back(ticket)

    assert resident_bytes() - before < 16 << 20


def test_cupti_is_served_through_what_was_registered_or_says_that_it_refuses():
    library = FakeCuptiLibrary()
    buffers = ActivityBuffers(buffer_bytes=64, buffer_limit=2)
    buffers.register(Cupti(library, ""))
    library.emit_raw(np.arange(8, dtype=np.uint8))
    library.activity_flush_all(0)
    library.complete_foreign()
    assert [data.tobytes() for _, data in buffers.take()] == [bytes(range(8))]

    library.refused["cuptiActivityRegisterCallbacks"] = NOT_COMPATIBLE
    with pytest.raises(CaptureUnavailableError, match="refused cuptiActivityRegisterCallbacks: CUPTI_ERROR_NOT_COMPATIBLE"):
        buffers.register(Cupti(library, ""))


# The interpreter's lock


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no lock to wait for")
@pytest.mark.parametrize("make", [ActivityBuffers, PythonBuffers])
def test_native_callbacks_do_not_wait_for_the_interpreter_and_pythons_do(make, tmp_path):
    source = tmp_path / "in_thread.c"
    source.write_text(IN_THREAD)
    compile_sources([source], tmp_path / "in_thread.so")
    helper = ctypes.PyDLL(str(tmp_path / "in_thread.so"))  # keeps the interpreter's lock while it calls
    buffers = make(buffer_bytes=64, buffer_limit=1)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1_000)  # nor is it given away between the two calls
    try:
        assert helper.request_in_thread(buffers.request) == 0
        is_served = bool(helper.join(30_000 if make is ActivityBuffers else 100))
    finally:
        sys.setswitchinterval(before_s)
    while not is_served and not helper.join(1):
        threading.Event().wait(0.001)

    assert is_served == (make is ActivityBuffers)
    assert request(buffers) == (None, 0)  # that thread has got it


AT_EXIT = """
import ctypes
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
from gpustreamlab.backends.cuda.cupti._library import Cupti
from tests.helpers.fake_cupti import FakeCuptiLibrary

buffers = ActivityBuffers()
buffers.register(Cupti(FakeCuptiLibrary(), ""))
place = ctypes.cast(buffers._library.give_back, ctypes.c_void_p)
ctypes.CDLL(None)["__cxa_atexit"](place, None, None)  # runs after the interpreter is gone
"""


def test_what_cupti_knows_outlives_the_interpreter(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    folder = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", AT_EXIT], check=False, cwd=folder, env=environment, capture_output=True)

    assert (done.returncode, done.stderr) == (0, b"")
