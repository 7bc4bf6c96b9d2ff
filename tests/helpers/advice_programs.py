"""Programs as users write them (`bad`), and what a good engineer would make of them (`good`), with the causes that are right.

Each program takes a session and which of both it is to be, prepares its data, and gives back the work that is measured. Without
a cause it is as good as it gets.
"""

from __future__ import annotations

import threading

import numpy as np

from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin

PAIRS = {}
"""Program and right causes, by name."""
HOST_SYNC = (Cause.HOST_SYNC_STREAM, Cause.HOST_SYNC_DEVICE)


def pair(*codes):
    def add(program):
        PAIRS[program.__name__] = (program, codes)
        return program

    return add


class Steps:
    """What a pipeline of three streams needs: pinned input and output, device arrays, weights."""

    def __init__(self, lab, count=8, side=640, buffers=None, names=("up", "comp", "down")):
        self.lab, self.count, self.kept = lab, count, []
        self.up, self.comp, self.down = (lab.stream(name) for name in names)
        self.source = lab.memory.pinned_empty((count, side, side), "f4")
        self.sink = lab.memory.pinned_empty((count, side, side), "f4")
        self.source[...] = 1
        self.weights = lab.xp.ones((side, side), "f4")
        self.arrays = [lab.xp.empty((side, side), "f4") for _ in range(buffers or count)]

    def upload(self, i, source=None, place=None):
        with self.lab.on(self.up, "up"):
            self.arrays[i if place is None else place].set(self.source[i] if source is None else source)

    def product(self, i):
        with self.lab.on(self.comp, "mm"):
            self.kept.append(self.arrays[i] @ self.weights)

    def download(self, i, **options):
        with self.lab.on(self.down, "dn"):
            self.kept[-1].get(**({"out": self.sink[i], "blocking": False} | options))

    def step(self, i, place=None):
        """Do all of one step, as it should be."""
        self.upload(i, place=place)
        self.comp.wait(self.up)
        self.product(i if place is None else place)
        self.down.wait(self.comp)
        self.download(i)


# The programs of the issue


@pair(Cause.PAGEABLE_COPY)
def pageable_upload(lab, which):
    steps = Steps(lab)
    source = steps.source if which == "good" else np.ones((8, 640, 640), "f4")

    def work():
        for i in range(8):
            steps.upload(i, source[i])
            steps.comp.wait(steps.up)
            steps.product(i)

    return work


