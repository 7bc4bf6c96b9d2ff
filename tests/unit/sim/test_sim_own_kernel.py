"""Kernels that are only said to take something: how many fit, how long they take, what the records say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import blocks_that_fit
from gpustreamlab.backends.sim import H200, SimBackend
from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.workloads import modelled, spin
from tests.helpers.selections import names_of


@pytest.fixture
def lab():
    with Session("sim") as session:
        session.partition(left=32, right="rest")
        session.stream("a")
        session.stream("left", partition="left")
        yield session


TAKES = [  # threads, registers, shared bytes; how many fit, what limits, how many the model runs
    (32, 16, 0, 32, "blocks", 32),
    (256, 32, 0, 8, "threads", 8),
    (256, 64, 0, 4, "registers", 4),
    (128, 72, 0, 7, "registers", 4),
    (128, 32, 40_960, 5, "shared memory", 4),
    (64, 32, 227 << 10, 1, "shared memory", 1),
    (1_024, 64, 0, 1, "registers", 1),
]


@pytest.mark.parametrize("takes", TAKES, ids=str)
def test_as_many_blocks_share_an_sm_as_fit(lab, takes):
    # GIVEN a kernel whose blocks have 400,000 operations each, one more than fill 32 SMs
    threads, registers, shared_bytes, fit, limited_by, per_sm = takes
    blocks = 32 * per_sm + 1
    # WHEN it runs
    told = modelled(
        lab,
        "own",
        blocks=blocks,
        threads_per_block=threads,
        registers_per_thread=registers,
        shared_bytes=shared_bytes,
        operations_per_block=4_000_000,
        stream="left",
    )
    lab.synchronize()
    # THEN a block has its share of an SM's 0.4e12 a second, the last one a wave of its own, and the record what was said
    assert (told.fitting_blocks, told.limited_by, told.blocks_per_sm) == (fit, limited_by, per_sm)
    assert (told.block_ns, told.waves, told.bound_by, told.sm_count) == (per_sm * 10_000, 2, "arithmetic", 32)
    trace = lab.trace
    row = names_of(trace).index("own")
    assert trace.duration_ns[row] == told.alone_ns == 2 * per_sm * 10_000
    detail = trace.details[trace.extra["detail"][row]]
    assert (detail.grid, detail.block, detail.registers) == ((blocks, 1, 1), (threads, 1, 1), registers)
    assert detail.dynamic_shared_bytes == shared_bytes
    assert blocks_that_fit(trace)[row] == fit


def test_memory_bounds_a_block_that_moves_much(lab):
    told = modelled(lab, "copy", blocks=32 * 8, threads_per_block=256, bytes_per_block=94_000, stream="left")
    assert (told.bound_by, told.block_ns, told.alone_ns) == ("memory", 8_000, 8_000)  # 94 GB/s for 8 blocks
    card = modelled(lab, "copy", blocks=132 * 8, threads_per_block=256, bytes_per_block=94_000, stream="a")
    assert card.alone_ns == pytest.approx(card.blocks * 94_000 / 4.25e12 * 1e9, rel=1e-3)  # the cap of the card
    assert card.alone_ns > card.block_ns
    assert modelled(lab, "tiny", blocks=1, threads_per_block=32, stream="a").bound_by == "floor"


def test_the_stream_that_is_selected_is_taken(lab):
    with pytest.raises(SelectionError, match="modelled needs a stream"):
        modelled(lab, "own", blocks=1, threads_per_block=32)
    with lab.on("left"):
        assert modelled(lab, "own", blocks=1, threads_per_block=32).sm_count == 32


@pytest.mark.parametrize(("cooperative", "waits_ns"), [(False, 0), (True, 1_000_000)])
def test_a_cooperative_kernel_begins_when_there_is_room_for_all_its_blocks_and_those_behind_it_wait(lab, cooperative, waits_ns):
    # GIVEN 8 of the 32 SMs held for 1 ms, and a kernel that needs all of them; another partition has nothing to do with it
    lab.stream("behind", partition="left")
    lab.stream("held", partition="left")
    lab.synchronize()
    lab.clear()
    spin(lab, 1_000_000, blocks=8, stream="held")
    whole = {"threads_per_block": 1_024, "registers_per_thread": 64, "operations_per_block": 400_000_000}
    modelled(lab, "whole", blocks=32, **whole, cooperative=cooperative, stream="left")
    spin(lab, 1_000, stream="behind")
    spin(lab, 1_000, stream="a")
    lab.synchronize()
    trace = lab.trace.where(kind="kernel")
    rows = {trace.lanes[lane].name: row for row, lane in enumerate(trace.lane)}
    start_ns, end_ns, queued_ns = trace.start_ns, trace.end_ns, trace.queued_ns
    waited_ns = start_ns[rows["left"]] - queued_ns[rows["left"]]
    assert waited_ns == pytest.approx(waits_ns, abs=10_000)
    assert start_ns[rows["behind"]] > end_ns[rows["held"]]  # as behind any kernel that has blocks left
    assert start_ns[rows["a"]] < end_ns[rows["held"]]
    # THEN the record, and the call, say so
    assert trace.details[trace.extra["detail"][rows["left"]]].is_cooperative == cooperative
    assert any(name == "cudaLaunchCooperativeKernel" for name in lab.trace.names) == cooperative


def test_a_cooperative_kernel_that_never_fits_is_refused(lab):
    whole = {"threads_per_block": 1_024, "registers_per_thread": 64}
    with pytest.raises(OptionError, match=r"33 blocks, and the stream's 32 SMs hold 32 at once\. Use blocks=32"):
        modelled(lab, "whole", blocks=33, **whole, cooperative=True, stream="left")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks": 1.5}, "blocks is 1.5"),
        ({"threads_per_block": 1_025}, "threads_per_block is 1025"),
        ({"threads_per_block": True}, "threads_per_block is True"),
        ({"registers_per_thread": 256}, "registers_per_thread is 256"),
        ({"shared_bytes": 228 << 10}, "from 0 to 232,448"),
        ({"bytes_per_block": -1}, "bytes_per_block is -1"),
        ({"operations_per_block": "many"}, "operations_per_block is 'many'"),
        ({"sm_operations_per_s": 0}, "sm_operations_per_s is 0"),
        ({"threads_per_block": 1_024, "registers_per_thread": 65}, "fewer registers"),
        ({"name": ""}, "name is ''"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_and_nothing_runs(lab, wrong, said):
    options = {"name": "own", "blocks": 1, "threads_per_block": 32, **wrong}
    lab.clear()
    with pytest.raises(OptionError, match=said):
        modelled(lab, options.pop("name"), stream="a", **options)
    lab.synchronize()
    assert names_of(lab.trace) == ["cudaDeviceSynchronize"]


def test_on_a_gpu_it_says_what_to_use(lab, monkeypatch):
    monkeypatch.setattr(type(lab), "device", SimpleNamespace(simulated=False))
    with pytest.raises(OptionError, match=r"lab.xp.RawKernel.*Session\('sim'\)"):
        modelled(lab, "own", blocks=1, threads_per_block=32, stream="a")


def test_a_kernel_is_explained_without_moving_the_clock():
    backend = SimBackend(H200)
    stream, before_ns = backend.create_stream(priority=0), backend.glance_ns()
    told = backend.launch_own(stream, "own", blocks=1, threads_per_block=64)
    assert backend.glance_ns() - before_ns == H200.host.launch_ns
    assert str(told).startswith("own: 1,500 ns alone on 132 SMs (modelled), 1 blocks, 32 an SM (limited by blocks), waves: 1")
