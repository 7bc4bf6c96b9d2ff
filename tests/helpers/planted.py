"""Programs in which work of two streams does not overlap for one known reason, and programs in which nothing is wrong.

Each takes an open session of any backend that captures kernels and calls, and leaves its work enqueued.
"""

from __future__ import annotations

import random
import threading

import numpy as np

from gpustreamlab import Session, workloads
from gpustreamlab.typing import Cause

MS = 1_000_000
MB = 1 << 20


def pair(lab, **options):
    """Make the two streams of a program."""
    return lab.stream("a", **options), lab.stream("b", **options)


def record(program):
    """Run a program on the simulated device and return its trace, with kernels and calls of the host."""
    with Session("sim", capture="ranges") as lab:
        lab.capture("kernels", host=True)
        program(lab)
        lab.synchronize()
        return lab.trace


def needed_and_needless_waits(count=1 << 16):
    """Record one wait that data need, and one that none need, with arrays of so many numbers."""
    with Session("sim") as lab:
        x = lab.xp.zeros(count, "f4")
        lab.synchronize()
        lab.clear()
        work_behind_waits(lab, x)
        return lab.trace


def work_behind_waits(lab, x):
    """Let 'b' wait for what 'a' did to an array that it uses, and 'c' for 'b', of which it uses nothing."""
    for name in "abc":
        lab.stream(name)
    with lab.on("a", "fill"):
        x += 1
    lab.stream("b").wait(lab.stream("a"))
    with lab.on("b", "use"):
        x * 2
    lab.stream("c").wait(lab.stream("b"))
    with lab.on("c", "other"):
        lab.xp.ones(len(x), "f4")
    lab.synchronize()


def host_arrays(lab, count, size_bytes, *, pinned):
    """Return host arrays of bytes, each with a device array of its size."""
    make = lab.memory.pinned_empty if pinned else np.empty
    hosts = [make(size_bytes, np.uint8) for _ in range(count)]
    for host in hosts:
        host[:] = 1
    return hosts, [lab.xp.empty(size_bytes, np.uint8) for _ in range(count)]


def wait_for_device(lab, ms=2):
    pair(lab)
    workloads.spin(lab, ms * MS, stream="a")
    lab.synchronize()
    workloads.spin(lab, ms * MS, stream="b")


