"""What is told of work is the same whether calls are shown or not."""

import json
import textwrap
from collections import Counter

from tests.helpers.programs import run_alone

PROGRAM = """
import threading
import cupy, cupyx, numpy as np, torch
import gpustreamlab as gsl

def work(lab, lane, turns, graph):
    host, device = cupyx.empty_pinned(1 << 18, np.uint8), cupy.zeros(1 << 18, cupy.uint8)
    stream = lab.stream(lane)
    for turn in range(turns):
        with lab.on(lane, f"{lane} {turn % 7}"):
            handle = stream.handle
            cupy.cuda.runtime.memcpyAsync(device.data.ptr, host.ctypes.data, host.nbytes, 1, handle)
            with lab.range("inner"):
                device += 1
            cupy.cuda.runtime.memsetAsync(device.data.ptr, 3, 4096, handle)
            cupy.cuda.runtime.memcpyAsync(host.ctypes.data, device.data.ptr, host.nbytes, 2, handle)
            if graph is not None and turn % 3 == 0:
                graph.replay()
        device *= 2

def make_graph():
    x = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            x.add_(1)
    return graph

def run(lab, turns=40):
    graph = make_graph()
    work(lab, "warm", 2, graph)
    lab.synchronize()
    lab.clear()
    return graph

def in_threads(lab, graph, turns):
    threads = [threading.Thread(target=work, args=(lab, lane, turns, None), name=f"thread {lane}") for lane in "bc"]
    for thread in threads:
        thread.start()
    work(lab, "a", turns, graph)
    for thread in threads:
        thread.join()
    lab.synchronize()
"""


def run_program(code):
    """Run it in a process of its own and return what it printed last."""
    return json.loads(run_alone(textwrap.dedent(PROGRAM) + textwrap.dedent(code)).splitlines()[-1])


def test_ranges_threads_and_lanes_of_work_are_the_same_with_and_without_calls():
    told = run_program(
        """
        import json
        rows = {}
        for host in (True, False):
            with gsl.Session("cuda", capture="ranges") as lab:  # one of its own, so that threads of one name are not told apart
                graph = run(lab)
                with lab.capture("kernels", host=host):
                    in_threads(lab, graph, 60)
                lab.synchronize()
                frame = lab.trace.to_pandas()
                names = frame["name"].astype(str)
                kind = frame["kind"].astype(str)
                pieces, ranges = frame[kind.isin(["kernel", "copy", "fill"])], frame[kind == "range"]
                parents = [names[row] if row >= 0 else "none" for row in pieces["parent"]]
                columns = (map(str, pieces[name]) for name in ("name", "lane", "thread"))
                # CUPTI numbers a graph anew each time that it is attached.
                parents = ["graph" if parent.startswith("graph") else parent for parent in parents]
                rows[host] = [" | ".join((name[:30], *rest)) for name, *rest in zip(*columns, parents)]
                empty_count = int((ranges["duration_ns"] == 0).sum())
                rows[f"{host} ranges"] = [len(ranges), empty_count, lab.trace.metadata.dropped_records]
        print(json.dumps({str(key): value for key, value in rows.items()}))
        """
    )
    with_calls, without = Counter(told["True"]), Counter(told["False"])
    assert sum(without.values()) > 900
    assert with_calls == without, ((with_calls - without).most_common(9), (without - with_calls).most_common(9))
    assert told["True ranges"] == told["False ranges"]
    assert told["False ranges"][1:] == [0, 0]


def test_a_long_kernel_holds_no_later_work_of_its_thread_out_of_its_range():
    told = run_program(
        """
        import json, time
        from gpustreamlab.workloads import spin
        told = {}
        for host in (True, False):
            with gsl.Session("cuda", capture="ranges") as lab:
                lab.stream("long"), lab.stream("short")
                with lab.on("short", "warm"):
                    spin(lab, 1_000)
                with lab.capture("kernels", host=host):
                    with lab.on("long", "long"):
                        spin(lab, 3_000_000_000)
                    for _ in range(20_000):
                        with lab.on("short", "short"):
                            spin(lab, 1_000)
                    time.sleep(0.2)
                    early = len(lab.trace)
                lab.synchronize()
                frame = lab.trace.to_pandas()
                shorts = frame[(frame["kind"].astype(str) == "range") & (frame["name"].astype(str) == "short")]
                told[host] = [len(shorts), int((shorts["duration_ns"] > 0).sum()), early, lab.trace.metadata.dropped_records]
        print(json.dumps({str(key): value for key, value in told.items()}))
        """
    )
    for ranges, with_work, _, dropped in told.values():
        assert (ranges, with_work, dropped) == (20_000, 20_000, 0), told