@pair(*HOST_SYNC)
def synchronize_in_the_loop(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            if which == "good":
                steps.step(i)
                continue
            steps.upload(i)
            steps.up.synchronize()
            steps.product(i)
            steps.comp.synchronize()
            steps.download(i)
            steps.down.synchronize()

    return work


@pair(*HOST_SYNC)
def three_phases(lab, which):
    steps = Steps(lab)

    def work():
        if which == "good":
            for i in range(8):
                steps.step(i)
            return
        for i in range(8):
            steps.upload(i)
        steps.up.synchronize()
        products = []
        for i in range(8):
            steps.product(i)
            products.append(steps.kept[-1])
        steps.comp.synchronize()
        for i, product in enumerate(products):
            with lab.on(steps.down, "dn"):
                product.get(out=steps.sink[i], blocking=False)

    return work


@pair(Cause.EVENT_WAIT)
def one_event_behind_all_uploads(lab, which):
    steps = Steps(lab)

    def work():
        events = []
        for i in range(8):
            steps.upload(i)
            events.append(steps.up.record())
        for i in range(8):
            steps.comp.wait(events[i if which == "good" else -1])
            steps.product(i)

    return work


def buffered(lab, which, count=8, buffers=1, good_buffers=2, side=640):
    size = good_buffers if which == "good" else buffers
    steps = Steps(lab, count, side, buffers=size)

    def work():
        free = [None] * size
        for i in range(count):
            place = i % size
            if free[place]:
                steps.up.wait(free[place])
            steps.upload(i, place=place)
            steps.comp.wait(steps.up)
            steps.product(place)
            free[place] = steps.comp.record()
            steps.down.wait(steps.comp)
            steps.download(i)

    return work


@pair(Cause.EVENT_WAIT)
def one_buffer(lab, which):
    return buffered(lab, which)


@pair(*HOST_SYNC, Cause.PAGEABLE_COPY)
def loss_is_read_in_each_step(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            steps.upload(i)
            steps.comp.wait(steps.up)
            with lab.on(steps.comp, "mm"):
                result = steps.arrays[i] @ steps.weights
                total = result.sum()
                steps.kept += [total, result]
                if which == "bad":
                    float(total)
            steps.down.wait(steps.comp)
            steps.download(i)

    return work


@pair(Cause.EVENT_WAIT)
def a_wait_that_nobody_needs(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            if which == "bad":
                steps.up.wait(steps.down)
            steps.step(i)

    return work


@pair(*HOST_SYNC, Cause.PAGEABLE_COPY)
def get_blocks(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            steps.upload(i)
            steps.comp.wait(steps.up)
            steps.product(i)
            steps.down.wait(steps.comp)
            steps.download(i, blocking=which == "bad")

    return work


@pair(Cause.PAGEABLE_COPY)
def get_to_ordinary_memory(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            steps.upload(i)
            steps.comp.wait(steps.up)
            steps.product(i)
            steps.down.wait(steps.comp)
            if which == "good":
                steps.download(i)
                continue
            with lab.on(steps.down, "dn"):
                steps.kept[-1].get()

    return work


def partitioned(lab, which, small=16, streams="ab", count=4):
    weights = lab.xp.ones((1024, 1024), "f4")
    if which == "bad":
        lab.partition(small=small, rest="rest")
    for name in streams:
        lab.stream(name, partition="small" if which == "bad" else None)

    def work():
        kept = []
        for _ in range(count):
            for name in streams:
                with lab.on(name, name):
                    kept.append(weights @ weights)
        return kept

    return work


@pair(Cause.PARTITION_SMALL)
def a_partition_too_small(lab, which):
    return partitioned(lab, which)


def on_one_stream(lab, which, count=8, side=640):
    names = ("up", "comp", "down") if which == "good" else ("comp",) * 3
    steps = Steps(lab, count, side, names=names) if which == "good" else Steps(lab, count, side)
    streams = {name: lab.streams[name] for name in {*names}}

    def work():
        for i in range(count):
            with lab.on(names[0], "up"):
                steps.arrays[i].set(steps.source[i])
            if which == "good":
                streams["comp"].wait(streams["up"])
            with lab.on(names[1], "mm"):
                steps.kept.append(steps.arrays[i] @ steps.weights)
            if which == "good":
                streams["down"].wait(streams["comp"])
            with lab.on(names[2], "dn"):
                steps.kept[-1].get(out=steps.sink[i], blocking=False)

    return work


@pair(Cause.SAME_LANE, Cause.NOT_OFFERED)
def all_on_one_stream(lab, which):
    return on_one_stream(lab, which)


def many_streams(lab, which, count=40, side=256):
    values = lab.xp.ones((side, side), "f4")
    streams = [lab.stream(f"s{i}") for i in range(count)] if which == "good" else []

    def work():
        kept = []
        for i in range(count):
            with lab.on(streams[i] if streams else lab.stream(f"n{i}"), "mm"):
                kept.append(values @ values)
        return kept

    return work


@pair(Cause.LAUNCH_BOUND, Cause.HOST_LATE)
def forty_streams_of_tiny_work(lab, which):
    return many_streams(lab, which)


def one_then_the_other(lab, which, count=100, streams="ab", duration_ns=20_000):
    for name in streams:
        lab.stream(name)
    order = streams * count if which == "good" else "".join(name * count for name in streams)

    def work():
        for name in order:
            spin(lab, duration_ns, blocks=8, stream=name)

    return work


@pair(Cause.HOST_LATE, Cause.NOT_OFFERED, Cause.LAUNCH_BOUND)
def all_of_one_then_all_of_the_other(lab, which):
    return one_then_the_other(lab, which)


def synchronized_streams(lab, which, count=5, streams="ab", duration_ns=200_000):
    for name in streams:
        lab.stream(name)

    def work():
        for _ in range(count):
            for name in streams:
                spin(lab, duration_ns, blocks=32, stream=name)
                if which == "bad":
                    lab.synchronize()

    return work


@pair(*HOST_SYNC)
def device_synchronize_between_streams(lab, which):
    return synchronized_streams(lab, which)


# Kin of them


@pair(Cause.PAGEABLE_COPY)
def pageable_upload_of_many_small_batches(lab, which):
    steps = Steps(lab, count=20, side=512)
    source = steps.source if which == "good" else np.ones((20, 512, 512), "f4")

    def work():
        for i in range(20):
            steps.upload(i, source[i])
            steps.comp.wait(steps.up)
            steps.product(i)
            steps.down.wait(steps.comp)
            steps.download(i)

    return work


@pair(*HOST_SYNC)
def the_device_is_awaited_in_each_step(lab, which):
    steps = Steps(lab, count=12, side=576, names=("in", "gemm", "out"))

    def work():
        for i in range(12):
            if which == "good":
                steps.step(i)
                continue
            steps.upload(i)
            lab.synchronize()
            steps.product(i)
            lab.synchronize()
            steps.download(i)
            lab.synchronize()

    return work


@pair(*HOST_SYNC)
def an_event_is_awaited_by_the_host(lab, which):
    steps = Steps(lab)

    def work():
        for i in range(8):
            steps.upload(i)
            steps.comp.wait(steps.up)
            steps.product(i)
            if which == "bad":
                steps.comp.record().synchronize()
            else:
                steps.down.wait(steps.comp)
            steps.download(i)

    return work


@pair(*HOST_SYNC)
def two_threads_that_wait(lab, which):
    for name in "abcd":
        lab.stream(name)

    def loop(names):
        for _ in range(4):
            for name in names:
                spin(lab, 150_000, blocks=16, stream=name)
                if which == "bad":
                    lab.stream(name).synchronize()

    def work():
        threads = [threading.Thread(target=loop, args=(names,)) for names in ("ab", "cd")]
        for thread in threads:
            thread.start()
            thread.join()

    return work


@pair(*HOST_SYNC)
def two_phases_of_spins(lab, which):
    for name in "ab":
        lab.stream(name)

    def work():
        for name in "ab":
            for _ in range(6):
                spin(lab, 120_000, blocks=8, stream=name)
            if which == "bad":
                lab.stream(name).synchronize()

    return work


@pair(Cause.EVENT_WAIT)
def one_buffer_in_many_short_steps(lab, which):
    return buffered(lab, which, count=16, side=512)


@pair(Cause.EVENT_WAIT)
def streams_of_spins_that_wait_in_turn(lab, which):
    streams = [lab.stream(name) for name in "abc"]

    def work():
        for _ in range(5):
            for stream, before in zip(streams, streams[-1:] + streams[:-1], strict=True):
                if which == "bad":
                    stream.wait(before)
                spin(lab, 100_000, blocks=16, stream=stream.name)

    return work


@pair(Cause.PARTITION_SMALL)
def three_streams_in_a_partition_too_small(lab, which):
    return partitioned(lab, which, small=24, streams="abc", count=3)


@pair(Cause.SAME_LANE, Cause.NOT_OFFERED)
def many_short_steps_on_one_stream(lab, which):
    return on_one_stream(lab, which, count=20, side=512)


@pair(Cause.LAUNCH_BOUND, Cause.HOST_LATE)
def streams_made_in_a_loop(lab, which):
    return many_streams(lab, which, count=60, side=128)


@pair(Cause.HOST_LATE, Cause.NOT_OFFERED, Cause.LAUNCH_BOUND)
def three_streams_launched_one_after_the_other(lab, which):
    return one_then_the_other(lab, which, count=60, streams="abc", duration_ns=15_000)


@pair(*HOST_SYNC)
def four_streams_of_spins_and_the_device_awaited(lab, which):
    return synchronized_streams(lab, which, count=6, streams="abcd", duration_ns=60_000)


@pair(*HOST_SYNC, Cause.PAGEABLE_COPY)
def a_norm_is_read_every_second_step(lab, which):
    steps = Steps(lab, count=10)

    def work():
        for i in range(10):
            steps.upload(i)
            steps.comp.wait(steps.up)
            with lab.on(steps.comp, "mm"):
                result = steps.arrays[i] @ steps.weights
                total = abs(result).max()
                steps.kept += [total, result]
                if which == "bad" and i % 2:
                    total.item()
            steps.down.wait(steps.comp)
            steps.download(i)

    return work


# Nothing to gain


@pair()
def clean_pipeline(lab, which):
    return synchronize_in_the_loop(lab, "good")


@pair()
def clean_two_streams_that_share_the_sms(lab, which):
    values = lab.xp.ones((1280, 1280), "f4")
    for name in "ab":
        lab.stream(name)

    def work():
        kept = []
        for _ in range(3):
            for name in "ab":
                with lab.on(name, name):
                    kept.append(values @ values)
        return kept

    return work


@pair()
def clean_partitions(lab, which):
    lab.partition(left=64, right="rest")
    for name in ("left", "right"):
        lab.stream(name, partition=name)

    def work():
        for _ in range(20):
            for name in ("left", "right"):
                spin(lab, 100_000, blocks=64, stream=name)

    return work


@pair()
def clean_chain(lab, which):
    streams, weights = [lab.stream(name) for name in ("up", "comp", "down")], lab.xp.ones((640, 640), "f4")

    def work():
        kept, value = [], weights
        for i in range(9):
            if i:
                streams[i % 3].wait(streams[(i - 1) % 3])
            with lab.on(streams[i % 3], "step"):
                value = value @ weights
            kept.append(value)
        return kept

    return work


@pair()
def clean_one_staging_buffer_of_the_host(lab, which):
    steps = Steps(lab)
    staging = lab.memory.pinned_empty((640, 640), "f4")

    def work():
        for i in range(8):
            staging[...] = i
            steps.upload(i, staging)
            steps.up.synchronize()
            steps.product(i)

    return work


@pair()
def clean_two_buffers(lab, which):
    return buffered(lab, "good", count=12)


@pair()
def clean_result_that_the_host_reads_into_one_place(lab, which):
    """The host reads each result where the next one comes, so it has to wait."""
    steps = Steps(lab)
    out = lab.memory.pinned_empty((640, 640), "f4")

    def work():
        for i in range(8):
            steps.upload(i)
            steps.comp.wait(steps.up)
            steps.product(i)
            steps.down.wait(steps.comp)
            steps.download(i, out=out)
            steps.down.synchronize()

    return work


@pair()
def clean_two_staging_buffers(lab, which):
    """While one is copied the host fills the other one."""
    steps = Steps(lab)
    staging = lab.memory.pinned_empty((2, 640, 640), "f4")

    def work():
        done = [None, None]
        for i in range(8):
            if done[i % 2]:
                done[i % 2].synchronize()
            staging[i % 2] = i
            steps.upload(i, staging[i % 2])
            done[i % 2] = steps.up.record()
            steps.comp.wait(steps.up)
            steps.product(i)

    return work
