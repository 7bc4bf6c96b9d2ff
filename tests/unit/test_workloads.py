"""The same named work for lessons and benchmarks: what it does to data, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.workloads import copy_to_device, copy_to_host, matrix_product, spin, spin_card, streaming_add


@pytest.fixture
def lab():
    with Session("sim") as session:
        for name in "ab":
            session.stream(name)
        yield session


def duration_ns(lab, label):
    lab.synchronize()
    return int(lab.trace.duration_ns[[lab.trace.names[code] for code in lab.trace.name].index(label)])


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
    back = lab.pinned_empty((3, 3), "float32")
    with lab.on("a"):
        copy_to_device(host_a, a)
        copy_to_device(host_b, b)
        matrix_product(lab, a, b, product)
        streaming_add(lab, product, product, total)
        copy_to_host(total, back)
    lab.synchronize()
    np.testing.assert_array_equal(back, 2 * (host_a @ host_b))


def test_copies_from_page_locked_memory_do_not_wait(lab):
    size = 64 * 2**20
    device = lab.xp.empty(size, "int8")
    took_ns = []
    for host in (np.zeros(size, "int8"), lab.pinned_empty(size, "int8")):
        with lab.on("a"):
            began_ns = lab.backend.host_time_ns()
            copy_to_device(host, device)
            took_ns.append(lab.backend.host_time_ns() - began_ns)
        lab.synchronize()
    assert took_ns[0] > 100 * took_ns[1]


@pytest.mark.parametrize("wrong", [0, -1, 0.5, "1", None, True], ids=repr)
def test_numbers_out_of_range_are_told(lab, wrong):
    with lab.on("a", "x"):
        with pytest.raises(OptionError, match="duration_ns"):
            spin(lab, wrong)
        with pytest.raises(OptionError, match="duration_ns"):
            spin_card(lab, wrong)
        with pytest.raises(OptionError, match="blocks"):
            spin(lab, 1_000, blocks=wrong)


def test_kernels_need_a_stream(lab):
    for work in (spin, spin_card):
        with pytest.raises(SelectionError, match=rf"{work.__name__} needs a stream.*lab\.on\('name'\)"):
            work(lab, 1_000)


def test_arrays_the_wrong_way_round_are_told(lab):
    host, device = np.zeros(3), lab.xp.zeros(3)
    for copy, arguments in ((copy_to_device, (device, host)), (copy_to_host, (host, device))):
        with pytest.raises(OptionError, match=rf"{copy.__name__}\(.*ndarray.*order"):
            copy(*arguments)
