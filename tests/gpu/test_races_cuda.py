"""Races in programs of any library: found where they were planted, and nowhere else; and which memory kernels were given."""

import cupy
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.cuda.cupti import _clients
from gpustreamlab.typing import HazardMode

torch = pytest.importorskip("torch")
from tests.helpers import race_programs as races  # noqa: E402 - it needs torch
from tests.helpers.race_programs import random_ones  # noqa: E402


def name_of(program):
    return program.__name__


@pytest.fixture(scope="module")
def lab():
    with Session("cuda", capture="kernels", hazards="report") as lab:
        yield lab


@pytest.fixture
def at(lab):
    place = races.Place()
    random_ones()
    torch.cuda.synchronize()
    lab.memory.hazards()
    lab.clear()
    yield place
    place.close()


def look(lab, at, program, *options):
    """Run a program; return what is told of it, with streams called as here."""
    s, t, c, d = at.s, at.t, at.c, at.d  # noqa: F841 - the names that are looked for
    kept = program(at, *options)
    found = lab.memory.hazards()
    torch.cuda.synchronize()
    del kept
    return found


@pytest.mark.filterwarnings("ignore")  # of torch's own modules
@pytest.mark.parametrize("program", races.RACES, ids=name_of)
def test_a_missing_order_is_found_between_the_right_pair_of_work(lab, at, program):
    kind, *streams = races.RACES[program]
    found = look(lab, at, program, False)
    assert found.mode is HazardMode.REPORT
    assert {(row.kind.value, row.first.stream, row.second.stream) for row in found.hazards} == {(kind, *streams)}, found


@pytest.mark.filterwarnings("ignore")  # of torch's own modules
@pytest.mark.parametrize("program", [*races.RACES, *races.UNFOUND], ids=name_of)
def test_with_that_order_nothing_is_accused(lab, at, program):
    found = look(lab, at, program, True)
    assert not len(found), found


@pytest.mark.parametrize("program", races.CLEAN, ids=name_of)
def test_a_correct_program_is_not_accused(lab, at, program):
    found = look(lab, at, program)
    assert not len(found), found


@pytest.mark.parametrize("program", races.UNFOUND, ids=name_of)
def test_what_cannot_be_seen_accuses_nobody_else(lab, at, program):
    found = look(lab, at, program, False)
    assert not len(found), found


def test_a_kernel_that_gets_pointers_in_memory_is_named(lab, at):
    told = str(look(lab, at, races.writes_through_pointers_in_memory, False))
    assert "add_through (1x)" in " ".join(told.split()), told


def test_a_mistake_in_a_loop_is_one_finding_with_a_count(lab, at):
    (row,) = look(lab, at, races.uploads_over_a_batch_in_use, False).hazards
    assert row.hazard_count == 2


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
