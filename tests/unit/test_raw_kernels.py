"""Kernels in CUDA C++: launched where they are told to be, refused on the simulated device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import DeviceError, NotSimulatedError, OptionError, SessionClosedError, StickyDeviceError
from gpustreamlab.workloads import raw_kernel
from tests.helpers.instant_backend import InstantBackend

CODE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }'


class FakeDriverError(Exception):
    """What CuPy raises for a refused launch."""


class FakeRuntimeError(Exception):
    """What CuPy raises for a failed runtime call."""


class FakeRawKernel:
    """Notes its launches, and the stream that was selected then."""

    def __init__(self, backend, code, name, **options):
        self.backend, self.made_of, self.launches, self.failure = backend, (code, name, options), [], None

    def __call__(self, grid, block, args, *, shared_mem):
        if self.failure is not None:
            raise self.failure
        selected = None if self.backend.selected is None else self.backend.selected.number
        self.launches.append((grid, block, args, shared_mem, selected))


class KernelBackend(InstantBackend):
    def __init__(self):
        super().__init__()
        cuda = SimpleNamespace(
            driver=SimpleNamespace(CUDADriverError=FakeDriverError), runtime=SimpleNamespace(CUDARuntimeError=FakeRuntimeError)
        )
        self.xp = SimpleNamespace(
            RawKernel=lambda code, name, **options: FakeRawKernel(self, code, name, **options), cuda=cuda, ndarray=np.ndarray
        )

    def map_error(self, error, doing):
        return StickyDeviceError(f"{doing} failed: {error}.")


@pytest.fixture
def lab():
    with Session(KernelBackend()) as session:
        session.stream("a")
        session.stream("b")
        yield session


def test_a_kernel_goes_to_the_stream_it_is_told_and_else_to_the_selected_one(lab):
    # GIVEN a kernel, and streams that are told by name, as a stream, and by selection
    kernel = raw_kernel(lab, CODE, "scale", options=("-std=c++17",))
    a, b = (lab.stream(name)._backend_stream.number for name in "ab")
    # WHEN it is launched on each
    kernel((2,), (32,), ("x",), stream="a")
    kernel((2,), (32,), ("x",), stream=lab.stream("b"))
    with lab.on("a"):
        kernel((2,), (32,), ("x",))
        kernel((2,), (32,), ("x",), stream="b")
    kernel((2,), (32,), ("x",))
    # THEN each went there, and what was selected before is selected again
    assert [launch[-1] for launch in kernel.kernel.launches] == [a, b, a, b, None]
    assert kernel.kernel.made_of == (CODE, "scale", {"options": ("-std=c++17",)})
    assert lab._backend.selected is None
    assert len(lab.trace) == 1  # `stream=` opens no range


def test_sizes_are_numbers_or_up_to_three(lab):
    kernel = raw_kernel(lab, CODE, "scale")
    kernel(4, np.int64(64), [1])
    kernel((1, 2, 3), (4, np.int32(5)), (), shared_mem=np.int64(7))
    assert [launch[:4] for launch in kernel.kernel.launches] == [((4,), (64,), (1,), 0), ((1, 2, 3), (4, 5), (), 7)]
    assert not hasattr(kernel.kernel, "max_dynamic_shared_size_bytes")
    kernel(1, 1, (), shared_mem=100_000)
    assert kernel.kernel.max_dynamic_shared_size_bytes == 100_000


BAD_CALLS = {
    "grid of 0": ((0, 1, ()), {}, "grid is 0"),
    "grid of four": (((1, 1, 1, 1), 1, ()), {}, "grid is"),
    "no grid": (((), 1, ()), {}, "grid is"),
    "block of a fraction": ((1, 1.5, ()), {}, "block is 1.5"),
    "block of True": ((1, True, ()), {}, "block is True"),
    "arguments that are one array": ((1, 1, np.ones(3)), {}, "ndarray as its arguments"),
    "negative shared memory": ((1, 1, ()), {"shared_mem": -1}, "shared_mem is -1"),
    "shared memory as text": ((1, 1, ()), {"shared_mem": "4"}, "shared_mem is '4'"),
}


@pytest.mark.parametrize(("arguments", "options", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_arguments_out_of_range_are_told(lab, arguments, options, message):
    for wrong in ((None, "scale"), (CODE, ""), (b"code", "scale"), (CODE, 3)):
        with pytest.raises(OptionError, match=r"raw kernel's (code|name) is a str.*raw_kernel\(lab"):
            raw_kernel(lab, *wrong)
    with pytest.raises(OptionError, match=message):
        raw_kernel(lab, CODE, "scale")(*arguments, **options)


@pytest.mark.parametrize("failure", [FakeDriverError("no"), FakeRuntimeError("no")])
def test_a_refused_launch_says_what_and_in_which_range(lab, failure):
    kernel = raw_kernel(lab, CODE, "scale")
    kernel.kernel.failure = failure
    with pytest.raises(DeviceError, match=r"'scale' \(grid \(9,\), block \(1,\), 0 bytes.*'step' on stream 'a'") as told:
        with lab.on("a", "step"):
            kernel(9, 1, ())
    assert told.value.__cause__ is failure
    assert lab._backend.selected is None


def test_the_simulated_device_says_that_it_cannot():
    with Session("sim") as lab:
        with pytest.raises(NotSimulatedError, match=r"'scale'.*simulated device.*lab\.xp.*Session\('cuda'\)"):
            raw_kernel(lab, CODE, "scale")


def test_a_closed_session_makes_and_launches_none(lab):
    kernel = raw_kernel(lab, CODE, "scale")
    lab.close()
    with pytest.raises(SessionClosedError, match="raw kernel"):
        raw_kernel(lab, CODE, "scale")
    with pytest.raises(SessionClosedError):
        kernel(1, 1, (), stream="a")
    assert repr(kernel) == "<RawKernel 'scale'>"
