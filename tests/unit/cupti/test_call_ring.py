"""The ring in which calls of the driver are noted: complete, in order, counted where it is full, without a race."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time

import pytest

from gpustreamlab.backends.cuda.cupti import _buffers
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers

pytestmark = pytest.mark.skipif(not any(map(shutil.which, _buffers.COMPILERS)), reason="there is no C compiler")

ENTER, EXIT = 0, 1
DRIVER_API, LAUNCH = 1, 307


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData, as far as it is read. Source: cupti_callbacks.h of 13.0."""

    _fields_ = (
        ("callbackSite", ctypes.c_int),
        ("functionName", ctypes.c_char_p),
        ("functionParams", ctypes.c_void_p),
        ("functionReturnValue", ctypes.c_void_p),
        ("symbolName", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("contextUid", ctypes.c_uint32),
        ("correlationData", ctypes.POINTER(ctypes.c_uint64)),
        ("correlationId", ctypes.c_uint32),
    )


def follow(buffers, number, function=LAUNCH, inside=lambda: None):
    """Call back as CUPTI does at the begin and the end of a call."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(buffers.note_call.value)
    kept = ctypes.c_uint64()
    for site in (ENTER, EXIT):
        data = CallbackData(callbackSite=site, correlationData=ctypes.pointer(kept), correlationId=number)
        callback(None, DRIVER_API, function, ctypes.addressof(data))
        if site == ENTER:
            inside()


def test_a_call_is_noted_with_its_begin_and_end_by_the_wall_clock():
    buffers = ActivityBuffers(buffer_bytes=64)
    times = [time.time_ns()]
    follow(buffers, 41, inside=lambda: times.append(time.time_ns()))
    times.append(time.time_ns())
    follow(buffers, 42, function=126)
    assert buffers.call_count == 2

    calls, lost_count = buffers.take_calls()

    assert (calls["correlationId"].tolist(), calls["cbid"].tolist(), lost_count) == ([41, 42], [LAUNCH, 126], 0)
    assert calls["threadId"].tolist() == [threading.get_ident() & 0xFFFF_FFFF] * 2
    assert times[0] <= calls["start"][0] <= times[1] <= calls["end"][0] <= times[2]
    assert buffers.call_count == len(buffers.take_calls()[0]) == 0


STORM = r"""
#include "callbacks.c"
#include <stdio.h>

enum { THREADS = 16, EACH = 200000 };
static _Atomic int running = THREADS;

static void *work(void *argument)
{
    uint64_t own;
    struct callback_data data = {.own = &own};
    for (uint32_t turn = 0; turn < EACH; turn++) {
        data.number = (uint32_t)(uintptr_t)argument * EACH + turn;
        data.site = 0;
        note_call(0, 1, data.number ^ 5, &data);
        data.site = 1;
        note_call(0, 1, data.number ^ 5, &data);
    }
    running--;
    return 0;
}

/* Calls of many threads, read meanwhile, or afterwards where there is an argument; print how many were read, lost and wrong. */
int main(int count, char **arguments)
{
    (void)arguments;
    int slow = count > 1;
    static struct call read[4096];
    static int64_t newest[THREADS];
    uint64_t seen = 0, wrong = 0, got;
    pthread_t threads[THREADS];
    if (set_up_calls())
        return 1;
    for (uintptr_t i = 0; i < THREADS; i++) {
        newest[i] = -1;
        pthread_create(threads + i, 0, work, (void *)i);
    }
    if (slow)
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], 0);
    for (;;) {
        int is_last = !running;
        while ((got = take_calls(read, 4096)))
            for (uint64_t i = 0; i < got; i++, seen++) {
                uint32_t who = read[i].number / EACH;
                wrong += read[i].function != (read[i].number ^ 5) || read[i].start_ns > read[i].end_ns || !read[i].start_ns;
                wrong += (int64_t)read[i].number <= newest[who];
                newest[who] = read[i].number;
            }
        if (is_last)
            break;
    }
    if (!slow)
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], 0);
    printf("%llu %llu %llu\n", (unsigned long long)seen, (unsigned long long)take_lost_calls(), (unsigned long long)wrong);
    return 0;
}
"""


@pytest.fixture(scope="module")
def storm(tmp_path_factory):
    """Return what compiles the storm with these flags; None where a sanitizer is not installed."""

    def build(*flags):
        folder = tmp_path_factory.mktemp("storm")
        (folder / "storm.c").write_text(STORM)
        command = [*_buffers._find_compiler(), "-std=c11", "-O2", "-pthread", f"-I{_buffers.SOURCE.parent}", *flags]
        done = subprocess.run([*command, "-o", folder / "storm", folder / "storm.c"], capture_output=True, check=False)
        return None if done.returncode else folder / "storm"

    return build


@pytest.mark.parametrize("flags", [(), ("-g", "-fsanitize=thread")], ids=["plain", "thread sanitizer"])
@pytest.mark.parametrize("is_read_late", [False, True])
def test_threads_write_at_once_and_every_call_is_read_once_or_counted(storm, flags, is_read_late):
    program = storm(*flags)
    if program is None:
        assert flags, "it does not compile"
        pytest.skip("no thread sanitizer is installed")
    done = subprocess.run([program, *["late"] * is_read_late], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr[-2_000:]
    seen, lost, wrong = map(int, done.stdout.split())
    assert (seen + lost, wrong) == (16 * 200_000, 0)
    if is_read_late:
        assert seen == 1 << 20
