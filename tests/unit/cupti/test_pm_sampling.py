"""PM sampling by a stand-in for CUPTI: what is asked of it, what its samples become, and what is said where it refuses."""

from __future__ import annotations

import ctypes
import logging
import time

import numpy as np
import pytest

from gpustreamlab.backends import COUNTER_GROUPS
from gpustreamlab.backends.cuda.cupti import _pm_sampling
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._pm_sampling import PmSampler
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import CARD_COUNTERS

EVERY_NS = 50_000
ALL = [name for names in COUNTER_GROUPS.values() for name in names]


# ruff: noqa: N802 - CUPTI's names


class FakeSampling:
    """A libcupti of one card that has ``metrics`` (None for all), of which ``at_once`` fit into one pass."""

    def __init__(self, *, metrics=None, at_once=99, refuses=None, missing=()):
        self.metrics, self.at_once, self.refuses, self.missing = metrics, at_once, refuses or {}, missing
        self.calls, self.names, self.samples = [], [], []
        self.stop_reasons, self.overflow, self.support = [], 0, 3

    def __getattr__(self, name):
        if name.startswith("_") or name in self.missing:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            answer = getattr(type(self), f"on_{name.removeprefix('cupti')}", None)
            if name in self.refuses:
                return self.refuses[name]
            told = getattr(arguments[-1], "_obj", None)
            if isinstance(told, ctypes.Structure):
                assert ctypes.sizeof(told) >= told.structSize > 0
                assert told.pPriv is None
            return (answer(self, *arguments[:-1], told) or 0) if answer else 0

        return call

    def on_GetVersion(self, number):
        number.value = 130_001

    def on_GetResultString(self, code, text):
        text.value = {35: b"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}.get(code, b"CUPTI_ERROR_OTHER")

    def on_ProfilerDeviceSupported(self, told):
        assert told.api == 3
        told.isSupported = self.support

    def on_DeviceGetChipName(self, told):
        told.pChipName = b"GH100"

    def on_PmSamplingGetCounterAvailability(self, told):
        told.size = 8

    def on_ProfilerHostInitialize(self, told):
        assert (told.profilerType, told.pChipName) == (1, b"GH100")
        told.pHostObject = 7

    def on_ProfilerHostConfigAddMetrics(self, told):
        texts = (ctypes.c_char_p * told.numMetrics).from_address(told.ppMetricNames)
        self.names = [text.decode() for text in texts]
        return 0 if self.metrics is None or {*self.names} <= {*self.metrics} else 1

    def on_ProfilerHostGetConfigImageSize(self, told):
        told.size = 16

    def on_ProfilerHostGetNumOfPasses(self, told):
        told.numOfPasses = 1 if len(self.names) <= self.at_once else 2

    def on_PmSamplingEnable(self, told):
        told.pPmSamplingObject = 9

    def on_PmSamplingSetConfig(self, told):
        self.config = {name: getattr(told, name) for name, _ in told._fields_}

    def on_PmSamplingGetCounterDataSize(self, told):
        told.size = 64 * told.maxSamples

    def on_PmSamplingDecodeData(self, told):
        told.decodeStopReason = self.stop_reasons.pop(0) if self.stop_reasons else 2
        told.overflow = self.overflow
        return 8 if self.overflow else 0

    def on_PmSamplingGetCounterDataInfo(self, told):
        told.completed = len(self.samples)

    def on_PmSamplingCounterDataGetSampleInfo(self, told):
        told.startTimestamp, told.endTimestamp, _ = self.samples[told.sampleIndex]

    def on_ProfilerHostEvaluateToGpuValues(self, told):
        values = (ctypes.c_double * told.numMetrics).from_address(told.pMetricValues)
        values[:] = [self.samples[told.rangeIndex][2]] * told.numMetrics

    def on_PmSamplingCounterDataImageInitialize(self, _told):
        self.samples = []


def sampler(library, counters=ALL):
    return PmSampler(
        Cupti(library, "libcupti.so"), ordinal=0, counters=counters, every_ns=EVERY_NS, host_time_ns=time.perf_counter_ns
    )


def test_every_counter_that_can_be_asked_for_has_a_metric():
    assert {*ALL} == {*_pm_sampling._METRICS} <= {*CARD_COUNTERS}


def test_parameters_are_as_long_as_cupti_s_headers_say():
    """As a compiler says for the headers of 13.0; the last field ends the size, without what would fill it up."""
    wanted = {
        "cuptiProfilerInitialize": 16, "cuptiProfilerDeviceSupported": 52, "cuptiDeviceGetChipName": 32,
        "cuptiPmSamplingGetCounterAvailability": 40, "cuptiProfilerHostInitialize": 48, "cuptiProfilerHostDeinitialize": 24,
        "cuptiProfilerHostConfigAddMetrics": 40, "cuptiProfilerHostGetConfigImageSize": 32,
        "cuptiProfilerHostGetConfigImage": 40, "cuptiProfilerHostGetNumOfPasses": 40,
        "cuptiProfilerHostEvaluateToGpuValues": 72, "cuptiPmSamplingEnable": 32, "cuptiPmSamplingSetConfig": 64,
        "cuptiPmSamplingGetCounterDataSize": 56, "cuptiPmSamplingCounterDataImageInitialize": 40,
        "cuptiPmSamplingStart": 24, "cuptiPmSamplingDecodeData": 45, "cuptiPmSamplingGetCounterDataInfo": 56,
        "cuptiPmSamplingCounterDataGetSampleInfo": 64, "cuptiPmSamplingStop": 24, "cuptiPmSamplingDisable": 24,
    }  # fmt: skip
    assert {name: _pm_sampling._parameters(name)[1] for name in _pm_sampling._PARAMETERS} == wanted


def test_samples_stand_on_the_host_s_clock_in_the_units_of_the_counters():
    library = FakeSampling()
    source = sampler(library, ["sm_active_percent", "sm_clock_mhz"])
    assert (library.config["samplingInterval"], library.config["triggerMode"]) == (EVERY_NS, 1)
    wall_ns, host_ns = time.time_ns(), time.perf_counter_ns()
    library.samples = [(wall_ns + place * EVERY_NS, wall_ns + (place + 1) * EVERY_NS, 10.0 * place) for place in range(3)]
    (reading,) = source.read()
    assert reading.values["sm_active_percent"].tolist() == [0, 10, 20]
    assert reading.values["sm_clock_mhz"].tolist() == pytest.approx([0, 1e-5, 2e-5])
    assert np.diff(reading.begin_host_ns).tolist() == [EVERY_NS] * 2
    assert reading.end_host_ns - reading.begin_host_ns[-1] == EVERY_NS
    assert abs(int(reading.begin_host_ns[0]) - host_ns) < 1_000_000
    assert source.read() == []
    source.close()


def test_what_is_missing_between_samples_is_not_a_value():
    library = FakeSampling()
    source = sampler(library, ["dram_active_percent"])
    now = time.time_ns()
    # One without a time, one without a length, and two that are lost.
    library.samples = [(0, 0, 1.0), (now, now, 1.0), (now, now + EVERY_NS, 5.0), (now + 3 * EVERY_NS, now + 4 * EVERY_NS, 6.0)]
    (reading,) = source.read()
    np.testing.assert_array_equal(reading.values["dram_active_percent"], [5, np.nan, 6])
    assert np.diff(reading.begin_host_ns).tolist() == [EVERY_NS, 2 * EVERY_NS]
    library.samples = [(now + 6 * EVERY_NS, now + 7 * EVERY_NS, 7.0)]
    (reading,) = source.read()
    np.testing.assert_array_equal(reading.values["dram_active_percent"], [np.nan, 7])


@pytest.mark.parametrize("is_starved", [False, True])
def test_where_python_is_not_to_be_had_the_interpreter_is_kept(monkeypatch, is_starved):
    library, opened = FakeSampling(), []
    monkeypatch.setattr(_pm_sampling, "STARVED_S", 0.0 if is_starved else 60.0)
    monkeypatch.setattr(_pm_sampling.ctypes, "PyDLL", lambda path: opened.append(path) or library)
    source = sampler(library, ["pcie_rx_bytes_per_s"])
    now = time.time_ns()
    library.samples = [(now + place * EVERY_NS, now + (place + 1) * EVERY_NS, float(place)) for place in range(8)]
    (reading,) = source.read()
    assert reading.values["pcie_rx_bytes_per_s"].tolist() == list(range(8))
    assert {*opened} == ({"libcupti.so"} if is_starved else set())


def test_the_last_read_stops_the_card_first_and_takes_all():
    library = FakeSampling()
    library.stop_reasons = [1, 1]
    source = sampler(library)
    begun = len(library.calls)
    assert source.read(is_last=True) == []
    ended = library.calls[begun:]
    assert ended[0] == "cuptiPmSamplingStop"
    assert ended.count("cuptiPmSamplingDecodeData") == 3
    source.close()
    source.close()
    assert library.calls[-2:] == ["cuptiPmSamplingDisable", "cuptiProfilerHostDeinitialize"]
    assert library.calls.count("cuptiPmSamplingStop") == 1
    made, ended = (library.calls.count(f"cuptiProfilerHost{end}") for end in ("Initialize", "Deinitialize"))
    assert made == ended


def test_what_the_chip_does_not_have_is_left_out_and_told():
    first = "sm__warps_active.avg.pct_of_peak_sustained_elapsed"
    library = FakeSampling(metrics=[first, "dram__bytes.sum.per_second", "pcie__read_bytes.sum.per_second"], at_once=2)
    source = sampler(library)
    assert library.names == [first, "dram__bytes.sum.per_second"], "the second name of occupancy is known here"
    assert source.left_out["sm_active_percent"].startswith("GH100 has no sm__cycles_active")
    assert "at once with the others: that takes 2 passes" in source.left_out["pcie_rx_bytes_per_s"]
    assert {*source.left_out} == {*ALL} - {"sm_occupancy_percent", "dram_bytes_per_s"}
    with pytest.raises(CaptureUnavailableError, match="has none of these counters"):
        sampler(FakeSampling(metrics=[]))


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("cuptiPmSamplingEnable", 35, "gave 35, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES.*RmProfilingAdminOnly.*NVreg_Restrict"),
        ("cuptiPmSamplingGetCounterAvailability", 35, "cuptiPmSamplingGetCounterAvailability gave 35.*administrators"),
        ("cuptiPmSamplingEnable", 7, "Another sampler has the card"),
        ("cuptiPmSamplingStart", 26, "Another sampler has the card"),
        ("cuptiPmSamplingStart", 7, "cuptiPmSamplingStart gave 7, CUPTI_ERROR_OTHER.$"),
        ("cuptiProfilerHostInitialize", 15, "libnvperf_host.so"),
        ("cuptiPmSamplingSetConfig", 27, r"not supported. Use gpustreamlab.Session\(counters=True\)"),
        ("cuptiPmSamplingEnable", 43, "not supported"),
    ],
)
def test_a_refusal_names_the_call_and_what_to_do_and_gives_everything_back(name, code, words):
    library = FakeSampling(refuses={name: code})
    with pytest.raises(CaptureUnavailableError, match=words):
        sampler(library)
    assert library.calls.count("cuptiPmSamplingDisable") == (name in {"cuptiPmSamplingStart", "cuptiPmSamplingSetConfig"})


