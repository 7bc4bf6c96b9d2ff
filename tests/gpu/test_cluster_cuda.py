"""Processes with a GPU each, on both engines that ship: their kernels, their clocks, and what stays when one is killed."""

import os
import signal
import threading
import time

import cupy
import numpy as np
import pytest

from gpustreamlab import Cluster
from gpustreamlab.errors import ClusterError
from gpustreamlab.workloads import spin

SPIN_NS = 200_000


@pytest.fixture
def on_dask(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{os.getcwd()}:{os.environ.get('PYTHONPATH', '')}")  # noqa: PTH109
    with Cluster(workers=2, backend="cuda", title="dask") as lab:
        yield lab


@pytest.fixture
def on_ipyparallel(monkeypatch):
    import ipyparallel

    monkeypatch.setenv("PYTHONPATH", f"{os.getcwd()}:{os.environ.get('PYTHONPATH', '')}")  # noqa: PTH109
    cluster = ipyparallel.Cluster(n=2, log_level=50)
    with cluster.start_and_connect_sync() as client:
        client.wait_for_engines(2, timeout=60)
        with Cluster(client, backend="cuda", title="ipyparallel") as lab:
            yield lab
    cluster.stop_cluster_sync()


@pytest.fixture(params=["on_dask", "on_ipyparallel"])
def lab(request):
    return request.getfixturevalue(request.param)


def steps(session, count, label):
    """Run kernels in a partition, and return the host's times of the calls: one clock for all processes of a host."""
    session.stream("compute", partition="left")
    told = []
    for _ in range(count):
        told.append(time.perf_counter_ns())
        with session.on("compute", label):
            spin(session, SPIN_NS)
        time.sleep(0.01)
    session.synchronize()
    return told


def release_together(session, at_ns):
    """Launch one kernel on an idle card at a moment of the host's clock; return when it was called."""
    session.stream("gate")
    session.synchronize()
    while time.perf_counter_ns() < at_ns:
        pass
    called_ns = time.perf_counter_ns()
    with session.on("gate", "gate"):
        spin(session, SPIN_NS)
    session.synchronize()
    return called_ns


def product(session):
    """Make an array with no stream selected, use it on a stream; return where it was, and the session."""
    x = session.xp.ones((64, 64), "float32")
    session.stream("product")
    with session.on("product", "product"):
        total = float((x @ x).sum())
    return x.device.id, session.device.ordinal, total


def sleepy(_session):
    time.sleep(2)
    return "awake"


def test_what_a_function_makes_outside_of_streams_is_on_the_session_s_card(lab):
    for made_on, ordinal, total in lab.run(product).values():
        assert (made_on, total) == (ordinal, 64.0**3)


def test_kernels_of_both_arrive_while_a_cell_works_and_lie_where_the_host_says(lab):
    lab.partition(left=32, right="rest")
    working = threading.Thread(target=lab.run, args=(steps, 100, "while"))
    working.start()
    deadline = time.monotonic() + 30
    while not all(status.span_count > 20 for status in lab.engines):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert working.is_alive()
    working.join()
    called_ns = [[*lab.run(release_together, time.perf_counter_ns() + 50_000_000).values()] for _ in range(6)]
    lab.synchronize()
    trace = lab.trace
    kernels = trace.where(kind="kernel")
    counts = {lane.name: int((kernels.lane == place).sum()) for place, lane in enumerate(kernels.lanes)}
    told = {name: count for name, count in counts.items() if count}  # the threads of the host have none
    assert told == {"0:compute": 100, "1:compute": 100, "0:gate": 6, "1:gate": 6}
    assert abs(int(np.median(kernels.duration_ns)) - SPIN_NS) < 5_000
    assert len(trace.devices) == min(2, cupy.cuda.runtime.getDeviceCount())
    first, second = (trace.where(kind="range", name="gate", stream=f"{name}:gate").start_ns for name in "01")
    apart_ns = np.array(called_ns) @ [-1, 1]
    print("off by, ns:", (second - first - apart_ns).tolist(), "stated:", trace.metadata.clock_error_ns)
    assert trace.metadata.clock_error_ns < 5_000_000  # half a round trip, which takes 1 to 3 ms on a virtual host
    assert abs(int(np.median(second - first - apart_ns))) < trace.metadata.clock_error_ns + 50_000  # a launch takes so long
    partitions = {trace.partitions[place].name for place in set(trace.partition.tolist()) - {-1}}
    assert any("left" in name for name in partitions)


def test_one_is_killed_and_the_other_goes_on(lab):
    lab.partition(left=32, right="rest")
    lab.run(steps, 20, "before")
    lab.synchronize()
    failed = []

    def work():
        try:
            lab.run(sleepy)
        except ClusterError as error:
            failed.append(error)

    working = threading.Thread(target=work)
    working.start()
    time.sleep(0.5)
    os.kill(lab.engines[1].pid, signal.SIGKILL)
    working.join(60)
    (error,) = failed
    assert dict(error.results) == {"0": "awake"}
    assert [status.name for status in lab.lost] == ["1"]
    assert len(lab.trace.where(kind="kernel", stream="1:compute")) == 20
    assert len(lab.run(steps, 5, "after", on="0")["0"]) == 5
