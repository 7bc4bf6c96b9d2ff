"""Further programs of the kinds in `advice_programs`, each of which once was told something wrong."""

from __future__ import annotations

import threading

import numpy as np

from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.advice_programs import HOST_SYNC, Steps, pair


def with_names(lab, which, bad, count=8, side=640):
    """Run a pipeline whose streams are called otherwise: equal names are one stream."""
    steps = Steps(lab, count, side, names=bad if which == "bad" else ("up", "comp", "down"))

    def work():
        for i in range(count):
            steps.step(i)

    return work


@pair(Cause.SAME_LANE)
def copies_both_ways_on_one_stream(lab, which):
    return with_names(lab, which, ("copy", "comp", "copy"), side=896)


@pair(Cause.SAME_LANE)
def downloads_on_the_stream_of_the_kernels(lab, which):
    return with_names(lab, which, ("up", "comp", "comp"), count=12)


@pair(Cause.SAME_LANE)
def uploads_on_the_stream_of_the_kernels(lab, which):
    return with_names(lab, which, ("comp", "comp", "down"), count=12)


@pair(Cause.EVENT_WAIT)
def one_buffer_that_is_filled_in_halves(lab, which):
    size = 1 if which == "bad" else 2
    steps = Steps(lab, 10, 896, buffers=size)

    def work():
        free = [None] * size
        for i in range(10):
            place = i % size
            if free[place]:
                steps.up.wait(free[place])
            for half in (slice(448), slice(448, 896)):
                with lab.on(steps.up, "up"):
                    steps.arrays[place][half].set(steps.source[i][half])
            steps.comp.wait(steps.up)
            steps.product(place)
            free[place] = steps.comp.record()

    return work


