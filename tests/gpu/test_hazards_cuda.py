"""Hazards on a real GPU: the same programs as on the simulated device, told of by tracked arrays of CuPy."""

import gc

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.typing import HazardMode
from tests.helpers.hazard_cases import CASES, upload

TOLD = [name for name, case in CASES.items() if case.is_harmless and not case.only_simulated]


@pytest.fixture(autouse=True)
def empty_pools():
    """Let no test find memory that the one before has used, nor what others left: garbage that warns, or a selected stream."""
    gc.collect()
    assert cupy.cuda.get_current_stream().ptr == 0, "a test before this one left a stream selected in CuPy"
    cupy.get_default_memory_pool().free_all_blocks()
    yield
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("name", TOLD)
def test_a_program_has_the_hazards_that_were_planted(name):
    case = CASES[name]
    with Session("cuda", hazards="report") as lab:
        kept = case.run(lab)
        result = lab.memory.hazards()
        lab.synchronize()
    assert sorted(hazard.kind.value for hazard in result.hazards) == sorted(case.found), str(result)
    assert not case.found or case.missing in [hazard.fix for hazard in result.hazards]
    del kept


@pytest.mark.parametrize("name", TOLD)
def test_with_waits_put_in_no_program_has_a_hazard(name):
    with Session("cuda", hazards="wait") as lab:
        kept = CASES[name].run(lab)
        result = lab.memory.hazards()
        lab.synchronize()
    assert [row.kind.value for row in result.hazards] == ([] if CASES[name].waits_help else list(CASES[name].found)), str(
        result
    )
    del kept


def test_without_tracking_the_module_is_cupy_itself():
    with Session("cuda") as lab:
        assert lab.xp is cupy
        assert lab.memory.hazards().mode is HazardMode.OFF


def test_waits_that_are_put_in_make_results_right():
    # GIVEN a producer that is still busy when the consumer reads
    with Session("cuda", hazards="wait") as lab:
        lab.stream("produce"), lab.stream("consume")
        for number in range(50):
            with lab.on("produce", "fill"):
                x = lab.xp.full(1 << 24, -1.0)
                lab._backend.launch_spin(lab.stream("produce")._backend_stream, 300_000, blocks=1, fill_sms=False)
                x[...] = number
            # WHEN
            with lab.on("consume", "add"):
                y = x + 1
            del x
            # THEN
            with lab.on("consume", "check"):
                assert float(y.min()) == float(y.max()) == number + 1
        result = lab.memory.hazards()
    assert not result
    assert result.wait_count >= 50


FUNCTIONS = {
    "elementwise": lambda xp, x: xp.sin(x) + x**2 - x.clip(0, 1),
    "in place": lambda xp, x: x.__imul__(3),
    "reductions": lambda xp, x: (x.sum(axis=0), x.max(), xp.linalg.norm(x), x.argmax()),
    "products": lambda xp, x: (x @ x.T, xp.einsum("ij,kj->ik", x, x), xp.dot(x, x.T), xp.tensordot(x, x)),
    "sorting": lambda xp, x: (xp.sort(x), xp.argsort(x, axis=0), xp.unique(x)),
    "shapes": lambda xp, x: (x.reshape(-1), x.T, xp.stack([x, x]), xp.split(x, 2), xp.concatenate([x, x]), x[None, ::2]),
    "indexing": lambda xp, x: (x[x > 3], x[[0, 2]], x[1, ...], xp.where(x > 3, x, 0), xp.take(x, xp.asarray([1]))),
    "transforms": lambda xp, x: (xp.fft.fft(x), xp.fft.irfft2(xp.fft.rfft2(x))),
    "scans": lambda xp, x: (xp.cumsum(x), xp.diff(x)),
    "astype": lambda xp, x: (x.astype("f4"), x.astype(x.dtype, copy=False), x.copy()),
    "numpy's functions": lambda xp, x: (np.exp(x), np.mean(x, axis=1), np.add(x, x, out=x)),
    "host values": lambda xp, x: (float(x[0, 0]), x.tolist(), x[0, 3].item(), bool(x[1, 1] > 0), repr(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_gives_what_cupy_gives(name):
    with Session("cuda", hazards="report") as lab:
        lab.stream("a")
        values = np.arange(16.0).reshape(4, 4)
        with lab.on("a", "tracked"):
            tracked = FUNCTIONS[name](lab.xp, lab.xp.asarray(values))
        with lab.on("a", "plain"):
            plain = FUNCTIONS[name](cupy, cupy.asarray(values))
            equal_all(tracked, plain)
        assert not lab.memory.hazards()


def equal_all(tracked, plain):
    """Compare results, in tuples and lists too."""
    if isinstance(plain, (tuple, list)):
        assert len(tracked) == len(plain)
        for one, other in zip(tracked, plain, strict=True):
            equal_all(one, other)
    elif isinstance(plain, cupy.ndarray):
        assert isinstance(tracked, cupy.ndarray)
        assert type(tracked) is not cupy.ndarray
        assert tracked.dtype == plain.dtype
        np.testing.assert_allclose(tracked.get(), plain.get())
    else:
        assert tracked == plain


def test_tracked_arrays_go_into_kernels_and_out_of_the_session():
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    with Session("cuda", hazards="report") as lab:
        lab.stream("a")
        with lab.on("a", "kernel"):
            x = lab.xp.arange(32, dtype="f4")
            cupy.RawKernel(source, "twice")((1,), (32,), (x,))
            cupy.ElementwiseKernel("float32 a", "float32 b", "b = a + 1", "one_more")(x, x)
        lab.synchronize()
    assert x.get().tolist() == [2.0 * n + 1 for n in range(32)]
    assert cupy.asnumpy(x + 1).tolist() == [2.0 * n + 2 for n in range(32)]


def test_dropped_arrays_give_their_memory_back():
    with Session("cuda", hazards="report") as lab:
        lane = lab.stream("a")
        pool = cupy.get_default_memory_pool()
        with lab.on("a", "loop"):
            x = lab.xp.ones(1 << 20)
            before = pool.used_bytes()
            for _ in range(20):
                x = x + 1
                x = x[::-1]
        lane.synchronize()
        assert pool.used_bytes() <= before + (1 << 24)
        del x
        assert pool.used_bytes() < before


def test_a_lane_that_used_an_array_keeps_it():
    with Session("cuda", hazards="report") as lab:
        lab.stream("copy"), lab.stream("compute")
        x = upload(lab)
        with lab.on("compute", "read"):
            y = lab.stream("compute").use(x) * 2
        assert not lab.memory.hazards()
        lab.synchronize()
        assert y.get().tolist() == [2.0] * 1_024
