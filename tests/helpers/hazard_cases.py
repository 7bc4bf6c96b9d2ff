"""Programs with a planted hazard, and clean ones: what `lab.memory.hazards` says of each. Also the table of the docs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

RAW, WAR, WAW, UAF = "read-after-write", "write-after-read", "write-after-write", "use-after-free"


class Case(NamedTuple):
    """A program and what is found in it."""

    run: Callable
    does: str
    found: tuple[str, ...]
    missing: str
    """The wait that is missing, as the first row says."""
    only_simulated: bool = False
    waits_help: bool = True
    """Whether a wait makes it right."""
    is_harmless: bool = True
    """Whether a GPU survives it: no memory is read that the driver may have unmapped."""


CASES: dict[str, Case] = {}
"""By name, planted ones first."""
COMPUTE_WAITS = "lab.stream('compute').wait(lab.stream('copy'))"
COPY_WAITS = "lab.stream('copy').wait(lab.stream('compute'))"


def case(does, *found, missing="", only_simulated=False, waits_help=True, is_harmless=True):
    """Add a program to the table."""

    def add(run):
        CASES[run.__name__] = Case(run, does, found, missing, only_simulated, waits_help, is_harmless)
        return run

    return add


def lanes(lab, *names):
    """Make the streams of a case."""
    return [lab.stream(name) for name in names or ("copy", "compute")]


def upload(lab, lane="copy", size=1_024):
    """Make an array on a lane."""
    with lab.on(lane, "upload"):
        return lab.xp.ones(size)


def double(lab, x, lane="compute", label="double"):
    """Read an array on a lane, and make another."""
    with lab.on(lane, label):
        return x * 2


def next_on_copy(lab):
    """Make the next array, in memory that may have been another's."""
    with lab.on("copy", "next"):
        return lab.xp.zeros(1_024)


@case("reads on another stream, without a wait", RAW, missing=COMPUTE_WAITS)
def read_without_wait(lab):
    lanes(lab)
    x = upload(lab)
    return double(lab, x)


