"""The ring in which calls of the driver are noted: complete, in order, counted where it is full, without a race.

What a call is about comes with it: its stream, its memory, and of a launch the addresses among its arguments.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpustreamlab.backends.cuda.cupti import _buffers
from gpustreamlab.backends.cuda.cupti._arguments import CallFlag
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
from tests.helpers.driver_calls import NUMBERS
from tests.helpers.long_runs import count

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


def follow(buffers, number, function=LAUNCH, inside=lambda: None, parameters=None, sites=(ENTER, EXIT)):
    """Call back as CUPTI does at the begin and the end of a call."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(buffers.note_call.value)
    kept = ctypes.c_uint64()
    for site in sites:
        address = None if parameters is None else ctypes.addressof(parameters)
        data = CallbackData(
            callbackSite=site, functionParams=address, correlationData=ctypes.pointer(kept), correlationId=number
        )
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


def test_a_thread_that_ends_inside_a_call_is_noted_nowhere_and_holds_up_nobody():
    buffers = ActivityBuffers(buffer_bytes=64)
    thread = threading.Thread(target=follow, args=(buffers, 1), kwargs={"sites": (ENTER,)})
    thread.start()
    thread.join()
    follow(buffers, 2)
    assert buffers.take_calls()[0]["correlationId"].tolist() == [2]


def test_what_a_forked_child_notes_and_reads_is_its_own():
    buffers = ActivityBuffers(buffer_bytes=64)
    follow(buffers, 1)
    child = os.fork()
    if not child:
        follow(buffers, 2)
        os._exit(buffers.take_calls()[0]["correlationId"].tolist() != [1, 2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert buffers.take_calls()[0]["correlationId"].tolist() == [1], "memory is the child's own"


PAGE = mmap.PAGESIZE
POINTER = 0x7F00_0000_0040
UNSEEN = 0x7E00_0000_0040  # where CUDA may put memory, and nobody looked
QUESTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)


class Functions:
    """A driver that knows functions by their parameters, each an offset and a size."""

    def __init__(self, buffers, **parameters):
        self.asked = []
        self.parameters = parameters
        self.handles = {name: 0x1000 + 16 * place for place, name in enumerate(parameters)}
        self.buffers = buffers
        self._question = QUESTION(self._answer)
        buffers.begin_calls(SimpleNamespace(cuFuncGetParamInfo=self._question))
        for name in ("cuLaunchKernel", "cuLaunchKernelEx", "cuModuleUnload", "cuMemAlloc_v2"):
            buffers.set_shape(NUMBERS[name], name)

    def _answer(self, function, index, offset, size):
        self.asked.append(function)
        name = next(name for name, handle in self.handles.items() if handle == function)
        if index >= len(self.parameters[name]):
            return 1
        offset[0], size[0] = self.parameters[name][index]
        return 0

    def launch(self, name, values=None, *, extra=None, stream=0x5000):
        """Launch with the addresses of values, or with a list of markers; return the call, and its words with their places."""
        pointers = None if values is None else (ctypes.c_void_p * max(1, len(values)))(*values)
        given = ctypes.addressof(pointers) if pointers else 0
        facts = (ctypes.c_uint64 * 8)(self.handles[name], 0, 0, 0, 0, stream, given, ctypes.addressof(extra) if extra else 0)
        follow(self.buffers, 1, NUMBERS["cuLaunchKernel"], parameters=facts)
        calls, words, _ = self.buffers.take_calls()
        return calls[0], [(int(word) & (1 << 48) - 1, int(word) >> 48) for word in words]


@pytest.fixture
def at_the_end():
    """Return what puts bytes right before memory that nobody may read, and returns their address."""
    libc = ctypes.CDLL(None)
    memory = mmap.mmap(-1, 4 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + 2 * PAGE), ctypes.c_size_t(PAGE), 0) == 0

    def put(data):
        ctypes.memmove(start + 2 * PAGE - len(data), data, len(data))
        return start + 2 * PAGE - len(data)

    return put


def test_words_that_may_be_addresses_come_with_their_places_and_nothing_is_read_beyond_a_parameter(at_the_end):
    numbers = struct.pack("<QQIH", 7, POINTER, 5, 6)
    functions = Functions(ActivityBuffers(buffer_bytes=64), mixed=[(0, 4), (8, 8), (16, 22)])
    values = [at_the_end(struct.pack("<I", 9)), 0, 0]
    held = [ctypes.create_string_buffer(struct.pack("<Q", POINTER + 1)), ctypes.create_string_buffer(numbers)]
    values[1:] = [ctypes.addressof(one) for one in held]

    call, words = functions.launch("mixed", values)
    _, at_end = functions.launch("mixed", [*values[:2], at_the_end(numbers)])

    assert words == at_end == [(POINTER + 1, 1), (POINTER, 3)]
    assert (int(call["object"]), int(call["stream"])) == (functions.handles["mixed"], 0x5000)
    assert functions.asked == [functions.handles["mixed"]] * 4, "once for each parameter, and once behind the last"


