"""The same named work for lessons and benchmarks: what it does to data, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import OptionError, SessionClosedError, StreamClosedError, StreamNotFoundError
from gpustreamlab.workloads import copy_to_device, copy_to_host, matrix_product, spin, spin_card, streaming_add
from tests.helpers.selections import names_of

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")


def duration_ns(lab, label):
    lab.synchronize()
    return int(lab.trace.duration_ns[names_of(lab.trace).index(label)])


def test_spin_takes_its_time_for_each_wave_of_blocks(lab):
    for label, blocks in (("one", 1), ("some", 100), ("many", 100_000)):
        with lab.on("a", label):
            spin(lab, 1_000_000, blocks=blocks)
    one, some, many = (duration_ns(lab, label) for label in ("one", "some", "many"))
    assert 1_000_000 <= min(one, some) <= max(one, some) < 1_100_000
    assert many > 10 * one


def test_spin_card_leaves_no_room_for_another(lab):
    for name in "ab":
        with lab.on(name, f"card {name}"):
            spin_card(lab, 1_000_000)
    lab.synchronize()
    assert np.diff(np.sort(lab.trace.end_ns))[0] >= 1_000_000


def test_arrays_get_what_numpy_gives(lab):
    host_a = np.arange(12, dtype="float32").reshape(3, 4)
    host_b = np.arange(12, dtype="float32").reshape(4, 3)
    a, b, product, total = (lab.xp.empty(shape, "float32") for shape in ((3, 4), (4, 3), (3, 3), (3, 3)))
    back = lab.memory.pinned_empty((3, 3), "float32")
    with lab.on("a"):
        copy_to_device(lab, host_a, a)
        copy_to_device(lab, host_b, b)
        matrix_product(lab, a, b, product)
        streaming_add(lab, product, product, total)
        copy_to_host(lab, total, back)
    lab.synchronize()
    np.testing.assert_array_equal(back, 2 * (host_a @ host_b))


def test_what_is_no_session_is_told_with_what_to_pass(lab):
    a = lab.xp.empty(3, "float32")
    calls = {
        "spin": lambda: spin("lab", 3),
        "spin_card": lambda: spin_card("lab", 3),
        "streaming_add": lambda: streaming_add("lab", a, a, a),
        "matrix_product": lambda: matrix_product("lab", a, a, a),
        "copy_to_device": lambda: copy_to_device("lab", np.empty(3), a),
        "copy_to_host": lambda: copy_to_host("lab", a, np.empty(3)),
    }
    for name, call in calls.items():
        with pytest.raises(OptionError, match=rf"^{name}\(lab, .*was given a str as its session.*gpustreamlab\.Session\(\)"):
            call()


def test_arrays_after_close_say_what_to_open():
    with Session("sim") as lab:
        array = lab.xp.ones(3)
    with pytest.raises(SessionClosedError, match=r"Open another session.*gpustreamlab\.Session\('sim'\)") as caught:
        array + 1
    assert "SimBackend" not in str(caught.value)


def test_a_lane_closed_inside_its_block_says_what_to_make(lab):
    with lab.select("a"):
        lab.stream("a").close()
        with pytest.raises(StreamClosedError, match=r"still be selected here.*lab\.stream\('name'\)") as caught:
            lab.xp.ones(3)
    assert "backend" not in str(caught.value)


class Lender:
    """A stream of the session that comes as another library's object."""

    def __init__(self, stream):
        self.__cuda_stream__ = stream.__cuda_stream__


TARGETS = {"name": lambda lab: "b", "stream": lambda lab: lab.stream("b"), "lender": lambda lab: Lender(lab.stream("b"))}


def works(lab):
    """Every workload, as a function of the keywords that all of them take."""
    host = lab.memory.pinned_empty(1 << 20, "float32")
    x, y, out = (lab.xp.ones((1 << 10, 1 << 10), "float32") for _ in range(3))
    return {
        "spin": lambda **where: spin(lab, 100_000, **where),
        "spin_card": lambda **where: spin_card(lab, 100_000, **where),
        "streaming_add": lambda **where: streaming_add(lab, x, y, out, **where),
        "matrix_product": lambda **where: matrix_product(lab, x, y, out, **where),
        "copy_to_device": lambda **where: copy_to_device(lab, host.reshape(x.shape), x, **where),
        "copy_to_host": lambda **where: copy_to_host(lab, x, host.reshape(x.shape), **where),
    }


@pytest.mark.parametrize("how", TARGETS)
@pytest.mark.parametrize("name", ["spin", "spin_card", "streaming_add", "matrix_product", "copy_to_device", "copy_to_host"])
def test_work_goes_to_the_stream_it_is_told(lab, name, how):
    # GIVEN a workload, and another stream selected or none
    work = works(lab)[name]
    lab.synchronize()
    starts = {stream: lab.stream(stream).record() for stream in "ab"}

    # WHEN it is told where to go
    work(stream=TARGETS[how](lab))
    with lab.on("a", "other"):
        work(stream=TARGETS[how](lab))
        assert lab.current is lab.stream("a")

    # THEN only that stream was busy, no range was opened, and nothing is selected any more
    busy_ns = {stream: starts[stream].elapsed_ns(lab.stream(stream).record()) for stream in "ab"}
    lab.synchronize()
    assert busy_ns["b"] > 0
    assert lab.trace.overlap().busy_ns.sum() < busy_ns["b"]
    assert lab.current is None
    assert names_of(lab.trace) == ["other"]


def test_a_stream_that_is_not_there_is_told_before_anything_runs(lab):
    for name, work in works(lab).items():
        lab.synchronize()
        with pytest.raises(StreamNotFoundError, match="'c'"):
            work(stream="c")
        assert lab.stream("a").query(), name


def test_copies_from_page_locked_memory_do_not_wait(lab):
    size = 64 * 2**20
    device = lab.xp.empty(size, "int8")
    took_ns = []
    for host in (np.zeros(size, "int8"), lab.memory.pinned_empty(size, "int8")):
        with lab.on("a"):
            began_ns = lab._backend.host_time_ns()
            copy_to_device(lab, host, device)
            took_ns.append(lab._backend.host_time_ns() - began_ns)
        lab.synchronize()
    assert took_ns[0] > 100 * took_ns[1]


@pytest.mark.parametrize("wrong", [0, -1, 0.5, "1", None, True, 10**19], ids=repr)
def test_numbers_out_of_range_are_told(lab, wrong):
    with lab.on("a", "x"):
        with pytest.raises(OptionError, match="duration_ns"):
            spin(lab, wrong)
        with pytest.raises(OptionError, match="duration_ns"):
            spin_card(lab, wrong)
        with pytest.raises(OptionError, match="blocks"):
            spin(lab, 1_000, blocks=wrong)
