"""Counters of the card: what they say of known loads, who reads them, and what is made of them."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustreamlab as gsl
from gpustreamlab.analysis import counter_means
from gpustreamlab.analysis._card_counters import counted_bytes
from gpustreamlab.backends import CounterReading
from gpustreamlab.backends.cuda import _counters as nvml_counters
from gpustreamlab.backends.cuda._counters import MOST_WAIT_NS, NvmlCounters
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.backends.sim._preset import PRESETS
from gpustreamlab.errors import CaptureUnavailableError, CaptureWarning, OptionError
from gpustreamlab.model import CARD_COUNTERS, SPAN_KINDS
from gpustreamlab.recorder import counters as sampling
from gpustreamlab.typing import Cause, Certainty, SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.traces import make_trace
from tests.helpers.unfilled import leave_arrays_unfilled

MS = 1_000_000


@pytest.fixture(autouse=True)
def arrays_are_not_filled(monkeypatch):
    leave_arrays_unfilled(monkeypatch)


def samples_of(trace, name):
    """Return the times and the values of a counter."""
    counters = trace.counters
    own = counters.name == counters.names.index(name)
    return counters.time_ns[own], counters.value[own]


# Of the simulated device


def test_known_loads_are_counted_as_what_they_draw():
    with gsl.Session("sim", counters=True) as lab:
        x = lab.memory.pinned_empty((64 << 20,), np.uint8)
        array = lab.xp.empty(x.shape, np.uint8)
        array.set(x)
        lab.synchronize()
        lab.stream("a")
        spin(lab, 2 * MS, blocks=33, stream="a")
        lab.synchronize()
        big = lab.xp.ones((64 << 20,), np.float32)
        big + big
        lab.synchronize()
    trace = lab.trace

    def peak(name):
        return float(np.nanmax(samples_of(trace, name)[1]))

    assert peak("pcie_rx_bytes_per_s") == pytest.approx(trace.metadata.device.h2d_bytes_per_s, rel=0.01)
    assert peak("pcie_tx_bytes_per_s") == 0
    copies = trace.where(kind="copy")
    told = counter_means(trace, copies.start_ns[:1], copies.end_ns[:1])
    assert told["dram_active_percent"] == pytest.approx(100 * told["pcie_rx_bytes_per_s"] / PRESETS["h200"].memory_bytes_per_s)
    assert peak("dram_active_percent") == pytest.approx(100, rel=0.1)
    spun = trace.where(name="spin")
    assert counter_means(trace, spun.start_ns[-1:], spun.end_ns[-1:])["sm_active_percent"] == pytest.approx(25, rel=0.01)


def test_a_block_and_its_counters_say_what_they_are_in_lines():
    with gsl.Session("sim") as lab:
        assert "counts nothing yet. Type with lab.counters('dram'):" in repr(lab.counters("dram"))
        with lab.counters("dram") as block:
            lab.xp.ones(1 << 24).get()
            lab.synchronize()
    assert "dram each 50 us, counts dram_active_percent, dram_bytes_per_s. Values: lab.trace.counters" in repr(block)
    told = repr(lab.trace.counters).splitlines()
    assert told[0].startswith(f"<Counters: {len(lab.trace.counters):,} samples;")
    value = samples_of(lab.trace, "dram_active_percent")[1]
    known = value[~np.isnan(value)]
    assert f"dram_active_percent: {len(known)}, {known.min():.3g} to {known.max():.3g}" in told


def test_the_counters_of_a_run_add_up_to_what_it_moved():
    with gsl.Session("sim", counters=True) as lab:
        source = np.ones(1 << 22, np.float32)
        for _ in range(3):
            lab.xp.asarray(source)
            _, value = samples_of(lab.trace, "pcie_rx_bytes_per_s")
            assert np.isfinite(value[:-1]).all(), "reading in between takes nothing away"
            assert np.isnan(value[1:][-1]), "and what was counted holds no longer than it was"
        lab.synchronize()
    time_ns, value = samples_of(lab.trace, "pcie_rx_bytes_per_s")
    assert np.isnan(value[-1]), "behind the last reading nothing is known"
    assert float((value[:-1] * np.diff(time_ns)).sum()) == pytest.approx(3 * source.nbytes * 1e9, rel=1e-3)


def test_counting_costs_the_simulated_program_nothing():
    def run(counters):
        with gsl.Session("sim", counters=counters) as lab:
            lab.stream("a")
            with lab.on("a", "work"):
                y = lab.xp.ones((512, 512)) @ lab.xp.ones((512, 512))
            lab.synchronize()
            del y
        return lab.trace

    counted, bare = run(True), run(False)
    assert counted.end_ns.tolist() == bare.end_ns.tolist()
    assert not set(bare.counters.names) & set(CARD_COUNTERS)
    assert "sm_active_percent" in counted.counters.names


def test_two_sessions_of_one_device_count_each():
    device = SimBackend("h200")
    with gsl.Session(device, counters=True) as first:
        with gsl.Session(device, counters=True) as second:
            second.stream("a")
            spin(second, MS, blocks=132, stream="a")
            second.synchronize()
        first.synchronize()
    peaks = [float(np.nanmax(samples_of(lab.trace, "sm_active_percent")[1])) for lab in (first, second)]
    assert peaks == [100, 100]
    assert device.driver.scheduler.meters == []
    device.close()


def test_auto_is_for_gpus_and_other_words_are_refused():
    with gsl.Session("sim", counters="auto") as lab:
        lab.stream("a")
        spin(lab, MS, stream="a")
        lab.synchronize()
        assert not set(lab.trace.counters.names) & set(CARD_COUNTERS)
    with pytest.raises(OptionError, match=r"Session\(counters=True\)"):
        gsl.Session("sim", counters="always")


# Of a block


def busy(lab):
    """Upload 4 MiB, and spin on a quarter of the SMs for 2 ms."""
    lab.xp.asarray(np.ones(1 << 20, np.float32))
    lab.synchronize()
    spin(lab, 2 * MS, blocks=33, stream="a")
    lab.synchronize()


def test_a_block_counts_what_it_names_at_its_own_pace_in_a_lane_of_its_own():
    with gsl.Session("sim", counters=True) as lab:
        lab.stream("a")
        with lab.counters("sm", "pcie", every_us=100) as block:
            busy(lab)
        busy(lab)
    trace = lab.trace
    assert block.names == ("sm_active_percent", "sm_occupancy_percent", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
    lane = [lane.name for lane in trace.lanes].index("counters of GPU 0: the simulated device, each 100 us")
    finely = trace.counters.lane == lane
    assert {trace.counters.names[code] for code in trace.counters.name[finely]} == {*block.names}
    rows = finely & (trace.counters.name == trace.counters.names.index("sm_active_percent"))
    time_ns, value = trace.counters.time_ns[rows], trace.counters.value[rows]
    assert set(np.diff(time_ns[:-2])) == {100_000}
    assert np.isnan(value[-1]), "behind the block nothing is known"
    spun = trace.where(name="spin")
    assert time_ns[-1] < spun.start_ns[-1]
    assert counter_means(trace, spun.start_ns[:1], spun.end_ns[:1])["sm_active_percent"] == pytest.approx(25, rel=0.01)


def test_of_two_who_count_the_one_that_covers_more_of_a_time_tells():
    counters = gsl.model.Counters(
        time_ns=np.array([0, 10, 20, 30, 0, 50]), lane=np.array([0, 0, 0, 0, 1, 1]), name=np.zeros(6, int),
        value=np.array([10.0, 30.0, 50.0, np.nan, 90.0, 70.0]), names=("sm_active_percent",),
    )  # fmt: skip
    made = make_trace([("a", "x", 0, 100), ("b", "y", 0, 100)])
    trace = replace(made, counters=counters)
    assert counter_means(trace, np.array([5]), np.array([30])) == {"sm_active_percent": 40}, "50 ns say nothing of 25"
    assert counter_means(trace, np.array([0]), np.array([100])) == {"sm_active_percent": 80}


def test_a_block_costs_the_simulated_program_nothing_and_may_be_entered_again():
    def run(counts):
        with gsl.Session("sim") as lab:
            lab.stream("a")
            block = lab.counters(every_us=20)
            for _ in range(2):
                with block if counts else contextlib.nullcontext():
                    busy(lab)
        return lab.trace

    counted, bare = run(True), run(False)
    assert counted.end_ns.tolist() == bare.end_ns.tolist()
    assert np.isnan(samples_of(counted, "dram_bytes_per_s")[1]).sum() == 2
    assert not set(bare.counters.names) & set(CARD_COUNTERS)


def test_memory_s_bytes_are_counted_as_what_kernels_move():
    with gsl.Session("sim") as lab:
        x = lab.xp.ones((64 << 20,), np.float32)
        lab.synchronize()
        with lab.counters("dram"):
            x + x
            lab.synchronize()
    time_ns, value = samples_of(lab.trace, "dram_bytes_per_s")
    assert float((value[:-1] * np.diff(time_ns)).sum()) == pytest.approx(3 * x.nbytes * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("groups", "every_us", "words"),
    [
        (["dramm"], 50, "no counters 'dramm'. Did you mean 'dram'"),
        ([["sm", "dram"]], 50, r"named by text, not \['sm', 'dram'\]. Use lab.counters\('sm', 'dram'\)"),
        ([None], 50, "named by text, not None"),
        ([], 1, "from 10 to"),
        ([], "50", r"every_us=50"),
        ([], True, r"every_us is True"),
    ],
)
def test_what_cannot_be_counted_is_refused_before_anything_begins(groups, every_us, words):
    with gsl.Session("sim") as lab, pytest.raises(OptionError, match=words):
        lab.counters(*groups, every_us=every_us)


def test_a_block_says_what_it_is_and_a_lane_of_counters_is_no_thread():
    with gsl.Session("sim") as lab:
        block = lab.counters("dram", every_us=20)
        assert "dram each 20 us, counts nothing yet" in repr(block)
        with block, lab.on(lab.stream("a")):
            assert "dram each 20 us, counts dram_active_percent, dram_bytes_per_s" in repr(block)
            lab.xp.ones(1 << 20).sum().get()
        assert "in 1 stream and 1 host thread on" in repr(lab.trace)
        assert "in 1 stream and 1 host thread on" in repr(lab.timeline())


def test_a_card_has_one_sampler_and_a_session_ends_its_block():
    lab = gsl.Session("sim")
    lab.counters("sm").__enter__()
    with pytest.raises(CaptureUnavailableError, match="open in this session already"), lab.counters("dram"):
        pass
    assert len(lab._backend.driver.scheduler.meters) == 1
    lab.close()
    assert "sm_active_percent" not in lab.trace.counters.names or np.isnan(samples_of(lab.trace, "sm_active_percent")[1][-1])


def test_a_group_that_the_device_lacks_is_told():
    with gsl.Session("sim") as lab:
        with pytest.warns(CaptureWarning, match="'tensor' are left out: the simulated device does not model it"):
            with lab.counters("tensor", "sm") as block:
                pass
        assert {*block.left_out} == {"tensor_active_percent", "sm_clock_mhz"}
        with warnings.catch_warnings(), lab.counters():
            warnings.simplefilter("error")


class FullBuffer:
    """Counts once, then its buffer is full."""

    description, period_s, pause_s, left_out = "a stand-in", 0.0, 0.0, {}

    def __init__(self):
        self.reads = 0

    def read(self, *, is_last=False):
        self.reads += 1
        if self.reads > 1:
            raise CaptureUnavailableError("the card's buffer was full")
        return [CounterReading(np.array([1_000, 2_000]), 3_000, {"sm_active_percent": np.array([10.0, 20.0])})]

    def close(self):
        self.reads = -1


def test_what_ends_a_block_early_is_told_and_what_was_counted_stays(monkeypatch):
    source = FullBuffer()
    monkeypatch.setattr(SimBackend, "fine_counter_source", lambda *_: source)
    with gsl.Session("sim") as lab:
        with pytest.warns(CaptureWarning, match="missing from some moment on: the card's buffer was full"):
            with lab.counters("sm"):
                for _ in range(2):
                    assert len(lab.trace.counters)
                assert source.reads == -1
        time_ns, value = samples_of(lab.trace, "sm_active_percent")
    np.testing.assert_array_equal(value, [10, 20, np.nan])
    assert time_ns.tolist() == [1_000, 2_000, 3_000]


# What is made of them


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=4),
)
def test_means_are_of_the_samples_that_lie_within(steps, times):
    moments = np.unique(np.cumsum(steps))
    value = np.arange(len(moments), dtype=float) + 1
    edges = np.cumsum([part for time in times for part in time])
    start_ns, end_ns = edges[::2], edges[1::2]
    trace = gsl.Trace(
        **{name: [] for name in ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread")},
        names=(), threads=(), lanes=make_trace([("a", "x", 0, 1)]).lanes,
        counters=gsl.model.Counters(
            time_ns=moments, lane=np.zeros(len(moments), int), name=np.zeros(len(moments), int), value=value,
            names=("power_watts",),
        ),
        metadata=make_trace([("a", "x", 0, 1)]).metadata,
    )  # fmt: skip
    last = max(int(end_ns[-1]), int(moments[-1]))
    pieces = list(itertools.pairwise([*moments.tolist(), last]))
    within = [sum(((start_ns <= at) & (at < end_ns)).any() for at in range(*piece)) for piece in pieces]
    inside = [
        (value[place], within[place])
        for place, (start, end) in enumerate(pieces)
        if end > start and within[place] >= 0.95 * (end - start)
    ]
    total = sum(duration for _, duration in inside)
    wanted = {}
    if total >= 0.5 * (end_ns - start_ns).sum():
        wanted = {"power_watts": sum(one * duration for one, duration in inside) / total}
    assert counter_means(trace, start_ns, end_ns) == pytest.approx(wanted)


def slowed(lab):
    """Run work on two streams at once, then on one; return what is found of kernels that took longer."""
    x = lab.xp.ones((16 << 20,), np.float32)
    lab.stream("a"), lab.stream("b")
    lab.synchronize()
    for stream, label in (("a", "together"), ("b", "together"), ("b", "alone")):
        with lab.on(stream, label):
            for _ in range(8):
                x + x
    lab.synchronize()
    return [one for one in lab.explain().findings if one.code is Cause.SLOWED_DOWN]


def test_kernels_that_share_the_memory_are_told_so_by_what_was_counted():
    with gsl.Session("sim", counters=True) as lab:
        found = slowed(lab)
    assert found
    assert {one.certainty for one in found} == {Certainty.MEASURED}
    assert "they share the memory's bandwidth" in found[0].text


def test_kernels_that_share_the_sms_are_told_so():
    with gsl.Session("sim", counters=True) as lab:
        lab.stream("a"), lab.stream("b")
        for stream, label in (("a", "together"), ("b", "together"), ("b", "alone")):
            with lab.on(stream, label):
                for _ in range(8):
                    spin(lab, MS // 5, blocks=132 * 24, stream=stream)
            if label == "together" and stream == "b":
                lab.synchronize()
        lab.synchronize()
    found = [one for one in lab.explain().findings if one.code is Cause.SLOWED_DOWN]
    assert {one.certainty for one in found} == {Certainty.MEASURED}
    assert "they share the SMs" in found[0].text


def adds(lab, x, parts):
    """Run adds on two partitions at once; return the trace of them."""
    lab.partition(parts)
    for name in "ab":
        lab.stream(name, partition=name)
    lab.synchronize()
    lab.clear()
    for _ in range(6):
        for name in "ab":
            with lab.on(name, "add"):
                x + x
    lab.synchronize()
    return lab.trace


def makespan(trace):
    kernels = trace.where(kind="kernel")
    return int(kernels.end_ns.max() - kernels.start_ns.min())


def test_what_if_knows_what_kernels_draw_from_memory_by_what_was_counted():
    """Of three sizes no model tells a floor; without what was counted, adds were taken to draw nothing."""
    with gsl.Session("sim") as lab:
        x = lab.xp.ones((16 << 20,), np.float32)
        swept = lab.bench.sweep(lambda: x + x, sms=[16, 64, 68])
        both = lab.bench.corun({"one": lambda: x + x, "two": lambda: x + x})
        trace = adds(lab, x, {"a": 16, "b": 16})
        real = makespan(adds(lab, x, {"a": 64, "b": "rest"}))
    assert swept.memory_bytes == pytest.approx(3 * x.nbytes, rel=0.02)
    assert both["one"].memory_bytes_per_s == pytest.approx(4.25e12, rel=0.02)
    assert both.memory_bytes_per_s == pytest.approx(4.25e12, rel=0.02)
    assert "Drawn from the card's memory" in " ".join(str(both).split())
    found = trace.what_if({"a": 64, "b": "rest"}, sweep={"add": swept})
    assert found.makespan_ns == pytest.approx(real, rel=0.03)
    bare = replace(swept, points=tuple(replace(one, memory_bytes=np.nan) for one in swept.points))
    blind = trace.what_if({"a": 64, "b": "rest"}, sweep={"add": bare})
    assert blind.makespan_ns < 0.6 * real
    assert "draw nothing from memory" in blind.notes[0]


def test_what_kernels_move_is_known_where_the_card_did_nothing_else():
    with gsl.Session("sim", counters=True) as lab:
        x = lab.xp.ones((16 << 20,), np.float32)
        lab.stream("a"), lab.stream("b")
        lab.synchronize()
        lab.clear()
        for _ in range(4):
            with lab.on("a", "add"):
                x + x
        lab.synchronize()
        for stream in "ab":
            spin(lab, MS, blocks=8, stream=stream)
        lab.synchronize()
    trace = lab.trace
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    names = [trace.names[code] for code in trace.name[rows].tolist()]
    moved = dict(zip(names, counted_bytes(trace, rows).tolist(), strict=True))
    assert moved["add"] == pytest.approx(3 * x.nbytes, rel=0.01)
    assert moved["spin"] == -1, "the two ran together"
    bare = replace(trace, counters=type(trace.counters)())
    assert counted_bytes(bare, rows).tolist() == [-1] * len(rows)


def test_the_clock_of_an_idle_card_says_nothing_of_its_kernels():
    """One trace has a long pause, in which the card lowered its clock."""
    names = ("sm_clock_mhz",)
    work = [("a", "x", 0, 400 * MS), ("a", "x", 2_000 * MS, 2_400 * MS)]
    time_ns = np.arange(0, 2_400 * MS, 100 * MS)
    zeros = np.zeros(len(time_ns), int)
    value = np.where((time_ns >= 400 * MS) & (time_ns < 2_000 * MS), 345.0, 1_980.0)
    counters = gsl.model.Counters(time_ns=time_ns, lane=zeros, name=zeros, value=value, names=names)
    paused = replace(make_trace(work), counters=counters)
    assert not any("MHz" in note for note in gsl.compare(clocked(1_980.0), paused).result.notes)


def test_cards_of_a_node_are_counted_apart(tmp_path):
    with gsl.Node([0, 1], backend="sim", counters=True) as node:
        for card, blocks in ((0, 66), (1, 132)):
            node[card].stream(f"work-{card}")
            spin(node[card], MS, blocks=blocks, stream=f"work-{card}")
        node.synchronize()
        trace = node.trace
    used = trace.utilization()
    assert used.active_sms.tolist() == pytest.approx([66, 132], rel=0.02)
    path = tmp_path / "node.parquet"
    trace.save(path)
    assert gsl.load_trace(path).utilization().active_sms.tolist() == used.active_sms.tolist()


def test_active_sms_are_a_partition_s_own_where_it_worked_alone():
    with gsl.Session("sim", counters=True) as lab:
        x = lab.xp.ones((64 << 20,), np.float32)
        lab.synchronize()
        lab.partition(one=64, two=64)
        lab.stream("a", partition="one"), lab.stream("b", partition="two")
        for stream in ("a", "b"):
            with lab.on(stream, "work"):
                x + x
            lab.synchronize()
    used = lab.trace.utilization()
    assert used.names[:2] == ("one", "two")
    assert used.active_sms[:2].tolist() == pytest.approx(used.granted_sms[:2].tolist(), rel=0.02)
    assert "DRAM active" in " ".join(str(used).split())
    assert used.to_pandas().active_sms[0] == used.active_sms[0]


def test_without_counters_nothing_is_said_of_them():
    with gsl.Session("sim") as lab:
        found = slowed(lab)
        used = lab.trace.utilization()
    assert {one.certainty for one in found} == {Certainty.LIKELY}
    assert "Counted" not in str(lab.trace.explain()) + str(used)
    assert np.isnan(used.active_sms).all()
    assert used.counted_means == {}


def clocked(mhz, held=0.0):
    names = ("sm_clock_mhz", "clocks_held_down")
    zeros = np.zeros(2, int)
    counters = gsl.model.Counters(time_ns=zeros, lane=zeros, name=np.arange(2), value=np.array([mhz, held]), names=names)
    return replace(make_trace([("a", "x", 0, 100)]), counters=counters)


def test_a_clock_that_fell_is_said_where_both_traces_counted_it():
    notes = gsl.compare(clocked(1_980.0), clocked(1_410.0, held=0.5)).result.notes
    said = [note for note in notes if "MHz" in note]
    assert said == [
        "The SMs ran at 1,410 MHz in b, at 1,980 MHz in a, held down by power, heat or hardware in 50% of the time: kernels "
        "that the SMs bound take up to 40% longer in b for that alone."
    ]
    assert not any("MHz" in note for note in gsl.compare(clocked(1_980.0), clocked(1_970.0)).result.notes)
    assert not any("MHz" in note for note in gsl.compare(clocked(1_980.0), make_trace([("a", "x", 0, 100)])).result.notes)


# Of a GPU, by a stand-in for NVML


# ruff: noqa: N801, N802, N815, N818 - NVML's names


class FakeNvml:
    """NVML of a card with GPU performance monitoring, whose counts come anew at each tick."""

    class NVMLError(Exception):
        """What the real one raises."""

    class NVMLError_InUse(NVMLError):
        """Where another samples at the same moment."""

    NVML_SUCCESS, NVML_GPM_METRICS_GET_VERSION, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 1, 2
    nvmlClocksEventReasonSwPowerCap = 4

    def __init__(self, *, has_gpm=True, left_out=()):
        self.has_gpm, self.left_out = has_gpm, left_out
        self.tick, self.live, self.busy, self.is_taken = 0, set(), 50.0, False
        self.clock = lambda: self.tick
        for number, (name, (metric, _)) in enumerate(nvml_counters._GPM.items()):
            setattr(self, metric, number)
            if name in left_out:
                self.missing = number

    def nvmlGpmQueryDeviceSupport(self, _card):
        return SimpleNamespace(isSupportedDevice=self.has_gpm)

    def nvmlGpmSampleAlloc(self):
        sample = SimpleNamespace(tick=None)
        self.live.add(id(sample))
        return sample

    def nvmlGpmSampleFree(self, sample):
        self.live.remove(id(sample))

    def nvmlGpmSampleGet(self, _card, sample):
        if self.is_taken:
            raise self.NVMLError_InUse
        sample.tick = self.clock()

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=-1, nvmlReturn=0, value=0.0) for _ in range(32)])

    def nvmlGpmMetricsGet(self, asked):
        assert asked.version == self.NVML_GPM_METRICS_GET_VERSION
        for one in asked.metrics[: asked.numMetrics]:
            is_memory = one.metricId == self.NVML_GPM_METRIC_DRAM_BW_UTIL
            one.value = self.busy if asked.sample2.tick > asked.sample1.tick else math.nan if is_memory else 0.0
            one.nvmlReturn = 3 if one.metricId == getattr(self, "missing", None) else 0

    def nvmlDeviceGetUtilizationRates(self, _card):
        return SimpleNamespace(gpu=70, memory=30)

    def nvmlDeviceGetPowerUsage(self, _card):
        return 412_000

    def nvmlDeviceGetClockInfo(self, _card, which):
        if which == self.NVML_CLOCK_MEM:
            raise self.NVMLError
        return 1_980

    def nvmlDeviceGetCurrentClocksEventReasons(self, _card):
        return 4


def gpm(nvml, *, every_ms=102, begun_ms=30, until_ms=2_000, late_ms=lambda: 0.3):
    """Ask a card that counts on each so often as the thread does; return what was told, and how often it was asked."""
    now = [0.0]
    nvml.clock = lambda: int((now[0] - begun_ms) // every_ms)
    source = NvmlCounters(nvml, "card", lambda: round(now[0] * MS))
    found, asked = [], 0
    while now[0] < until_ms:
        found += source.read()
        asked += 1
        now[0] += source.pause_s * 1e3 + late_ms()
    source.close()
    assert not nvml.live
    return found, asked


def test_gpm_tells_each_interval_in_which_the_card_counted_on():
    nvml = FakeNvml(left_out=["nvlink_rx_bytes_per_s"])
    found, _ = gpm(nvml)
    first, second = found[:2]
    assert first.values["sm_active_percent"] == 50
    assert first.values["pcie_rx_bytes_per_s"] == 50 * 1024 * 1024
    assert "nvlink_rx_bytes_per_s" not in first.values, "what the card does not have is not zero"
    assert (first.values["power_watts"], first.values["sm_clock_mhz"], first.values["clocks_held_down"]) == (412, 1_980, 1)
    assert "memory_clock_mhz" not in first.values
    assert second.begin_host_ns == first.end_host_ns
    source = NvmlCounters(nvml, "card", itertools.count(0, 10 * MS).__next__)
    source.close()
    source.close()
    assert not nvml.live


@pytest.mark.parametrize("every_ms", [50, 102, 103.7])
@pytest.mark.parametrize("begun_ms", [0, 30, 101])
def test_gpm_is_asked_as_the_card_counts_on_however_often_that_is(every_ms, begun_ms):
    drawn = np.random.default_rng(1)
    found, asked = gpm(
        FakeNvml(), every_ms=every_ms, begun_ms=begun_ms, until_ms=20_000, late_ms=lambda: drawn.exponential(0.3)
    )
    ends_ms = np.array([one.end_host_ns for one in found]) / MS
    late_ms = (ends_ms - begun_ms) % every_ms
    assert late_ms.max() < 8, "a value would be of a time that long before"
    assert np.median(late_ms) < 4
    assert len(found) > 0.95 * 20_000 / every_ms - 2
    assert asked < 1.3 * len(found) + 50, "each question takes 0.4 ms"


@pytest.mark.parametrize("stalled", [range(3, 4), range(6, 7), range(30, 31), range(3, 5), range(0, 60, 7)])
def test_how_often_a_card_counts_on_is_not_learned_where_the_thread_had_to_wait_for_python(stalled):
    asked = itertools.count()
    found, questions = gpm(FakeNvml(), until_ms=20_000, late_ms=lambda: 95 if next(asked) in stalled else 0.3)
    lasted_ms = np.array([one.end_host_ns - one.begin_host_ns for one in found]) / MS
    assert len(found) > 150
    assert lasted_ms.min() > 90
    assert questions < 1.3 * len(found) + 120


def test_no_number_and_a_card_that_another_samples_are_no_sample():
    nvml = FakeNvml()
    source = NvmlCounters(nvml, "card", itertools.count(0, 5 * MS).__next__)
    assert source.read() == []
    nvml.is_taken = True
    nvml.tick += 1
    assert source.read() == []
    nvml.is_taken = False
    assert source.read() == [], "when it began to count is not known"
    nvml.tick += 1
    (reading,) = source.read()
    assert reading.values["sm_active_percent"] == 50
    source.close()
    assert not nvml.live


def test_an_idle_card_is_told_as_idle_as_it_counts_on():
    nvml = FakeNvml()
    nvml.busy = 0.0
    found, asked = gpm(nvml)
    assert len(found) > 15
    assert asked < 100
    assert {value for one in found for name, value in one.values.items() if name in nvml_counters._GPM} == {0.0}


def test_zeros_of_a_card_that_does_not_tell_of_its_memory_are_believed_in_the_end():
    nvml = FakeNvml(left_out=["dram_active_percent"])
    nvml.busy = 0.0
    found, _ = gpm(nvml)
    assert found
    assert min(one.end_host_ns - one.begin_host_ns for one in found) >= MOST_WAIT_NS


def test_a_card_without_gpm_has_its_utilization_rates():
    source = NvmlCounters(FakeNvml(has_gpm=False), "card", itertools.count().__next__)
    (reading,) = source.read()
    assert source.description == "NVML utilization"
    assert (reading.values["kernel_time_percent"], reading.values["memory_time_percent"]) == (70, 30)
    assert "sm_active_percent" not in reading.values


# Who reads them


class Source:
    """Counts how often it is read."""

    description, period_s, pause_s = "a stand-in", 0.001, 0.001

    def __init__(self, fails_at=-1):
        self.fails_at, self.read_count, self.is_closed = fails_at, 0, False
        self.was_read = threading.Event()

    def read(self, *, is_last=False):
        self.read_count += 1
        if self.read_count >= 3:
            self.was_read.set()
        if self.read_count == self.fails_at:
            raise RuntimeError("The card has fallen off the bus.")
        return []

    def close(self):
        self.is_closed = True


@pytest.fixture
def open_with(monkeypatch):
    def open_session(source):
        monkeypatch.setattr("gpustreamlab.backends.sim._backend.SimBackend.counter_source", lambda _: source)
        return gsl.Session("sim", counters=True)

    return open_session


def test_a_gpu_is_read_from_a_thread_that_ends_with_the_session(open_with):
    source = Source()
    with open_with(source):
        assert source.was_read.wait(60)
        assert "gpustreamlab counters" in [one.name for one in threading.enumerate()]
    assert source.is_closed
    assert "gpustreamlab counters" not in [one.name for one in threading.enumerate()]


def test_a_source_that_fails_ends_and_disturbs_nobody(open_with, caplog):
    caplog.set_level("INFO", logger="gpustreamlab")
    source = Source(fails_at=3)
    with open_with(source) as lab:
        assert source.was_read.wait(60)
        lab.stream("a")
        spin(lab, MS, stream="a")
        lab.synchronize()
        assert len(lab.trace)
    assert source.is_closed
    assert "Counters are not read any more" in caplog.text


def test_where_nothing_counts_true_is_refused_and_auto_is_silent(open_with):
    with pytest.raises(CaptureUnavailableError, match="nvidia-ml-py"):
        open_with(None)
    with gsl.Session("sim") as lab:
        assert sampling.start_counters(lab._recorder, lab._backend, wanted=False) is None