@case("overwrites what another stream still reads", WAR, missing=COPY_WAITS)
def overwrite_while_read(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    y = double(lab, x)
    with lab.on("copy", "next"):
        x.fill(2)
    return y


@case("writes on two streams, in no order", WAW, missing=COMPUTE_WAITS)
def written_twice(lab):
    lanes(lab)
    x = upload(lab)
    with lab.on("compute", "reset"):
        x.fill(0)


@case("the wrong stream waits", RAW, missing=COMPUTE_WAITS)
def wait_on_wrong_lane(lab):
    copy, _, other = lanes(lab, "copy", "compute", "other")
    x = upload(lab)
    other.wait(copy)
    return double(lab, x)


@case("waits for an event that was recorded before the write", RAW, missing=COMPUTE_WAITS)
def event_too_early(lab):
    copy, compute = lanes(lab)
    with copy.record() as event:
        x = upload(lab)
        compute.wait(event)
    return double(lab, x)


@case("waits for an event that was never recorded", RAW, missing=COMPUTE_WAITS)
def event_never_recorded(lab):
    _, compute = lanes(lab)
    x = upload(lab)
    with lab.event() as event:
        compute.wait(event)
    return double(lab, x)


@case("waits behind the read instead of before it", RAW, missing=COMPUTE_WAITS)
def wait_too_late(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    y = double(lab, x)
    compute.wait(copy)
    return y


@case(
    "one of two readers waits; the write waits for neither",
    WAR,
    WAR,
    RAW,
    missing="lab.stream('second').wait(lab.stream('copy'))",
)
def two_readers(lab):
    copy, first, _ = lanes(lab, "copy", "first", "second")
    x = upload(lab)
    first.wait(copy)
    for lane in ("first", "second"):
        with lab.on(lane, lane):
            x.sum()
    with lab.on("copy", "next"):
        x.fill(2)


@case("views that share elements: every second one and the first half", RAW, missing=COMPUTE_WAITS)
def overlapping_views(lab):
    lanes(lab)
    x = upload(lab)
    lab.synchronize()
    with lab.on("copy", "even"):
        x[::2] = 0
    with lab.on("compute", "half"):
        return x[:512] * 2


@case("changes an array in place, on another stream than the one that made it", RAW, missing=COMPUTE_WAITS)
def in_place(lab):
    lanes(lab)
    x = upload(lab)
    with lab.on("compute", "increment"):
        x += 1


@case("out= of a function is still read by another stream", WAR, missing=COPY_WAITS)
def out_argument(lab):
    lanes(lab)
    x, y = upload(lab), upload(lab)
    lab.synchronize()
    z = double(lab, y)
    with lab.on("copy", "add"):
        lab.xp.add(x, x, out=y)
    return z


@case("a broadcast view of one row is read while the row is written", RAW, missing=COMPUTE_WAITS)
def broadcast(lab):
    lanes(lab)
    x = upload(lab)
    row = lab.xp.broadcast_to(x, (16, 1_024))
    with lab.on("compute", "rows"):
        return row + 1


@case(
    "two branches of a diamond are joined, but only one is waited for",
    RAW,
    missing="lab.stream('join').wait(lab.stream('right'))",
)
def half_diamond(lab):
    top, left, right, join = lanes(lab, "top", "left", "right", "join")
    x = upload(lab, "top")
    left.wait(top)
    right.wait(top)
    parts = []
    for lane in ("left", "right"):
        with lab.on(lane, lane):
            parts.append(x * 2)
    join.wait(left)
    with lab.on("join", "join"):
        return parts[0] + parts[1]


@case(
    "an array goes while another stream still reads it, and its memory is handed out again",
    UAF,
    missing=COPY_WAITS,
)
def use_after_free(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    y = double(lab, x)
    del x
    return y, next_on_copy(lab)


@case("memory that a stream's pool hands out again is written by another stream first", UAF, missing=COMPUTE_WAITS)
def fresh_memory_elsewhere(lab):
    lanes(lab)
    x = upload(lab)
    del x
    with lab.on("copy", "buffer"):
        buffer = lab.xp.empty(1_024)
    with lab.on("compute", "fill"):
        buffer.fill(0)


@case("made with no stream selected, and read on a stream", RAW, missing="lab.synchronize()")
def no_lane_selected(lab):
    lanes(lab)
    x = lab.xp.ones(1_024)
    return double(lab, x)


@case("read back with no stream selected, without waiting for the stream", RAW, missing="lab.stream('copy').synchronize()")
def read_back_too_early(lab):
    lanes(lab)
    return upload(lab).get()


@case("an index array chooses elements that another stream writes: they may be the same", RAW, missing=COMPUTE_WAITS)
def index_array(lab):
    lanes(lab)
    x = upload(lab)
    lab.synchronize()
    with lab.on("copy", "front"):
        x[:8] = 0
    with lab.on("compute", "gather"):
        return x[[100, 200]]


@case(
    "page-locked host memory is filled on one stream and uploaded on another", RAW, missing=COMPUTE_WAITS, only_simulated=True
)
def pinned_buffer(lab):
    lanes(lab)
    x = upload(lab)
    host = lab.memory.pinned_empty(1_024)
    with lab.on("copy", "download"):
        x.get(out=host, blocking=False)
    with lab.on("compute", "upload again"):
        return lab.xp.asarray(host)


@case(
    "a stream's scratch is handed out again while another stream still reads what was in it",
    WAR,
    missing=COPY_WAITS,
    only_simulated=True,
)
def scratch_too_early(lab):
    copy, compute = lanes(lab)
    with lab.on("copy", "first"), copy.scratch(4_096) as work:
        x = work.array(512, "f8")
        x.fill(1)
        compute.wait(copy)
        with lab.on("compute", "read"):
            y = x * 2
    with lab.on("copy", "second"), copy.scratch(4_096) as work:
        work.array(512, "f8").fill(2)
    return y


@case(
    "an array in scratch is used on its stream after the scratch was given back, and given out again",
    UAF,
    missing="work = lab.stream('copy').scratch(4096)",
    waits_help=False,
)
def scratch_after_its_end(lab):
    (copy,) = lanes(lab, "copy")
    with lab.on("copy", "first"), copy.scratch(4_096) as work:
        x = work.array(512, "f8")
        x.fill(1)
    with lab.on("copy", "second"), copy.scratch(4_096) as work:
        work.array(512, "f8").fill(2)
    with lab.on("copy", "late"):
        return x * 2


@case(
    "an array in scratch is used after its stream was closed",
    UAF,
    missing="lab.stream('copy').close()",
    waits_help=False,
    is_harmless=False,
)
def scratch_of_a_closed_lane(lab):
    copy, _ = lanes(lab)
    work = copy.scratch(4_096)
    with lab.on("copy", "fill"):
        x = work.array(512, "f8")
        x.fill(1)
    copy.close()
    with lab.on("compute", "late"):
        return x * 2


@case("an array in scratch keeps the scratch where no `with` gives it back")
def scratch_kept_by_an_array(lab):
    (copy,) = lanes(lab, "copy")
    with lab.on("copy", "first"):
        x = copy.scratch(4_096).array(512, "f8")
        x.fill(1)
    with lab.on("copy", "second"), copy.scratch(4_096) as work:
        work.array(512, "f8").fill(2)
    with lab.on("copy", "late"):
        return x * 2


@case("another thread reads on its stream, without a wait", RAW, missing=COMPUTE_WAITS)
def other_thread(lab):
    lanes(lab)
    x = upload(lab)

    def consume():
        with lab.on("compute", "double"):
            x.sum()

    in_thread(consume)


# Clean ones


@case("the wait is there")
def with_wait(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    return double(lab, x)


@case("the reader waits for an event behind the write")
def with_event(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    with copy.record() as event:
        with lab.on("copy", "later"):
            y = lab.xp.ones(8)
        compute.wait(event)
    with lab.on("compute", "double"):
        return x * 2, y


@case("the host waits for the stream instead")
def host_waits_for_lane(lab):
    copy, _ = lanes(lab)
    x = upload(lab)
    copy.synchronize()
    return double(lab, x)


@case("the host waits for the event instead")
def host_waits_for_event(lab):
    copy, _ = lanes(lab)
    x = upload(lab)
    with copy.record() as event:
        event.synchronize()
    return double(lab, x)


@case("lab.synchronize() in between")
def device_waits(lab):
    lanes(lab)
    x = lab.xp.ones(1_024)
    lab.synchronize()
    return double(lab, x)


@case("a value is read back on the stream: the host has waited for all that came before")
def value_read_back(lab):
    lanes(lab)
    x = upload(lab)
    with lab.on("copy", "check"):
        float(x[0])
    return double(lab, x)


@case("two readers, in no order between them")
def two_clean_readers(lab):
    copy, first, second = lanes(lab, "copy", "first", "second")
    x = upload(lab)
    for lane in (first, second):
        lane.wait(copy)
        with lab.on(lane, "read"):
            x.sum()


@case("two streams write the two halves of one array")
def disjoint_halves(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    with lab.on("copy", "first half"):
        x[:512] = 1
    with lab.on("compute", "second half"):
        x[512:] = 2


@case("two streams write the even and the odd elements")
def strided_views(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    with lab.on("copy", "even"):
        x[::2] = 1
    with lab.on("compute", "odd"):
        x[1::2] = 2


@case("the order goes over a third stream")
def chain(lab):
    copy, middle, compute = lanes(lab, "copy", "middle", "compute")
    x = upload(lab)
    middle.wait(copy)
    compute.wait(middle)
    return double(lab, x)


@case("both branches of a diamond are waited for")
def diamond(lab):
    top, left, right, join = lanes(lab, "top", "left", "right", "join")
    x = upload(lab, "top")
    parts = []
    for lane in (left, right):
        lane.wait(top)
        with lab.on(lane, lane.name):
            parts.append(x * 2)
        join.wait(lane)
    with lab.on("join", "join"):
        return parts[0] + parts[1]


@case("stream.hold(x) keeps the memory until the other stream is done with it")
def held(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    y = double(lab, x)
    compute.hold(x)
    del x
    return y, next_on_copy(lab)


@case("stream.use(x) waits for the writer and keeps the memory")
def used(lab):
    _, compute = lanes(lab)
    x = upload(lab)
    with lab.on("compute", "double"):
        y = compute.use(x) * 2
    del x
    return y, next_on_copy(lab)


@case("memory is handed out again on a stream that waits for its last user first")
def freed_and_waited_for(lab):
    copy, compute = lanes(lab)
    x = upload(lab)
    compute.wait(copy)
    y = double(lab, x)
    del x
    copy.wait(compute)
    return y, next_on_copy(lab)


@case("memory is handed out again on the only stream that used it")
def freed_on_one_lane(lab):
    lanes(lab)
    with lab.on("copy", "loop"):
        for _ in range(4):
            x = lab.xp.ones(1_024)
            del x


@case("the reader moves to a partition in between: a move waits")
def moved_lane(lab):
    lanes(lab)
    with lab.on("compute", "make"):
        x = lab.xp.ones(1_024)
    lab.partition(fast=16, rest="rest")
    lab.stream("compute", partition="fast")
    y = double(lab, x)
    lab.stream("compute", partition=None)
    return y


@case("the writer's stream was closed: closing waits")
def closed_lane(lab):
    copy, _ = lanes(lab)
    x = upload(lab)
    copy.close()
    return double(lab, x)


@case("two threads on one stream")
def one_lane_two_threads(lab):
    lanes(lab)
    x = upload(lab)

    def consume():
        with lab.on("copy", "double"):
            x.sum()

    in_thread(consume)


@case("work with no stream selected only")
def no_lane_at_all(lab):
    x = lab.xp.ones(8)
    x += 1


@case("an empty slice conflicts with nothing")
def empty_slice(lab):
    lanes(lab)
    x = upload(lab)
    with lab.on("compute", "nothing"):
        return x[:0] * 2


def in_thread(work):
    """Run work in another thread, one after the other."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