def test_cupti_is_brought_back_where_it_has_left_the_process_and_only_there():
    library = FakeSampling()
    cupti = Cupti(library, "libcupti.so")
    for has_left in (False, True):
        cupti.has_left = has_left
        source = PmSampler(
            cupti, ordinal=0, counters=["sm_active_percent"], every_ns=EVERY_NS, host_time_ns=time.perf_counter_ns
        )
        source.close()
        begun = library.calls.index("cuptiProfilerInitialize")
        brought = [name for name in library.calls[:begun] if "ubscribe" in name]
        assert brought == (["cuptiSubscribe", "cuptiUnsubscribe"] if has_left else [])
        library.calls.clear()
    assert not cupti.has_left


def test_an_older_cupti_and_a_card_that_cannot_are_told_so():
    with pytest.raises(CaptureUnavailableError, match=r"cuptiPmSamplingEnable gave -1.*CUDA 12\.6 or newer"):
        sampler(FakeSampling(missing=["cuptiPmSamplingEnable"]))
    library = FakeSampling()
    library.support = 1
    with pytest.raises(CaptureUnavailableError, match="cuptiProfilerDeviceSupported gave isSupported 1"):
        sampler(library)


def test_a_full_buffer_and_an_unknown_clock_end_it():
    library = FakeSampling()
    source = sampler(library)
    library.overflow = 1
    with pytest.raises(
        CaptureUnavailableError, match="512 MiB was full before it was read. Use a longer time than every_us=50"
    ):
        source.read()
    library.overflow, library.samples = 0, [(1_000, 2_000, 1.0)]
    with pytest.raises(CaptureUnavailableError, match="a clock that is not known here: 2000 while the wall clock was"):
        source.read()


def test_a_card_has_one_sampler_in_a_process_which_keeps_cupti_until_it_is_closed(caplog):
    library = FakeSampling()
    cupti = Cupti(library, "libcupti.so")

    def sample():
        return PmSampler(cupti, ordinal=0, counters=["sm_active_percent"], every_ns=EVERY_NS, host_time_ns=time.perf_counter_ns)

    source, begun = sample(), len(library.calls)
    with pytest.raises(CaptureUnavailableError, match="Another sampler has the card: a block of lab.counters"):
        sample()
    assert len(library.calls) == begun, "the one that goes on is not disturbed"
    assert cupti.sampled_cards == {0}
    library.refuses["cuptiPmSamplingDisable"] = 999
    with caplog.at_level(logging.WARNING):
        source.close()
    assert "cuptiPmSamplingDisable gave 999" in caplog.text
    assert cupti.sampled_cards == set()
    library.refuses = {"cuptiPmSamplingEnable": 35}
    with pytest.raises(CaptureUnavailableError, match="Rm"):
        sample()
    assert cupti.sampled_cards == set()