def wait_for_device_in_a_loop(lab):
    pair(lab)
    for _ in range(4):
        workloads.spin(lab, MS, stream="a")
        lab.synchronize()
        workloads.spin(lab, MS // 2, stream="b")
        lab.synchronize()


def wait_for_device_in_a_thread(lab):
    pair(lab)

    def work():
        workloads.spin(lab, MS, stream="a")
        lab.synchronize()
        workloads.spin(lab, MS, stream="b")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def wait_for_stream(lab, ms=2):
    first, _ = pair(lab)
    workloads.spin(lab, ms * MS, stream="a")
    first.synchronize()
    workloads.spin(lab, ms * MS, stream="b")


def wait_for_event(lab):
    first, _ = pair(lab)
    workloads.spin(lab, MS, stream="a")
    first.record().synchronize()
    workloads.spin(lab, MS, stream="b")


def wait_for_stream_in_ranges(lab):
    first, _ = pair(lab)
    for _ in range(3):
        with lab.on("a", "load"):
            workloads.spin(lab, 2 * MS)
        first.synchronize()
        with lab.on("b", "step"):
            workloads.spin(lab, MS)


def event_wait(lab, ms=2):
    first, second = pair(lab)
    workloads.spin(lab, ms * MS, stream="a")
    second.wait(first.record())
    workloads.spin(lab, ms * MS, stream="b")


def event_wait_over_a_third_stream(lab):
    first, second = pair(lab)
    third = lab.stream("c")
    workloads.spin(lab, 2 * MS, stream="a")
    third.wait(first.record())
    workloads.spin(lab, 20_000, stream="c")
    second.wait(third.record())
    workloads.spin(lab, 2 * MS, stream="b")


def event_wait_in_a_ping_pong(lab):
    first, second = pair(lab)
    for _ in range(5):
        workloads.spin(lab, MS, stream="a")
        second.wait(first.record())
        workloads.spin(lab, MS, stream="b")
        first.wait(second.record())


def copies_to_the_device(lab, size_bytes=64 * MB):
    pair(lab)
    hosts, arrays = host_arrays(lab, 2, size_bytes, pinned=True)
    lab.synchronize()
    for name, host, array in zip("ab", hosts, arrays, strict=True):
        workloads.copy_to_device(lab, host, array, stream=name)


def copies_to_the_host(lab):
    pair(lab)
    hosts, arrays = host_arrays(lab, 2, 32 * MB, pinned=True)
    lab.synchronize()
    for name, host, array in zip("ab", hosts, arrays, strict=True):
        workloads.copy_to_host(lab, array, host, stream=name)


def copies_in_pieces(lab):
    pair(lab)
    hosts, arrays = host_arrays(lab, 8, 16 * MB, pinned=True)
    lab.synchronize()
    for place, (host, array) in enumerate(zip(hosts, arrays, strict=True)):
        workloads.copy_to_device(lab, host, array, stream="ab"[place % 2])


def pageable_copy_to_the_device(lab, size_bytes=64 * MB):
    pair(lab)
    (host,), (array,) = host_arrays(lab, 1, size_bytes, pinned=False)
    workloads.copy_to_device(lab, host, array, stream="a")
    workloads.spin(lab, 2 * MS, stream="b")


def pageable_copy_to_the_host(lab):
    pair(lab)
    (host,), (array,) = host_arrays(lab, 1, 64 * MB, pinned=False)
    lab.synchronize()
    workloads.copy_to_host(lab, array, host, stream="a")
    workloads.spin(lab, 2 * MS, stream="b")


def pageable_copies_in_a_loop(lab):
    pair(lab)
    hosts, arrays = host_arrays(lab, 2, 32 * MB, pinned=False)
    lab.synchronize()
    for host, array in zip(hosts, arrays, strict=True):
        workloads.copy_to_device(lab, host, array, stream="a")
        workloads.spin(lab, 2 * MS, stream="b")
        lab.synchronize()


def read_a_result_between(lab):
    pair(lab)
    with lab.on("a"):
        array = lab.xp.ones(1 << 10)
    lab.synchronize()
    for _ in range(3):
        workloads.spin(lab, 2 * MS, stream="a")
        with lab.on("a"):
            array.get()
        workloads.spin(lab, MS, stream="b")


def card_filled(lab, ms=2):
    pair(lab)
    workloads.spin_card(lab, ms * MS, stream="a")
    workloads.spin_card(lab, ms * MS, stream="b")


def card_filled_by_many_blocks(lab):
    pair(lab)
    workloads.spin(lab, MS, blocks=lab.device.sm_count * 64, stream="a")
    workloads.spin(lab, MS, blocks=lab.device.sm_count * 64, stream="b")


def card_filled_in_a_loop(lab):
    pair(lab)
    for _ in range(3):
        workloads.spin_card(lab, MS, stream="a")
        workloads.spin_card(lab, MS, stream="b")


def partition_filled(lab, sm_count=32, ms=1):
    lab.partition(small=sm_count)
    granted = lab.layout["small"].granted_sms
    pair(lab, partition="small")
    workloads.spin(lab, ms * MS, blocks=granted * 64, stream="a")
    workloads.spin(lab, ms * MS, blocks=granted * 64, stream="b")


def partition_filled_more(lab):
    partition_filled(lab, 16, 2)


def partition_filled_twice(lab):
    partition_filled(lab, 64)


def tiny_kernels(lab, count=200, duration_ns=1_000):
    pair(lab)
    for _ in range(count):
        workloads.spin(lab, duration_ns, stream="a")
        workloads.spin(lab, duration_ns, stream="b")


def tiny_kernels_one_stream_after_the_other(lab):
    pair(lab)
    for name in "ab":
        for _ in range(200):
            workloads.spin(lab, 1_000, stream=name)


def tiny_kernels_with_ranges(lab):
    pair(lab)
    for _ in range(100):
        for name in "ab":
            with lab.on(name, "step"):
                workloads.spin(lab, 1_500)


def lower_priority(lab, ms=1):
    """What is launched later goes first: both wait until "c" leaves the card."""
    lab.stream("a", priority=-1)
    lab.stream("b")
    lab.stream("c", priority=-2)
    workloads.spin_card(lab, ms * MS, stream="c")
    workloads.spin_card(lab, ms * MS, stream="b")
    workloads.spin_card(lab, ms * MS, stream="a")


def lower_priority_for_long(lab):
    lower_priority(lab, ms=6)


def lower_priority_in_a_thread(lab):
    thread = threading.Thread(target=lower_priority, args=(lab, 2))
    thread.start()
    thread.join()


def another_stream(lab, ms=2):
    pair(lab)
    with lab.on("a", "load"):
        workloads.spin(lab, ms * MS)
    with lab.on("b", "step"):
        workloads.spin(lab, ms * MS, stream="a")


def another_stream_in_a_loop(lab):
    pair(lab)
    for _ in range(3):
        with lab.on("a", "load"):
            workloads.spin(lab, MS)
        with lab.on("b", "step"):
            workloads.spin(lab, MS, stream="a")


def another_stream_in_a_thread(lab):
    thread = threading.Thread(target=another_stream, args=(lab, 3))
    thread.start()
    thread.join()


PLANTED = {
    Cause.HOST_SYNC_DEVICE: [wait_for_device, wait_for_device_in_a_loop, wait_for_device_in_a_thread],
    Cause.HOST_SYNC_STREAM: [wait_for_stream, wait_for_event, wait_for_stream_in_ranges, read_a_result_between],
    Cause.EVENT_WAIT: [event_wait, event_wait_over_a_third_stream, event_wait_in_a_ping_pong],
    Cause.COPY_ENGINE: [copies_to_the_device, copies_to_the_host, copies_in_pieces],
    Cause.PAGEABLE_COPY: [pageable_copy_to_the_device, pageable_copy_to_the_host, pageable_copies_in_a_loop],
    Cause.GRID_FILLS_DEVICE: [card_filled, card_filled_by_many_blocks, card_filled_in_a_loop],
    Cause.PARTITION_SMALL: [partition_filled, partition_filled_more, partition_filled_twice],
    Cause.SAME_SM_PRIORITY: [lower_priority, lower_priority_for_long, lower_priority_in_a_thread],
    Cause.OTHER_STREAM: [another_stream, another_stream_in_a_loop, another_stream_in_a_thread],
    Cause.LAUNCH_BOUND: [tiny_kernels, tiny_kernels_one_stream_after_the_other, tiny_kernels_with_ranges],
}
"""Programs by the cause that must come first."""


def beside(lab):
    pair(lab)
    for _ in range(3):
        workloads.spin(lab, 2 * MS, stream="a")
        workloads.spin(lab, 2 * MS, stream="b")


def copy_beside_compute(lab):
    pair(lab)
    hosts, arrays = host_arrays(lab, 1, 64 * MB, pinned=True)
    lab.synchronize()
    workloads.copy_to_device(lab, hosts[0], arrays[0], stream="a")
    workloads.spin(lab, 2 * MS, stream="b")


def both_directions(lab):
    pair(lab)
    hosts, arrays = host_arrays(lab, 2, 64 * MB, pinned=True)
    lab.synchronize()
    workloads.copy_to_device(lab, hosts[0], arrays[0], stream="a")
    workloads.copy_to_host(lab, arrays[1], hosts[1], stream="b")


def partitions_beside(lab):
    lab.partition(left=64, right=32)
    for name, partition in (("a", "left"), ("b", "right")):
        lab.stream(name, partition=partition)
    for _ in range(3):
        for name, partition in (("a", "left"), ("b", "right")):
            workloads.spin(lab, MS, blocks=lab.layout[partition].granted_sms, stream=name)


def one_stream(lab):
    lab.stream("a")
    for _ in range(5):
        workloads.spin(lab, MS, stream="a")


CLEAN = [beside, copy_beside_compute, both_directions, partitions_beside, one_stream]


def clean_program(seed):
    """Return a program of two to four streams that overlap: short grids, one copy a direction, no waits."""
    chance = random.Random(seed)

    def program(lab):
        names = "abcd"[: chance.randint(2, 4)]
        for name in names:
            lab.stream(name, priority=chance.choice((0, -1)))
        hosts, arrays = host_arrays(lab, 2, chance.choice((8, 32)) * MB, pinned=True)
        lab.synchronize()
        for turn in range(chance.randint(1, 6)):
            for name in names:
                with lab.on(name, f"step {turn}"):
                    workloads.spin(lab, chance.randint(200_000, 2_000_000), blocks=chance.choice((1, 4, 16)))
                    if not turn and name in "ab":
                        copy = workloads.copy_to_device if name == "a" else workloads.copy_to_host
                        copy(lab, *((hosts[0], arrays[0]) if name == "a" else (arrays[1], hosts[1])))

    return program
