"""A program that does what users do, on a simulated device, whose clock is virtual: its times are the same in each run.

One thing happens at a time: a second thread is waited for before the first goes on. What would make times depend on the
machine is left out: two threads that submit at once; and, while kernels are captured, waiting in the middle, as each question
whether a range has ended takes 1.3 us of virtual time there, unless the thread on the side has asked before.
"""

from __future__ import annotations

import asyncio
import threading

import gpustreamlab as gsl
from gpustreamlab.workloads import spin


def run_program(tier, spool=None):
    """Run it in a fresh session; return its trace, and what it was told on the way."""
    told = []
    lab = gsl.Session("sim", capture=tier, title="golden", spool=spool)
    lab.partition(left=32, right="rest")
    copy, compute = lab.stream("copy", partition="left"), lab.stream("compute", priority=-1, partition="right")
    lab.stream("card")
    x = lab.xp.ones(4_096)

    # Ranges in ranges, an event from one lane to another, and work that leaves its lane.
    with lab.on("copy", "upload"), lab.range("pieces"):
        for piece in range(2):
            with lab.range(f"piece {piece}"):
                spin(lab, 3_000, blocks=8)
    uploaded = copy.record()
    compute.wait(uploaded)
    with lab.on(compute, "step"):
        y = compute.use(x, after="copy") * 2
        with lab.select("card"):
            spin(lab, 1_500)
        spin(lab, 2_500, stream="card")
    lab.recording.mark("first step is in")
    told.append(lab.run_on("card", lambda lane, array: (lane.name, float(array.sum())), y, label="engine"))

    # An exception in a range, a range over two calls, and a stream that is closed while others work.
    try:
        with lab.on("copy", "fails"), lab.range("inside"):
            spin(lab, 1_000)
            raise ValueError("on purpose")
    except ValueError as error:
        told.append(str(error))
    over = lab.recording.start_range("compute", "over both")
    spin(lab, 2_000, stream=compute)
    over.end()
    with lab.on(lab.stream("short"), "short"):
        spin(lab, 700)
    lab.stream("short").close()

    # A thread of its own, a generator that keeps its lane, and tasks that take turns.
    worker = threading.Thread(target=_work_in_thread, args=(lab, told), name="worker")
    worker.start()
    worker.join()
    told += [(name, lab.current) for name in _steps(lab)]
    told += asyncio.run(_run_tasks(lab))

    # Another layout in the middle, and the end inside of a range.
    if tier == "ranges":
        lab.synchronize()
        lab.partition(left=64, right="rest")
        with lab.on("copy", "after the move"):
            spin(lab, 4_000)
        told.append(uploaded.elapsed_ns(copy.record()))
    with lab.on("card", "last"), lab.range("cut short"):
        spin(lab, 1_000)
        lab.close()
    told.append(lab.current)
    return lab.trace, told


def _work_in_thread(lab, told):
    told.append(lab.current)
    with lab.on("compute", "in a thread"), lab.range("below"):
        spin(lab, 1_200)


def _steps(lab):
    @lab.on("copy", "generator")
    def steps():
        for _ in range(2):
            spin(lab, 500)
            yield lab.current.name

    return steps()


async def _run_tasks(lab):
    async def serve():
        spin(lab, 900)
        await asyncio.sleep(0)
        with lab.range("answer"):
            spin(lab, 600)
            await asyncio.sleep(0)
        return lab.current.name

    return await asyncio.gather(*(lab.on(lane, f"request of {lane}")(serve)() for lane in ("copy", "compute")))
