"""Libraries on a lane of a partition: kernels land on its handle, results are right, and they get back what they had."""

import threading

import cupy
import numpy as np
import pytest
import torch

from bench._numba_cuda import import_numba_cuda
from gpustreamlab import Session
from gpustreamlab.errors import OptionError
from gpustreamlab.typing import AdapterState, SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.programs import run_alone

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's and Numba's own, as they are imported
KINDS = list(SpanKind)
WORK = [KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)]


@pytest.fixture(scope="module")
def lab():
    with Session("cuda", title="adapters") as session:
        session.partition(small=32, rest="rest")
        session.stream("lane", partition="small")
        session.stream("other", partition="rest")
        with session.select("lane"):  # everything that is loaded now follows
            pass
        yield session


@pytest.fixture(scope="module")
def numba_cuda():
    return import_numba_cuda()


def work_of(lab, call):
    """Return by lane name how much ran on it, with the names of the kernels, while the lane was selected and captured."""
    lab.synchronize()
    torch.cuda.synchronize()
    lab.clear()
    with lab.capture("kernels", host=False), lab.on("lane", "step"):
        result = call()
        lab.stream("lane").synchronize()
    lab.synchronize()
    trace = lab.trace
    rows = np.flatnonzero(np.isin(trace.kind, WORK))
    return result, {trace.lanes[trace.lane[row]].name for row in rows}, [trace.names[trace.name[row]] for row in rows]


def check_on_lane(lab, call):
    before = torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr
    result, lanes, names = work_of(lab, call)
    assert lanes == {"lane"}, names
    assert not lab.trace.strays()
    assert (torch.cuda.current_stream().cuda_stream, cupy.cuda.get_current_stream().ptr) == before
    return result, names


def test_torch_has_the_lanes_handle_inside_and_its_own_after(lab):
    lane, other = lab.stream("lane"), lab.stream("other")
    mine = torch.cuda.Stream()
    with torch.cuda.stream(mine):
        with lab.on(lane):
            assert torch.cuda.current_stream().cuda_stream == lane.handle
            with lab.select(other):
                assert torch.cuda.current_stream().cuda_stream == other.handle == cupy.cuda.get_current_stream().ptr
            assert torch.cuda.current_stream().cuda_stream == lane.handle
        assert torch.cuda.current_stream().cuda_stream == mine.cuda_stream
    assert torch.cuda.current_stream().cuda_stream == 0


def test_a_stream_that_torch_enters_inside_wins_there(lab):
    lane, mine = lab.stream("lane"), torch.cuda.Stream()
    with lab.on(lane):
        with torch.cuda.stream(mine):
            assert torch.cuda.current_stream().cuda_stream == mine.cuda_stream
        assert torch.cuda.current_stream().cuda_stream == lane.handle


def test_torch_matmul(lab):
    a = torch.randn(512, 512, device="cuda")
    result, _ = check_on_lane(lab, lambda: a @ a)
    torch.testing.assert_close(result, a @ a)


def test_torch_backward(lab):
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    result, names = check_on_lane(lab, lambda: torch.autograd.grad((x @ x).square().sum(), x)[0])
    assert len(names) >= 4
    torch.testing.assert_close(result, torch.autograd.grad((x @ x).square().sum(), x)[0])


def test_cupy_and_torch_share_a_lane_in_order(lab):
    x = cupy.arange(1 << 20, dtype=cupy.float32)
    lab.synchronize()

    def call():
        y = torch.from_dlpack(x * 2) + 1
        return cupy.from_dlpack(y) * 3

    result, _ = check_on_lane(lab, call)
    cupy.testing.assert_allclose(result, (x * 2 + 1) * 3)


@pytest.fixture(scope="module")
def scale(numba_cuda):
    @numba_cuda.jit
    def scale_numba(x, factor):
        i = numba_cuda.grid(1)
        if i < x.size:
            x[i] *= factor

    return scale_numba


def test_numba_kernel_and_copies(lab, numba_cuda, scale):
    host = np.arange(1 << 16, dtype=np.float32)

    def call():
        device = numba_cuda.to_device(host)
        scale[256, 256](device, 3)
        return device.copy_to_host()

    np.testing.assert_array_equal(call(), host * 3)
    result, names = check_on_lane(lab, call)
    assert len(names) == 3
    np.testing.assert_array_equal(result, host * 3)


