"""Green contexts on the hardware: what is granted, where work really runs, and what it costs in memory."""

import subprocess
import sys
import textwrap
import threading

import cupy
import numpy as np
import pytest
from cuda.core import ContextOptions, Device, SMResourceOptions

from gpustreamlab import Session, plan_partitions
from gpustreamlab.workloads import spin

SMID_KERNEL = r"""
extern "C" __global__ void where(unsigned int* seen, long long cycles) {
    unsigned int sm;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    const long long began = clock64();
    while (clock64() - began < cycles) {}
    if (threadIdx.x == 0) atomicAdd(&seen[sm], 1u);
}
"""


@pytest.fixture
def split(lab):
    """A session with the partitions a (16 SMs on an H200) and b (the rest), and a stream in each."""
    layout = lab.partition({"a": 2 * lab.device.sm_resource.group_sms, "b": "rest"})
    lab.stream("a", partition="a")
    lab.stream("b", partition="b")
    lab.stream("plain")
    lab.partitions.verify()  # compiles the probe; what comes then starts at once
    return lab, layout


def sms_seen(work, seen):
    seen.fill(0)
    cupy.cuda.Device().synchronize()
    work()
    cupy.cuda.Device().synchronize()
    return set(np.flatnonzero(seen.get()).tolist())


def test_a_raw_kernel_sees_the_sms_of_its_partition_only(split):
    lab, layout = split
    kernel = cupy.RawModule(code=SMID_KERNEL).get_function("where")
    seen = cupy.zeros(1024, "uint32")

    def launch(name):
        with lab.on(name):
            kernel((4096,), (256,), (seen, np.int64(20_000)))

    found = {name: sms_seen(lambda name=name: launch(name), seen) for name in "ab"}
    assert {name: len(ids) for name, ids in found.items()} == {part.name: part.granted_sms for part in layout}
    assert not found["a"] & found["b"]
    assert {name: tuple(sorted(ids)) for name, ids in found.items()} == {part.name: part.sm_ids for part in lab.layout}


def test_a_graph_captured_in_a_lane_stays_in_its_partition(split):
    lab, layout = split
    kernel = cupy.RawModule(code=SMID_KERNEL).get_function("where")
    seen = cupy.zeros(1024, "uint32")
    x = cupy.zeros(1 << 20, "float32")
    with lab.on("a"):
        cupy.add(x, 1, out=x)  # compiled and loaded before the capture; CuPy captures no cuBLAS calls
    lab.synchronize()
    with lab.on("a"):
        capturing = cupy.cuda.get_current_stream()
        capturing.begin_capture()
        cupy.add(x, 1, out=x)
        kernel((4096,), (256,), (seen, np.int64(20_000)))
        graph = capturing.end_capture()

    def launch(name):
        with lab.on(name):
            graph.launch()

    inside = set(lab.layout["a"].sm_ids)
    assert sms_seen(lambda: launch("a"), seen) == inside
    assert sms_seen(lambda: launch("plain"), seen) == inside  # the SMs come from the capture
    assert layout["a"].granted_sms == len(inside)
    assert float(x[0]) == 3