def test_a_launch_with_packed_arguments_is_read_up_to_its_own_size(at_the_end):
    functions = Functions(ActivityBuffers(buffer_bytes=64), packed=[(0, 8), (8, 8), (16, 8)])
    data = struct.pack("<QQ", POINTER, POINTER + 8)
    size = ctypes.c_size_t(len(data))
    extra = (ctypes.c_void_p * 5)(1, at_the_end(data), 2, ctypes.addressof(size), 0)
    assert functions.launch("packed", extra=extra)[1] == [(POINTER, 0), (POINTER + 8, 1)]
    assert int(functions.launch("packed")[0]["flags"]) & CallFlag.OPAQUE


@pytest.mark.parametrize("sizes", [[4_096], [16] * 256, [128] * 32, [8] * 2_000], ids=["4 KiB", "256", "tensor maps", "2,000"])
def test_many_arguments_are_read_and_too_many_are_said_to_be_unknown(sizes):
    offsets = [sum(sizes[:place]) for place in range(len(sizes))]
    functions = Functions(ActivityBuffers(buffer_bytes=64), wide=list(zip(offsets, sizes, strict=True)))
    data = ctypes.create_string_buffer(struct.pack("<Q", POINTER) * (sum(sizes) // 8))
    call, words = functions.launch("wide", [ctypes.addressof(data) + offset for offset in offsets])
    is_unknown = bool(int(call["flags"]) & CallFlag.OPAQUE)
    assert (len(words), is_unknown) == ((512, False) if sum(sizes) == 4_096 else (0, True))
    assert words == [(POINTER, place) for place in range(len(words))]


def test_a_function_is_asked_for_anew_once_code_was_unloaded():
    functions = Functions(ActivityBuffers(buffer_bytes=64), one=[(0, 8)])
    value = ctypes.c_uint64(POINTER)
    for _ in range(3):
        functions.launch("one", [ctypes.addressof(value)])
    assert len(functions.asked) == 2
    follow(functions.buffers, 2, NUMBERS["cuModuleUnload"], parameters=(ctypes.c_uint64 * 1)(1))
    functions.buffers.take_calls()
    functions.parameters["one"] = [(0, 4)]
    assert functions.launch("one", [ctypes.addressof(value)])[1] == []
    assert len(functions.asked) == 4


def test_a_driver_that_tells_no_parameters_leaves_them_unknown():
    buffers = ActivityBuffers(buffer_bytes=64)
    functions = Functions(buffers, one=[(0, 8)])
    buffers.begin_calls(SimpleNamespace())
    call, words = functions.launch("one", [ctypes.addressof(ctypes.c_uint64(POINTER))])
    assert (words, int(call["flags"]) & CallFlag.OPAQUE) == ([], CallFlag.OPAQUE)


def test_a_word_where_the_reader_found_no_memory_comes_no_more_until_some_is_made_there():
    buffers = ActivityBuffers(buffer_bytes=64)
    functions = Functions(buffers, one=[(0, 8)])
    value = ctypes.c_uint64(POINTER)
    buffers.tell_memory(POINTER, 0)
    assert functions.launch("one", [ctypes.addressof(value)])[1] == []
    place = ctypes.c_uint64(POINTER - 64)
    follow(buffers, 3, NUMBERS["cuMemAlloc_v2"], parameters=(ctypes.c_uint64 * 2)(ctypes.addressof(place), 128))
    calls, _, _ = buffers.take_calls()
    assert (int(calls["object"][0]), int(calls["size"][0])) == (POINTER - 64, 128)
    assert functions.launch("one", [ctypes.addressof(value)])[1] == [(POINTER, 0)]


@pytest.mark.parametrize("name", ["cuMemcpyHtoDAsync_v2", "cuMemcpyAsync", "cuMemcpyDtoDAsync_v2"])
@pytest.mark.parametrize(
    ("words", "is_one"),
    [((7, POINTER), True), ((7, UNSEEN), True), ((7, 2_000 << 32 | 3), False), ((7, 1 << 60), False), ((0,) * 600, False)],
)
def test_addresses_among_the_few_words_that_a_copy_takes_from_the_host_are_seen(at_the_end, name, words, is_one):
    buffers = ActivityBuffers(buffer_bytes=64)
    buffers.begin_calls(SimpleNamespace())
    buffers.set_shape(NUMBERS[name], name)
    buffers.tell_memory(POINTER, 8)
    data = struct.pack(f"<{len(words)}Q", *words)
    source = at_the_end(data)
    for address, size in ((source, len(data)), (source, 8 * PAGE), (8, len(data)), (source, 4)):
        follow(buffers, 1, NUMBERS[name], parameters=(ctypes.c_uint64 * 4)(64, address, size, 0))
    calls, _, _ = buffers.take_calls()
    assert [bool(flags & CallFlag.POINTERS) for flags in calls["flags"]] == [is_one and "DtoD" not in name, False, False, False]


STORM = r"""
#include "callbacks.c"
#include <stdio.h>

#ifndef THREADS
#define THREADS 16
#endif
enum { EACH = CALLS_MADE / THREADS, COPIES = 277, LAUNCHES = 307, UNLOADS = 15, HANDLES = 97 };
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

static int is_captured;

static int capturing(void *stream, int *state)
{
    (void)stream, *state = is_captured;
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
        if (turn % 2000 == 0) {
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
    struct driver asked = {.function_parameter = parameter, .stream_flags = flags_of, .is_capturing = capturing};
    if (set_up_calls())
        return 1;
    set_driver(&asked);
    begin_calls();
    is_captured = 1; /* a stream is not asked for its flags meanwhile */
    wrong += stream_flag(77) != 0;
    is_captured = 0;
    wrong += stream_flag(77) != NON_BLOCKING;
    set_shape(COPIES, (struct shape){.kind = COPY, .stream = 4, .object = 1, .size = 3, .other = 2});
    set_shape(LAUNCHES, (struct shape){.kind = LAUNCH, .stream = 6, .object = 1, .size = 7, .other = 8});
    set_shape(UNLOADS, (struct shape){.kind = UNLOAD});
    tell_memory(1, word(CALLS_MADE, 0)); /* not more: each of its pages takes time */
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


CALLS_MADE = count(160_000, 1_600_000)
RING, SMALL_RING = "CALLS = 1 << 20", "CALLS = 1 << 16"
"""The ring's size; a storm has a smaller one, which fewer calls fill again and again."""


@pytest.fixture(scope="module", params=["64 threads", "thread sanitizer", "address sanitizer"])
def storm(request, tmp_path_factory):
    """Return the compiled storm."""
    flags = {
        "64 threads": ["-DTHREADS=64"],
        "thread sanitizer": ["-g", "-fsanitize=thread"],
        "address sanitizer": ["-g", ADDRESSES, "-fno-sanitize-recover=all"],
    }[request.param]
    folder = tmp_path_factory.mktemp("storm")
    source = _buffers.SOURCES[0].read_text()
    assert RING in source
    (folder / "callbacks.c").write_text(source.replace(RING, SMALL_RING))
    (folder / "storm.c").write_text(STORM)
    command = [*_buffers._find_compiler(), "-std=c11", "-O1", "-pthread", f"-DCALLS_MADE={CALLS_MADE}", *flags]
    done = subprocess.run([*command, "-o", folder / "storm", folder / "storm.c"], capture_output=True, check=False)
    if done.returncode:
        assert "-g" in flags, "it does not compile"
        pytest.skip("no such sanitizer is installed")
    return folder / "storm"


ADDRESSES = "-fsanitize=address,undefined"


@pytest.mark.parametrize("is_read_late", [False, True])
def test_threads_write_at_once_and_every_call_is_read_once_or_counted(storm, is_read_late):
    done = subprocess.run([storm, *["late"] * is_read_late], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr[-2_000:]
    seen, lost, wrong = map(int, done.stdout.split())
    assert (seen + lost, wrong) == (CALLS_MADE, 0)
    if is_read_late:
        assert lost > 0


TESTS_WITH = """
import sys
import pytest
from gpustreamlab.backends.cuda.cupti import _buffers
_buffers._FLAGS += ("-O1", "-g", "-fno-sanitize-recover=all", sys.argv[1])
plain = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
sys.exit(pytest.main([*plain, *sys.argv[2:]]))
"""


def test_calls_are_read_without_a_byte_out_of_place():
    """The tests of accesses once more, with AddressSanitizer and UndefinedBehaviorSanitizer in what reads them."""
    asked = [*_buffers._find_compiler(), "-print-file-name=libasan.so"]
    runtime = Path(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())
    if not runtime.is_file():
        pytest.skip("no such sanitizer is installed")
    tests = Path(__file__).with_name("test_accesses.py")
    done = subprocess.run(
        [sys.executable, "-c", TESTS_WITH, ADDRESSES, str(tests)],
        # What loads the library is not made for the sanitizer, which is brought in first; and Python leaks by design.
        env=os.environ | {"LD_PRELOAD": str(runtime), "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert " passed" in done.stdout