@pair(Cause.PAGEABLE_COPY)
def two_threads_with_pageable_uploads(lab, which):
    pipelines = [Steps(lab, 6, names=(f"u{turn}", f"c{turn}", f"d{turn}")) for turn in range(2)]
    hosts = [steps.source if which == "good" else np.ones((6, 640, 640), "f4") for steps in pipelines]

    def loop(steps, host):
        for i in range(6):
            steps.upload(i, host[i])
            steps.comp.wait(steps.up)
            steps.product(i)
            steps.down.wait(steps.comp)
            steps.download(i)

    def work():
        threads = [threading.Thread(target=loop, args=pair) for pair in zip(pipelines, hosts, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return work


@pair(*HOST_SYNC)
def small_pageable_uploads_behind_kernels(lab, which):
    streams, weights = [lab.stream(name) for name in ("one", "two")], lab.xp.ones((640, 640), "f4")
    arrays = [lab.xp.empty((64, 64), "f4") for _ in range(10)]
    host = np.ones((10, 64, 64), "f4") if which == "bad" else lab.memory.pinned_empty((10, 64, 64), "f4")

    def work():
        kept = []
        for i in range(10):
            with lab.on(streams[i % 2], "mm"):
                kept.append(weights @ weights)
                arrays[i].set(host[i])
                kept.append(arrays[i] * 2)
        return kept

    return work


@pair(Cause.EVENT_WAIT)
def streams_that_meet_after_each_round(lab, which):
    streams = [lab.stream(name) for name in "wxyz"]

    def work():
        for turn in range(6):
            for place, stream in enumerate(streams):
                spin(lab, 30_000 * (1 + (place + turn) % 4), blocks=12, stream=stream.name)
            if which == "bad":
                events = [stream.record() for stream in streams]
                for stream in streams:
                    for event in events:
                        stream.wait(event)

    return work


@pair(Cause.EVENT_WAIT)
def an_upload_ahead_that_the_kernel_waits_for_too(lab, which):
    steps = Steps(lab, 2, 896)

    def work():
        steps.upload(0)
        done = steps.up.record()
        for i in range(2):
            ready = done
            if i < 1:
                steps.upload(i + 1)
                done = steps.up.record()
            steps.comp.wait(steps.up if which == "bad" else ready)
            steps.product(i)
            steps.down.wait(steps.comp)
            steps.download(i)

    return work


@pair(Cause.SAME_LANE)
def chains_that_share_nothing_on_one_stream(lab, which):
    streams = [lab.stream(f"q{place}") for place in range(8 if which == "good" else 1)]
    weights = lab.xp.ones((256, 256), "f4")
    values = [lab.xp.ones((256, 256), "f4") for _ in range(16)]

    def work():
        kept = []
        for i, value in enumerate(values):
            with lab.on(streams[i % len(streams)], "chain"):
                kept.append(value)
                for _ in range(4):
                    kept.append(kept[-1] @ weights)
        return kept

    return work


def dealt(lab, which, job, uneven="aaaaaaaabbbbcc"):
    for name in "abc":
        lab.stream(name)
    names = uneven if which == "bad" else ("abc" * len(uneven))[: len(uneven)]

    def work():
        for i, name in enumerate(names):
            job(i, name)

    return work


@pair(Cause.NOT_OFFERED)
def jobs_dealt_unevenly_over_three_streams(lab, which):
    return dealt(lab, which, lambda _i, name: spin(lab, 150_000, blocks=16, stream=name))


@pair(Cause.NOT_OFFERED)
def batches_dealt_unevenly_over_three_streams(lab, which):
    steps = Steps(lab, 12, 512)

    def batch(i, name):
        with lab.on(name, "batch"):
            steps.arrays[i].set(steps.source[i])
            steps.kept.append(steps.arrays[i] @ steps.weights)
            steps.kept[-1].get(out=steps.sink[i], blocking=False)

    return dealt(lab, which, batch, "aaaaaaabbbbc")


@pair(Cause.COPY_ENGINE)
def copies_one_way_then_the_other_on_two_streams(lab, which):
    steps = Steps(lab, 8, 1024, names="ab" + ("c" if which == "bad" else "d"))

    def copied(i, name, way):
        with lab.on(name, way):
            steps.arrays[i].set(steps.source[i]) if way == "up" else steps.arrays[i].get(out=steps.sink[i], blocking=False)

    def work():
        for i in range(0, 8, 4):
            for place, name in enumerate(("a", "b", "a", "b")):
                copied(i + place, name if which == "bad" or place < 2 else "d", "up" if place < 2 else "down")

    return work


# Nothing to gain


@pair()
def clean_batches_dealt_evenly(lab, which):
    return batches_dealt_unevenly_over_three_streams(lab, "good")


@pair()
def clean_short_steps_in_place(lab, which):
    """The launches bound it, but each step copies from elsewhere, which a graph does not."""
    steps = Steps(lab, 20, 512, buffers=4)

    def work():
        free = [None] * 4
        for i in range(20):
            place = i % 4
            if free[place]:
                steps.up.wait(free[place])
            steps.upload(i, place=place)
            steps.comp.wait(steps.up)
            with lab.on(steps.comp, "scale"):
                steps.arrays[place] *= 2
            steps.down.wait(steps.comp)
            with lab.on(steps.down, "dn"):
                steps.arrays[place].get(out=steps.sink[i], blocking=False)
            free[place] = steps.down.record()

    return work


@pair()
def clean_streams_that_each_do_whole_batches(lab, which):
    streams = [lab.stream(f"lane{place}") for place in range(4)]
    steps = Steps(lab, 16, buffers=4)

    def work():
        for i in range(16):
            with lab.on(streams[i % 4], "batch"):
                steps.arrays[i % 4].set(steps.source[i])
                steps.kept.append(steps.arrays[i % 4] @ steps.weights)
                steps.kept[-1].get(out=steps.sink[i], blocking=False)

    return work


@pair()
def clean_sum_of_three_streams(lab, which):
    """Each part waits for the sum before, the sum for all parts."""
    streams, last = [lab.stream(name) for name in "abc"], lab.stream("sum")
    weights = lab.xp.ones((512, 512), "f4")

    def work():
        kept = []
        for _ in range(5):
            parts = []
            for stream in streams:
                stream.wait(last)
                with lab.on(stream, "part"):
                    parts.append(weights @ weights)
            for stream in streams:
                last.wait(stream)
            with lab.on(last, "sum"):
                kept += [*parts, parts[0] + parts[1]]
                lab.xp.add(kept[-1], parts[2], out=weights)
        return kept

    return work


def feedback_by_host(lab, memory):
    """The host makes the next input of the last result, in memory that is new each time: `memory` gives it."""
    steps = Steps(lab, 8)

    def work():
        given = memory(steps.source[0])
        for i in range(8):
            with lab.on(steps.up, "up"):
                steps.arrays[i].set(given)
            steps.comp.wait(steps.up)
            with lab.on(steps.comp, "mm"):
                steps.kept.append(steps.arrays[i] @ steps.weights)
            steps.down.wait(steps.comp)
            with lab.on(steps.down, "dn"):
                result = steps.kept[-1].get(out=memory(steps.sink[i]))
            given = memory(result)
            steps.kept += [given, result]

    return work


def pinned_copy(lab):
    def copy(values):
        found = lab.memory.pinned_empty(values.shape, values.dtype)
        found[...] = values
        return found

    return copy


@pair()
def clean_feedback_by_host(lab, which):
    return feedback_by_host(lab, pinned_copy(lab))


@pair(Cause.PAGEABLE_COPY)
def feedback_by_host_from_pageable_memory(lab, which):
    return feedback_by_host(lab, np.array if which == "bad" else pinned_copy(lab))


@pair()
def clean_feedback_in_slices(lab, which):
    """The host makes a slice of the next input of another slice of the same pinned memory, while two arrays take turns."""
    steps = Steps(lab, 8)
    halves = lab.memory.pinned_empty((2, 2, *steps.source[0].shape), "f4")

    def work():
        for i in range(8):
            given, result = halves[i % 2]
            with lab.on(steps.up, "up"):
                steps.arrays[i % 2].set(given)
            steps.comp.wait(steps.up)
            steps.product(i % 2)
            steps.down.wait(steps.comp)
            with lab.on(steps.down, "dn"):
                steps.kept[-1].get(out=result, blocking=False)
            steps.down.synchronize()
            halves[1 - i % 2, 0, :8] = result[:8]

    return work


@pair(Cause.EVENT_WAIT)
def a_ring_of_pinned_slots_and_a_wait_that_nobody_needs(lab, which):
    steps = Steps(lab, 9)
    slots = lab.memory.pinned_empty((3, *steps.source[0].shape), "f4")

    def work():
        done = [None] * 3
        for i in range(9):
            if done[i % 3] is not None:
                done[i % 3].synchronize()
            slots[i % 3, :8] = i
            with lab.on(steps.up, "up"):
                steps.arrays[i].set(slots[i % 3])
            done[i % 3] = steps.up.record()
            steps.comp.wait(done[i % 3])
            steps.product(i)
            if which == "bad":
                steps.up.wait(steps.comp)

    return work


@pair(Cause.EVENT_WAIT)
def independent_streams_that_each_wait_for_the_one_before(lab, which):
    streams = [lab.stream(name) for name in "abcd"]
    values = [lab.xp.ones((512, 512), "f4") for _ in streams]

    def work():
        kept = []
        for _ in range(4):
            for place, stream in enumerate(streams):
                if which == "bad" and place:
                    stream.wait(streams[place - 1])
                with lab.on(stream, "mm"):
                    kept.append(values[place] @ values[place])
        return kept

    return work
