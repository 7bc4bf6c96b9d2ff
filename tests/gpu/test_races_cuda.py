"""Races in programs of any library: found where they were planted, and nowhere else; and which memory kernels were given."""

import cupy
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.cuda.cupti import _clients
from gpustreamlab.typing import HazardMode

torch = pytest.importorskip("torch")

SIZE = 1 << 20
PARTS = r"""
extern "C" __global__ void add_to_part(float* x, long long first, long long n) {
    long long i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < first + n) x[i] += 1;
}
"""


class Place:
    """Streams of torch and CuPy, and what programs need."""

    def __init__(self):
        self.s, self.t = torch.cuda.Stream(), torch.cuda.Stream()
        self.c, self.d = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self.pinned = torch.ones(SIZE).pin_memory()
        self.add_to_part = cupy.RawKernel(PARTS, "add_to_part")

    @property
    def main(self):
        return torch.cuda.current_stream()

    def on(self, stream):
        return torch.cuda.stream(stream)


def random_ones(*shape, dtype=torch.float32):
    return torch.randn(*(shape or (SIZE,)), device="cuda", dtype=dtype)


def reads_on_a_side_stream(at, is_right):
    x = random_ones() * 2
    if is_right:
        at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x + 1
    x.record_stream(at.s)
    return x, y