def test_numba_copies_wait_for_the_lane_and_for_nothing_else(lab, numba_cuda, scale):
    host = np.ones(1 << 22, np.float32)
    device = numba_cuda.to_device(host)
    scale[1, 256](device, 1)  # compiled
    lab.synchronize()
    spin(lab, 300_000_000, stream="other")
    slow = lab.stream("other").record()
    with lab.on("lane", "step"):
        scale[1 << 14, 256](device, 2)
        result = device.copy_to_host()
    assert not slow.query()
    assert (result == 2).all()
    lab.synchronize()


def test_numba_takes_no_array_of_the_host_on_a_lane(lab, scale):
    with lab.on(lab.stream("a")), pytest.raises(OptionError, match="to_device"):
        scale[4, 256](np.ones(1 << 10, np.float32), 2)


def test_a_stream_that_is_named_to_numba_wins(lab, numba_cuda, scale):
    device = numba_cuda.to_device(np.ones(1 << 10, np.float32))
    lab.synchronize()
    lab.clear()
    with lab.capture("kernels", host=False), lab.on("lane", "step"):
        scale[4, 256, lab.stream("other").numba](device, 2)
    lab.synchronize()
    trace = lab.trace
    kernels = np.flatnonzero(trace.kind == KINDS.index(SpanKind.KERNEL))
    assert [trace.lanes[trace.lane[row]].name for row in kernels] == ["other"]


def test_numba_events_time_the_lane(lab, numba_cuda, scale):
    device = numba_cuda.to_device(np.ones(1 << 24, np.float32))
    with lab.on("lane", "step"):
        start, end = numba_cuda.event(), numba_cuda.event()
        start.record()
        scale[1 << 16, 256](device, 2)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) > 0.005  # 128 MiB of traffic; nothing would pass in no time


def test_numba_is_as_it_was_after_the_last_session():
    code = """
    from bench._numba_cuda import import_numba_cuda
    from gpustreamlab import Session
    cuda = import_numba_cuda()
    from numba.cuda.cudadrv import driver
    before = driver.host_to_device, driver.device_to_host, cuda.dispatcher._Kernel.launch
    with Session("cuda") as lab:
        lab.stream("a")
        with lab.on("a"):
            assert driver.host_to_device is not before[0], lab.recording.adapters
    assert (driver.host_to_device, driver.device_to_host, cuda.dispatcher._Kernel.launch) == before
    """
    run_alone(code)


def test_the_stream_as_each_library_has_it(lab, numba_cuda):
    lane = lab.stream("lane")
    assert lane.cupy.ptr == lane.torch.cuda_stream == int(lane.core.handle) == int(lane.numba) == lane.handle
    lane.core.close()
    lane.synchronize()  # none of them owns the stream
    with lab.on(lane):
        assert float(cupy.ones(4).sum()) == 4


def test_the_table_says_who_follows(lab, numba_cuda):
    with lab.select("lane"):
        pass
    states = {item.name: item.state for item in lab.recording.adapters}
    assert states["cupy"] == states["torch"] == states["numba-cuda"] == AdapterState.FOLLOWS
    assert states["cuda.core"] == AdapterState.TAKES_STREAM


def test_each_thread_follows_its_own_lane(lab):
    seen, barrier = [], threading.Barrier(16)

    def work(number):
        stream = lab.stream(f"thread{number}")
        barrier.wait()
        for _ in range(20):
            with lab.on(stream):
                x = torch.full((1 << 12,), float(number), device="cuda")
                seen.append(torch.cuda.current_stream().cuda_stream == stream.handle and float((x + 1).mean()) == number + 1)
            seen.append(torch.cuda.current_stream().cuda_stream == 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 16 * 40
    assert all(seen)


def test_a_lane_that_moved_is_followed(lab):
    stream = lab.stream("mover")
    for partition in ("small", "rest", None):
        lab.stream("mover", partition=partition)
        with lab.select(stream):
            assert torch.cuda.current_stream().cuda_stream == stream.handle == cupy.cuda.get_current_stream().ptr