def test_what_is_planned_is_what_the_device_grants(lab):
    group_sms, whole = lab.device.sm_resource.group_sms, lab.device.sm_count
    for shares in ({"a": 96 * whole // 132, "b": 32 * whole // 132}, {"a": 1}, {"a": "rest"}, {"a": 0.25, "b": "rest"}):
        planned = plan_partitions(shares, lab.device)
        granted = lab.partition(planned)
        assert granted == planned
        assert lab.partitions.verify().holds
    finest = {f"p{number}": group_sms for number in range(lab.device.sm_resource.group_count)} | {"last": "rest"}
    if lab.device.sm_resource.remainder_sms == 0:
        del finest["last"]
    lab.partition(finest)
    proof = lab.partitions.verify()
    assert proof.holds, str(proof)
    assert len({sm for part in lab.layout for sm in part.sm_ids}) == whole


def test_verifying_takes_under_50_ms_on_an_idle_card(split):
    lab, _ = split
    assert lab.partitions.verify().duration_ns < 50_000_000


def test_the_green_context_is_never_current(split):
    lab, _ = split
    from cuda.bindings import driver

    before = int(driver.cuCtxGetCurrent()[1])
    with lab.on("a"):
        spin(lab, 1000)
        assert int(driver.cuCtxGetCurrent()[1]) == before
        assert cupy.cuda.Stream.ptds.done  # the per-thread default stream still works
    lab.partitions.verify()
    lab.partition({"a": 8, "b": "rest"})
    assert int(driver.cuCtxGetCurrent()[1]) == before
    thread_context = []
    thread = threading.Thread(
        target=lambda: (lab.partition({"a": 16, "b": "rest"}), thread_context.append(driver.cuCtxGetCurrent()[1]))
    )
    thread.start()
    thread.join()
    assert thread_context


def test_a_thousand_repartitions_lose_no_more_memory_than_the_layouts_once(lab):
    lab.stream("a")
    layouts = [{"a": 8 * count, "b": "rest"} for count in range(1, 11)]

    def go_round():
        for shares in layouts:
            lab.partition(shares)
            lab.stream("a", partition="a")

    go_round()
    free_bytes = cupy.cuda.runtime.memGetInfo()[0]
    contexts = len(lab._partitions.cache)
    for _ in range(99):
        go_round()
    assert free_bytes - cupy.cuda.runtime.memGetInfo()[0] < 4 << 20
    assert len(lab._partitions.cache) == contexts == 20


def test_cuda_core_refuses_what_the_capabilities_say_is_missing(lab):
    """The gates are not guesses: below CUDA 13.1 the library itself refuses."""
    sms = Device(0).resources.sm
    asked = SMResourceOptions(count=(16, 32))
    if lab.partitions.capabilities.has("unequal-split"):
        groups, _ = sms.split(asked)
        assert [group.sm_count for group in groups] == [16, 32]
        context = Device(0).create_context(ContextOptions(resources=[groups[0]]))
        assert context.resources.sm.sm_count == 16
        context.close()
    else:
        with pytest.raises(RuntimeError):
            sms.split(asked)
    if not lab.partitions.capabilities.has("workqueues"):
        with pytest.raises(RuntimeError):
            _ = Device(0).resources.workqueue


def test_partitions_work_from_a_fresh_thread(split):
    """cuda.core asks the current context of the thread, and a fresh thread has none."""
    lab, layout = split
    raised = []

    def work():
        try:
            stream = lab.stream("fresh", partition="a")
            with lab.on(stream, "in a"):
                spin(lab, 1000)
            assert lab.partitions.verify().holds
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert raised == []
    assert lab.stream("fresh").sm_count == layout["a"].granted_sms


def test_a_lent_stream_of_a_foreign_green_context_shows_its_sms(split):
    lab, layout = split
    from gpustreamlab import Session

    with Session("cuda") as other:
        assert other.stream("theirs", external=lab.stream("a")).sm_count == layout["a"].granted_sms
        assert other.stream("torch", external=cupy.cuda.Stream(non_blocking=True)).sm_count == lab.device.sm_count
        assert other.stream("mine").sm_count == lab.device.sm_count


def test_sessions_one_after_another_cost_no_memory():
    def share_out():
        with Session("cuda") as lab:
            lab.partition(a=16, b=32, c="rest")
            for name in "abc":
                with lab.on(lab.stream(name, partition=name)):
                    lab.xp.ones(1_000)
            lab.synchronize()
        cupy.get_default_memory_pool().free_all_blocks()

    share_out()
    free_bytes = cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(20):
        share_out()
    assert free_bytes - cupy.cuda.runtime.memGetInfo()[0] < 16 << 20  # 240 MiB, were each context made and destroyed


def test_contexts_of_an_earlier_session_confine_and_are_proved(split):
    lab, _ = split
    first = lab.layout
    lab.close()
    with Session("cuda") as again:
        again.partition(a=2 * again.device.sm_resource.group_sms, b="rest")
        again.stream("a", partition="a")
        again.stream("b", partition="b")
        assert again.partitions.verify().holds
        for part in "ab":
            assert again.layout[part].sm_ids == first[part].sm_ids


def test_a_forked_child_leaves_the_contexts_of_its_parent():
    program = """
        import gc, os
        import gpustreamlab as gsl
        for _ in range(2):
            with gsl.Session("cuda") as lab:
                lab.partition(a=16, b="rest")
                lab.stream("a", partition="a")
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)  # at its usual exit CuPy complains of modules that it cannot unload here
        assert os.waitpid(child, 0)[1] == 0
        with gsl.Session("cuda") as lab:
            lab.partition(a=16, b="rest")
            with lab.on(lab.stream("a", partition="a")):
                print(int(lab.xp.ones(10).sum()))
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("10\n", "", 0)
