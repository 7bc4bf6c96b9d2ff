"""The ring in which calls of the driver are noted: complete, in order, counted where it is full, without a race.

What a call is about comes with it: its stream, its memory, and of a launch the addresses among its arguments.
"""

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

    calls, words, lost_count = buffers.take_calls()

    assert (calls["correlationId"].tolist(), calls["cbid"].tolist(), lost_count) == ([41, 42], [LAUNCH, 126], 0)
    assert len(words) == 0
    assert calls["threadId"].tolist() == [threading.get_ident() & 0xFFFF_FFFF] * 2
    assert times[0] <= calls["start"][0] <= times[1] <= calls["end"][0] <= times[2]
    assert buffers.call_count == len(buffers.take_calls()[0]) == 0


STORM = r"""
#include "callbacks.c"
#include <stdio.h>

enum { THREADS = 16, EACH = 100000, COPIES = 277, LAUNCHES = 307, UNLOADS = 15, HANDLES = 97 };
static _Atomic int running = THREADS;

/* Functions of as many parameters as the last digit of their handle; each is a structure of two words. */
static int parameter(void *function, size_t index, size_t *offset, size_t *size)
{
    *offset = index * 16, *size = 16;
    return index >= (uintptr_t)function / 16 % 10;
}

static int flags_of(void *stream, unsigned *flags)
{
    *flags = (uintptr_t)stream & 1;
    return 0;
}

static uint64_t word(uint32_t number, uint64_t i)
{
    return ((uint64_t)number + 1) << 24 | i;
}

static void *work(void *argument)
{
    uint64_t own, arguments[32];
    void *given[16];
    struct callback_data data = {.own = &own};
    for (uint32_t turn = 0; turn < EACH; turn++) {
        uint32_t number = data.number = (uint32_t)(uintptr_t)argument * EACH + turn;
        int function = number % 3 == 0 ? COPIES : number % 3 == 1 ? LAUNCHES : 5;
        uint64_t copy[] = {word(number, 0), word(number, 1), number, 64 + (number % 300) * 2 + number % 2};
        uint64_t launch[] = {(1 + number % HANDLES) * 16, 0, 0, 0, 0, copy[3], (uintptr_t)given, 0};
        for (uint64_t i = 0; i < 32; i++)
            arguments[i] = i % 2 ? word(number, i) : 7;
        for (int i = 0; i < 16; i++)
            given[i] = arguments + 2 * i;
        data.parameters = function == COPIES ? copy : function == LAUNCHES ? launch : NULL;
        if (turn % 20000 == 0) {
            data.site = 0;
            note_call(0, 1, UNLOADS, &data);
        }
        data.site = 0;
        note_call(0, 1, function, &data);
        data.site = 1;
        note_call(0, 1, function, &data);
    }
    running--;
    return 0;
}

static int is_wrong(const struct call *call, const uint64_t *words)
{
    uint32_t number = call->number, kind = number % 3;
    int wrong = call->start_ns > call->end_ns || !call->start_ns;
    uint64_t expected = kind == 0 ? 2 : kind == 1 ? (1 + number % HANDLES) % 10 : 0;
    if (call->word_count != expected || call->function != (kind == 0 ? COPIES : kind == 1 ? LAUNCHES : 5))
        return 1;
    if (kind == 0)
        wrong += words[0] != word(number, 1) || words[1] != number || call->object != word(number, 0) || call->size != number;
    for (uint64_t i = 0; kind == 1 && i < expected; i++)
        wrong += words[i] != (word(number, 2 * i + 1) | (2 * i + 1) << ADDRESS_BITS);
    if (kind < 2)
        wrong += call->flags != ((number % 2 ? NON_BLOCKING : BLOCKING) | (kind && !expected ? OPAQUE : 0));
    return wrong;
}

/* Calls of many threads, read meanwhile, or afterwards where there is an argument; print how many were read, lost and wrong. */
int main(int count, char **arguments)
{
    (void)arguments;
    int slow = count > 1;
    static struct call read[4096];
    static uint64_t words[16384];
    static int64_t newest[THREADS];
    uint64_t seen = 0, wrong = 0, got;
    pthread_t threads[THREADS];
    struct driver asked = {.function_parameter = parameter, .stream_flags = flags_of};
    if (set_up_calls())
        return 1;
    set_driver(&asked);
    begin_calls();
    set_shape(COPIES, (struct shape){.kind = COPY, .stream = 4, .object = 1, .size = 3, .other = 2});
    set_shape(LAUNCHES, (struct shape){.kind = LAUNCH, .stream = 6, .object = 1, .size = 7, .other = 8});
    set_shape(UNLOADS, (struct shape){.kind = UNLOAD});
    tell_memory(1, (uint64_t)1 << 47);
    for (uintptr_t i = 0; i < THREADS; i++) {
        newest[i] = -1;
        pthread_create(threads + i, 0, work, (void *)i);
    }
    if (slow)
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], 0);
    for (;;) {
        int is_last = !running;
        while ((got = take_calls(read, 4096, words, 16384))) {
            const uint64_t *own = words;
            for (uint64_t i = 0; i < got; own += read[i].word_count, i++, seen++) {
                uint32_t who = read[i].number / EACH;
                wrong += is_wrong(read + i, own);
                wrong += (int64_t)read[i].number <= newest[who];
                newest[who] = read[i].number;
            }
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
    assert (seen + lost, wrong) == (16 * 100_000, 0)
    if is_read_late:
        assert lost > 0
