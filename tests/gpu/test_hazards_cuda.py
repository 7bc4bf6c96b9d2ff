"""Hazards on a real GPU: the same programs as on the simulated device, told of by tracked arrays of CuPy."""

import gc

import cupy
import numpy as np
import pytest

from gpustreamlab import Node, Session
from gpustreamlab.typing import HazardMode
from tests.helpers import node_hazard_cases
from tests.helpers.hazard_cases import CASES, upload
from tests.helpers.node_hazard_cases import LAST_WAITS, RAW, SIZE, by_copy, by_kernel, produce, take

TOLD = [name for name, case in CASES.items() if case.is_harmless and not case.only_simulated]


@pytest.fixture(autouse=True)
def empty_pools():
    """Let no test find memory that the one before has used, nor what others left: garbage that warns, or a selected stream."""
    gc.collect()
    assert cupy.cuda.get_current_stream().ptr == 0, "a test before this one left a stream selected in CuPy"
    free_pools()
    yield
    free_pools()


def free_pools():
    """Give back what CuPy's pool keeps on every card."""
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(number):
            cupy.get_default_memory_pool().free_all_blocks()


def open_node(**options):
    """Open a node of two cards, with a stream on each."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("This needs two cards.")
    node = Node([0, 1], backend="cuda", **options)
    node.stream("first")
    node.stream("last", device=1)
    return node


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


# Between two cards. CuPy turns peer access on where a kernel takes an array of another card, and warns of it.

between_cards = pytest.mark.filterwarnings("ignore:The device where the array resides")
WAYS = pytest.mark.parametrize("use", [by_copy, by_kernel])


@between_cards
@WAYS
@pytest.mark.parametrize("name", node_hazard_cases.CASES)
def test_a_program_on_two_cards_has_the_hazards_that_were_planted(name, use):
    case = node_hazard_cases.CASES[name]
    with open_node(hazards="report") as node:
        kept = case.run(node, use)
        found = node.hazards()
        node.synchronize()
    assert [row.kind.value for row in found.hazards] == list(case.found), str(found)
    assert not case.found or found.hazards[0].fix == case.missing
    del kept


@between_cards
@WAYS
@pytest.mark.parametrize("name", node_hazard_cases.CASES)
def test_with_waits_put_in_no_program_on_two_cards_has_a_hazard(name, use):
    with open_node(hazards="wait") as node:
        kept = node_hazard_cases.CASES[name].run(node, use)
        found = node.hazards()
        node.synchronize()
    assert not found, str(found)
    del kept


@between_cards
@WAYS
def test_waits_that_are_put_in_between_cards_make_results_right(use):
    # GIVEN a producer on the first card that is still busy when the second one takes its array
    with open_node(hazards="wait") as node:
        with node.on("first"):
            x = node[0].xp.zeros(1 << 22)
        for number in range(50):
            with node.on("first", "fill"):
                place = node.streams["first"]._backend_stream
                node[0]._backend.launch_spin(place, 300_000, blocks=1, fill_sms=False)
                x.fill(number)
            # WHEN
            y = take(node, x, use)
            # THEN
            expected = number if use is by_copy else 2 * number
            with node.on("last", "check"):
                assert float(y.min()) == float(y.max()) == expected
        found = node.hazards()
    assert not found, str(found)
    assert found.wait_count >= 50


def test_work_on_the_default_stream_of_another_card_is_that_cards():
    with open_node(hazards="report") as node:
        x = produce(node)
        node.synchronize()
        y = take(node, x, by_copy)
        with cupy.cuda.Device(1):
            z = y + 1
        row = node.hazards().hazards[0]
        assert (row.first.stream, row.second.stream, row.second.device) == ("last", "no stream", 1)
        assert row.fix == "node.stream('last').synchronize()"
        assert len(node.hazards()) == 1
        node.synchronize()
        assert z.get().tolist() == [2.0] * SIZE
        assert len(node.hazards()) == 1


def test_what_copies_to_the_host_works_on_the_card_of_its_array():
    with open_node(hazards="report") as node:
        x = produce(node)
        with node.on("last", "read back"):
            x.get()  # by the default stream of the first card, as CuPy does it
        rows = [(row.first.stream, row.second.stream, row.second.device) for row in node.hazards().hazards]
        assert rows == [("first", "no stream", 0)]
        with node.on("first", "fill"):
            x.fill(3)
        node.streams["first"].synchronize()
        with node.on("last", "read back"):
            assert x.get().tolist() == [3.0] * SIZE
        assert len(node.hazards()) == 1


def test_a_hazard_between_cards_has_a_sign_in_both_ranges_of_the_trace():
    with open_node(hazards="report") as node:
        kept = take(node, produce(node), by_copy)
        node.synchronize()
        trace = node.trace
    ranges = trace.where(kind="range")
    starts = {ranges.lanes[lane].name: int(start) for lane, start in zip(ranges.lane, ranges.start_ns, strict=True)}
    assert {note.stream: note.time_ns for note in trace.notes} == starts
    assert {note.fix for note in trace.notes} == {f"Put {LAST_WAITS} before 'take' (array)."}
    assert all(note.text.startswith(RAW) for note in trace.notes)
    del kept


def test_cards_of_two_sessions_that_are_no_node_know_nothing_of_each_other():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("This needs two cards.")
    with Session("cuda", device=0, hazards="report") as one, Session("cuda", device=1, hazards="report") as other:
        for lab in (one, other):
            lab.stream("copy"), lab.stream("compute")
        x = upload(one)
        other.synchronize()
        y = upload(other)
        with one.on("compute", "read"):
            x.sum()
        other.synchronize()
        with other.on("compute", "read"):
            y.sum()
        assert [row.kind.value for row in one.memory.hazards().hazards] == [RAW]
        assert not other.memory.hazards()