def changes_in_place(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        x.add_(1)
    if is_right:
        at.main.wait_stream(at.s)
    return x, x * 3


def frees_too_early(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x * 2
    if is_right:
        x.record_stream(at.s)
    del x
    return y, random_ones()


def uploads_ahead(at, is_right):
    with at.on(at.s):
        x = at.pinned.to("cuda", non_blocking=True)
    if is_right:
        at.main.wait_event(at.s.record_event())
    x.record_stream(at.main)
    return x, x + 1


def downloads_too_early(at, is_right):
    x = random_ones()
    host = torch.empty(SIZE, pin_memory=True)
    y = x * 2
    with at.on(at.s):
        if is_right:
            at.s.wait_stream(torch.cuda.default_stream())
        host.copy_(y, non_blocking=True)
    y.record_stream(at.s)
    return x, y, host


def multiplies_on_tensor_cores(at, is_right):
    x = random_ones(2_048, 2_048, dtype=torch.bfloat16)
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x @ x
    if is_right:
        at.s.synchronize()
    with at.on(at.t):
        z = y + 1
    return x, y, z


def replays_a_graph(at, is_right):
    x = random_ones()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2
    torch.cuda.synchronize()
    with at.on(at.s):
        graph.replay()
    if is_right:
        at.main.wait_stream(at.s)
    return x, graph, y, y + 1


def works_in_cupy(at, is_right):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    with at.c:
        y = x + 1
    if is_right:
        at.d.wait_event(at.c.record())
    with at.d:
        y *= 2
    return x, y


def goes_from_cupy_to_torch(at, is_right):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    with at.c:
        y = x + 1
    if is_right:
        at.c.synchronize()
    with at.on(at.s):
        z = torch.as_tensor(y, device="cuda") * 2
    return x, y, z


PROGRAMS = (
    reads_on_a_side_stream,
    changes_in_place,
    frees_too_early,
    uploads_ahead,
    downloads_too_early,
    multiplies_on_tensor_cores,
    replays_a_graph,
    works_in_cupy,
    goes_from_cupy_to_torch,
)


def halves_by_addresses(at):
    x = random_ones()
    for stream, half in zip((at.s, at.t), x.chunk(2), strict=True):
        stream.wait_stream(at.main)
        with at.on(stream):
            half.mul_(2)
    at.main.wait_stream(at.s)
    at.main.wait_stream(at.t)
    return x, x.sum()


def halves_by_numbers(at):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    for place, stream in enumerate((at.c, at.d)):
        with stream:
            at.add_to_part((SIZE // 512,), (256,), (x, cupy.int64(place * SIZE // 2), cupy.int64(SIZE // 2)))
    return (x,)


def two_that_read(at):
    x = random_ones()
    found = [x]
    for stream in (at.s, at.t):
        stream.wait_stream(at.main)
        with at.on(stream):
            found.append(x * 2)
    return found


def a_blocking_stream_beside_the_default_one(at):
    stream, x = cupy.cuda.Stream(), cupy.zeros(SIZE, cupy.float32)
    with stream:
        y = x + 1
    return x, y, y + 2, stream


CLEAN = (halves_by_addresses, halves_by_numbers, two_that_read, a_blocking_stream_beside_the_default_one)


@pytest.fixture(scope="module")
def lab():
    with Session("cuda", capture="kernels", hazards="report") as lab:
        yield lab


@pytest.fixture
def at(lab):
    place = Place()
    random_ones()
    torch.cuda.synchronize()
    lab.memory.hazards()
    lab.clear()
    return place


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_program_is_accused_where_it_is_wrong_and_only_there(lab, at, program, is_right):
    kept = program(at, is_right)
    found = lab.memory.hazards()
    torch.cuda.synchronize()
    assert found.mode is HazardMode.REPORT
    assert bool(len(found)) is not is_right, found
    assert {hazard.first.stream for hazard in found.hazards}.isdisjoint(hazard.second.stream for hazard in found.hazards)
    del kept


@pytest.mark.parametrize("program", CLEAN)
def test_a_correct_program_is_not_accused(lab, at, program):
    kept = program(at)
    found = lab.memory.hazards()
    torch.cuda.synchronize()
    assert not len(found), found
    del kept


def test_streams_and_tensors_are_called_as_in_the_program(lab, at):
    side = at.s
    x = random_ones() * 2
    with torch.cuda.stream(side):
        y = x + 1
    (hazard,) = lab.memory.hazards().hazards
    torch.cuda.synchronize()
    assert (hazard.array, hazard.fix) == ("x", "side.wait_stream(torch.cuda.default_stream())")
    assert hazard.certainty.value == "learned"
    del y


@pytest.mark.parametrize(
    "name", ["product", "bf16 product", "softmax", "convolution", "attention", "all at once", "upload", "CuPy"]
)
def test_what_goes_into_work_and_what_comes_out_is_among_its_accesses(lab, at, name):
    x, y = random_ones(1_024, 1_024), random_ones(1_024, 1_024)
    half = [one.bfloat16() for one in (x, y)]
    image, weights = random_ones(8, 64, 56, 56), random_ones(64, 64, 3, 3)
    many = [random_ones(333) for _ in range(40)]
    heads = [random_ones(2, 8, 512, 64, dtype=torch.bfloat16) for _ in range(3)]
    arrays = [cupy.ones((512, 512), cupy.float32) for _ in range(2)]
    attend = torch.nn.functional.scaled_dot_product_attention
    run, given = {
        "product": (lambda: x @ y, [x, y]),
        "bf16 product": (lambda: half[0] @ half[1], half),
        "softmax": (lambda: x.softmax(1), [x]),
        "convolution": (lambda: torch.nn.functional.conv2d(image, weights), [image, weights]),
        "attention": (lambda: attend(*heads), heads),
        "all at once": (lambda: torch._foreach_add(many, 1.0), many),
        "upload": (lambda: at.pinned.to("cuda", non_blocking=True), [at.pinned]),
        "CuPy": (lambda: arrays[0] @ arrays[1], arrays),
    }[name]
    run()
    torch.cuda.synchronize()
    lab.clear()
    made = run()
    torch.cuda.synchronize()
    accesses = lab.trace.accesses
    touched = {*accesses.buffer.tolist()}
    written = {*accesses.buffer[accesses.is_write].tolist()}
    assert {number_of(one) for one in given} <= touched
    assert {number_of(one) for one in (made if isinstance(made, (list, tuple)) else [made])} <= written


def number_of(array):
    """Return the number of the memory that an array is in."""
    reader = _clients.SHARING._accesses[0]
    return reader.find(array.data_ptr() if isinstance(array, torch.Tensor) else array.data.ptr)
