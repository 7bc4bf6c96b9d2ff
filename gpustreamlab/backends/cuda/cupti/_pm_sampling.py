"""Counters of a card each few microseconds, by CUPTI's PM sampling (``cupti_pmsampling.h``, from CUDA 12.6 on).

The card writes raw samples into a buffer. One call of CUPTI decodes what is in it into an image, and two more for each sample
tell its times and values; all of them let go of the interpreter. A full image loses samples, so it holds several reads.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.defences import HomeProcess
from gpustreamlab.backends._counters import CounterReading
from gpustreamlab.backends.cuda._counters import COUNTING
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._library import INSUFFICIENT_PRIVILEGES, NO_SUCH_FUNCTION, Cupti
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.typing import Int64Array

_log = logging.getLogger(__name__)

_PEAK, _PER_S = ".avg.pct_of_peak_sustained_elapsed", ".sum.per_second"
_METRICS: dict[str, tuple[float, tuple[str, ...]]] = {
    "sm_active_percent": (1.0, (f"sm__cycles_active{_PEAK}",)),
    "sm_occupancy_percent": (1.0, (f"sm__warps_active_realtime{_PEAK}", f"sm__warps_active{_PEAK}")),
    "sm_clock_mhz": (1e-6, ("gpc__cycles_elapsed.avg.per_second",)),
    "tensor_active_percent": (1.0, (f"sm__pipe_tensor_cycles_active_realtime{_PEAK}", f"sm__pipe_tensor_cycles_active{_PEAK}")),
    "dram_active_percent": (1.0, (f"dram__throughput{_PEAK}",)),
    "dram_bytes_per_s": (1.0, (f"dram__bytes{_PER_S}",)),
    "pcie_rx_bytes_per_s": (1.0, (f"pcie__read_bytes{_PER_S}", f"PCI.TriageCompute.pcie__read_bytes{_PER_S}")),
    "pcie_tx_bytes_per_s": (1.0, (f"pcie__write_bytes{_PER_S}", f"PCI.TriageCompute.pcie__write_bytes{_PER_S}")),
    "nvlink_rx_bytes_per_s": (1.0, (f"nvlrx__bytes{_PER_S}",)),
    "nvlink_tx_bytes_per_s": (1.0, (f"nvltx__bytes{_PER_S}",)),
}
"""By counter what one unit of CUPTI's metric is, and its names, which differ by chip: the first one that a chip has counts."""

PERIOD_S = 0.05  # Between two reads
READS_HELD, MOST_SAMPLES = 4, 8_192  # How many reads an image holds, and samples: at 16 KiB each and more
MOST_IMAGES = 32  # How many images one read takes at most
PROBED, STARVED_S = 4, 1e-3  # Samples of a read by which it is seen that the interpreter is not to be had, and what each takes
BUFFER_S = 2.0  # What the card's buffer holds, where a sample takes as much as it has been seen to
SAMPLE_BYTES, MOST_BUFFER_BYTES = 16 * 1024, 512 << 20
_SAME_CLOCK_NS = 60_000_000_000  # Times that are farther from the wall clock are of another clock

# Result codes. Source: ``cupti_result.h``
_INVALID_OPERATION, _OUT_OF_MEMORY, _NOT_INITIALIZED, _HARDWARE_BUSY, _NOT_SUPPORTED = 7, 8, 15, 26, 27
_NO_SUCH_METRIC = {1, 17}
_DEVICE_REFUSED = {_NOT_SUPPORTED, 33, 41, 42, 43, 44, 45, 46}
_VIRTUAL_PRIVILEGES = 40
_CLAIMS = {"cuptiPmSamplingEnable", "cuptiPmSamplingGetCounterAvailability"}  # What fails where the card is sampled already

_PM_SAMPLING, _PROFILER_PM_SAMPLING, _SUPPORTED, _LIMITED = 1, 3, 3, 4  # CUpti_ProfilerType, CUpti_Profiler_API, support levels
_TIME_INTERVAL, _KEEP_OLDEST, _IMAGE_FULL = 1, 0, 1  # Trigger, append mode, and why decoding stopped

_TYPES = {
    "p": ctypes.c_void_p, "s": ctypes.c_char_p, "n": ctypes.c_size_t, "q": ctypes.c_uint64, "i": ctypes.c_int,
    "u": ctypes.c_uint32, "b": ctypes.c_uint8,
}  # fmt: skip
_SUPPORT = ["isSupported", "architecture", "sli", "vGpu", "confidentialCompute", "cmp", "wsl"]
_SAMPLER, _HOST = "pPmSamplingObject:p", "pHostObject:p"
_IMAGE, _NAMES = "pCounterDataImage:p counterDataImageSize:n", "ppMetricNames:p numMetrics:n"
_SAMPLE_INFO, _EVALUATE = "cuptiPmSamplingCounterDataGetSampleInfo", "cuptiProfilerHostEvaluateToGpuValues"
_PARAMETERS = {
    "cuptiProfilerInitialize": "",
    "cuptiProfilerDeviceSupported": f"cuDevice:i {' '.join(f'{name}:i' for name in _SUPPORT)} api:i",
    "cuptiDeviceGetChipName": "deviceIndex:n pChipName:s",
    "cuptiPmSamplingGetCounterAvailability": "deviceIndex:n size:n pImage:p",
    "cuptiProfilerHostInitialize": f"profilerType:i pChipName:s pAvailability:p {_HOST}",
    "cuptiProfilerHostDeinitialize": _HOST,
    "cuptiProfilerHostConfigAddMetrics": f"{_HOST} {_NAMES}",
    "cuptiProfilerHostGetConfigImageSize": f"{_HOST} size:n",
    "cuptiProfilerHostGetConfigImage": f"{_HOST} size:n pImage:p",
    "cuptiProfilerHostGetNumOfPasses": "size:n pImage:p numOfPasses:n",
    _EVALUATE: f"{_HOST} {_IMAGE} rangeIndex:n {_NAMES} pMetricValues:p",
    "cuptiPmSamplingEnable": f"deviceIndex:n {_SAMPLER}",
    "cuptiPmSamplingSetConfig": f"{_SAMPLER} configSize:n pConfig:p hardwareBufferSize:n samplingInterval:q "
    "triggerMode:i hwBufferAppendMode:i",
    "cuptiPmSamplingGetCounterDataSize": f"{_SAMPLER} {_NAMES} maxSamples:u size:n",
    "cuptiPmSamplingCounterDataImageInitialize": f"{_SAMPLER} size:n pImage:p",
    "cuptiPmSamplingStart": _SAMPLER,
    "cuptiPmSamplingDecodeData": f"{_SAMPLER} {_IMAGE} decodeStopReason:i overflow:b",
    "cuptiPmSamplingGetCounterDataInfo": f"{_IMAGE} total:n populated:n completed:n",
    _SAMPLE_INFO: f"{_SAMPLER} {_IMAGE} sampleIndex:n startTimestamp:q endTimestamp:q",
    "cuptiPmSamplingStop": _SAMPLER,
    "cuptiPmSamplingDisable": _SAMPLER,
}
"""The fields of what each function takes, behind ``structSize`` and ``pPriv``, as in CUPTI 13.0; newer ones know it by size."""


class PmSampler:
    """Samples one card; a `FineCounterSource`. Another block, or another tool, can have the card when it is closed.

    Parameters
    ----------
    cupti
        The library.
    ordinal
        The CUDA device number; its context is current.
    counters, every_ns
        What is wanted, by names of `gpustreamlab.model.CARD_COUNTERS`, and the time between two samples.
    host_time_ns
        The backend's clock of the host.

    Raises
    ------
    CaptureUnavailableError
        If the card cannot be sampled; it says which call of CUPTI refused, and what to do.
    """

    description = "CUPTI PM sampling"
    period_s = pause_s = PERIOD_S

    def __init__(
        self, cupti: Cupti, *, ordinal: int, counters: Sequence[str], every_ns: int, host_time_ns: Callable[[], int]
    ) -> None:
        self._cupti, self._ordinal, self._every_ns = cupti, ordinal, every_ns
        self._wall = WallClock(time.time_ns, host_time_ns)
        self._home = HomeProcess()
        self._object: int | None = None
        self._host: int | None = None
        self._is_on = self._is_closed = False
        self._last_ns = 0  # The end of the last sample, by CUPTI
        self.left_out: dict[str, str] = {}
        if ordinal in cupti.sampled_cards:
            raise CaptureUnavailableError(
                f"Another sampler has the card: a block of lab.counters(...) of this process samples CUDA device {ordinal}. "
                "Leave it first."
            )
        cupti.sampled_cards.add(ordinal)
        try:
            with COUNTING:  # what another asks for at this moment would be told as missing
                self._choose(list(counters))
                self._begin()
        except BaseException:
            self.close()
            raise

    def read(self, *, is_last: bool = False) -> list[CounterReading]:
        """Return the samples since the last time; NaN where some are missing."""
        if self._home.is_another:  # CUDA does not work in a forked child
            return []
        if is_last:
            self._stop()
        readings: list[CounterReading] = []
        for _ in range(MOST_IMAGES):
            decoded = self._call("cuptiPmSamplingDecodeData", {_OUT_OF_MEMORY}, **self._of_image)
            if decoded.overflow or decoded.code:
                raise CaptureUnavailableError(
                    f"the card's buffer of {self._buffer_bytes >> 20} MiB was full before it was read. Use a longer time than "
                    f"every_us={self._every_ns / 1_000:g}, or fewer counters."
                )
            readings += self._readings(*self._samples())
            self._call("cuptiPmSamplingCounterDataImageInitialize", **self._object_and_image)
            if decoded.decodeStopReason != _IMAGE_FULL:
                break
        return readings

    def close(self) -> None:
        """Give the card back. Idempotent, never raises."""
        if self._home.is_another or self._is_closed:
            return
        self._is_closed = True
        sampler, host, self._object, self._host = self._object, self._host, None, None
        is_on, self._is_on = self._is_on, False
        ends: list[tuple[str, str, int | None]] = [
            ("cuptiPmSamplingStop", "pPmSamplingObject", sampler if is_on else None),
            ("cuptiPmSamplingDisable", "pPmSamplingObject", sampler),
            ("cuptiProfilerHostDeinitialize", "pHostObject", host),
        ]
        for name, field, taken in ends:
            code = 0 if taken is None else self._cupti.call(name, ctypes.byref(_make(name, **{field: taken})))
            if code:
                _log.warning("PM sampling was not ended in order: %s", self._explain(name, code))
        self._cupti.sampled_cards.discard(self._ordinal)

    # What to sample

    def _choose(self, counters: list[str]) -> None:
        """Make the image that tells the card what to sample: of what is wanted, all that it has and can count at once."""
        self._cupti.bring_back()
        self._call("cuptiProfilerInitialize")  # never undone: others in the process may profile by then, and it counts no users
        self._cupti.has_profiled = True
        # It takes the driver's handle of the device, which is its number.
        level = self._call("cuptiProfilerDeviceSupported", cuDevice=self._ordinal, api=_PROFILER_PM_SAMPLING)
        if level.isSupported not in {_SUPPORTED, _LIMITED}:
            found = ", ".join(f"{name} {getattr(level, name)}" for name in _SUPPORT)
            raise CaptureUnavailableError(
                f"CUDA device {self._ordinal} cannot be sampled: cuptiProfilerDeviceSupported gave {found} (3: supported). "
                "Use gpustreamlab.Session(counters=True)."
            )
        self._chip: bytes = self._call("cuptiDeviceGetChipName", deviceIndex=self._ordinal).pChipName
        size: int = self._call("cuptiPmSamplingGetCounterAvailability", deviceIndex=self._ordinal).size
        self._availability = ctypes.create_string_buffer(size)
        self._call(
            "cuptiPmSamplingGetCounterAvailability",
            deviceIndex=self._ordinal,
            size=size,
            pImage=ctypes.addressof(self._availability),
        )
        self._names: list[str] = []
        metrics: list[str] = []
        for counter in counters:  # one after the other: one that the chip does not have spoils all
            problems = []
            for metric in _METRICS[counter][1]:
                problem = self._configure([*metrics, metric])
                if not problem:
                    metrics.append(metric)
                    self._names.append(counter)
                    break
                problems.append(problem)
            else:
                self.left_out[counter] = problems[0]
        if not metrics:
            raise CaptureUnavailableError(
                f"CUDA device {self._ordinal} ({self._chip.decode()}) has none of these counters: {self.left_out}. "
                "Use gpustreamlab.Session(counters=True)."
            )
        self._configure(metrics)
        self._units = np.array([_METRICS[name][0] for name in self._names])

    def _configure(self, metrics: Sequence[str]) -> str:
        """Make an image for these metrics; return why there is none, or nothing."""
        if self._host is not None:
            self._call("cuptiProfilerHostDeinitialize", pHostObject=self._host)
            self._host = None
        availability = ctypes.addressof(self._availability)
        made = self._call(
            "cuptiProfilerHostInitialize", profilerType=_PM_SAMPLING, pChipName=self._chip, pAvailability=availability
        )
        self._host = host = made.pHostObject
        self._metrics = (ctypes.c_char_p * len(metrics))(*(metric.encode() for metric in metrics))
        self._of_metrics = {"ppMetricNames": ctypes.addressof(self._metrics), "numMetrics": len(metrics)}
        name = "cuptiProfilerHostConfigAddMetrics"
        if self._call(name, _NO_SUCH_METRIC, pHostObject=host, **self._of_metrics).code:
            return f"{self._chip.decode()} has no {metrics[-1]}"
        size: int = self._call("cuptiProfilerHostGetConfigImageSize", pHostObject=host).size
        self._config = ctypes.create_string_buffer(size)  # CUPTI keeps its address
        image = {"size": size, "pImage": ctypes.addressof(self._config)}
        self._call("cuptiProfilerHostGetConfigImage", pHostObject=host, **image)
        passes: int = self._call("cuptiProfilerHostGetNumOfPasses", **image).numOfPasses
        return "" if passes == 1 else f"{metrics[-1]} cannot be counted at once with the others: that takes {passes} passes"

    # The card

    def _begin(self) -> None:
        """Let the card sample from now on."""
        self._object = self._call("cuptiPmSamplingEnable", deviceIndex=self._ordinal).pPmSamplingObject
        self._buffer_bytes = min(MOST_BUFFER_BYTES, int(SAMPLE_BYTES * BUFFER_S * 1e9 / self._every_ns) + (1 << 20))
        self._call(
            "cuptiPmSamplingSetConfig",
            pPmSamplingObject=self._object,
            configSize=len(self._config),
            pConfig=ctypes.addressof(self._config),
            hardwareBufferSize=self._buffer_bytes,
            samplingInterval=self._every_ns,
            triggerMode=_TIME_INTERVAL,
            hwBufferAppendMode=_KEEP_OLDEST,
        )
        most = min(MOST_SAMPLES, int(READS_HELD * PERIOD_S * 1e9 / self._every_ns) + 64)
        name = "cuptiPmSamplingGetCounterDataSize"
        size: int = self._call(name, pPmSamplingObject=self._object, maxSamples=most, **self._of_metrics).size
        self._image = np.zeros(size, np.uint8)
        address = self._image.ctypes.data
        self._of_image = {"pPmSamplingObject": self._object, "pCounterDataImage": address, "counterDataImageSize": size}
        self._object_and_image = {"pPmSamplingObject": self._object, "size": size, "pImage": address}
        self._call("cuptiPmSamplingCounterDataImageInitialize", **self._object_and_image)
        self._call("cuptiPmSamplingStart", pPmSamplingObject=self._object)
        self._is_on = True

    def _stop(self) -> None:
        is_on, self._is_on = self._is_on, False
        if is_on:
            self._call("cuptiPmSamplingStop", pPmSamplingObject=self._object)

    def _samples(self) -> tuple[Int64Array, Int64Array, NDArray[np.float64]]:
        """Return begin, end and values of the samples in the image; shape (n,), (n,) and (n, n_counters)."""
        image = {name: value for name, value in self._of_image.items() if name != "pPmSamplingObject"}
        count: int = self._call("cuptiPmSamplingGetCounterDataInfo", **image).completed
        times, values = np.zeros((2, count), np.int64), np.zeros((count, len(self._names)))
        # On the hot path: what the two functions take is made once, and only what differs is written anew.
        told, asked = (
            _make(_SAMPLE_INFO, **self._of_image),
            _make(_EVALUATE, pHostObject=self._host, **image, **self._of_metrics),
        )
        taken = {_SAMPLE_INFO: ctypes.byref(told), _EVALUATE: ctypes.byref(asked)}
        calls = [(name, getattr(self._cupti.library, name), taken[name]) for name in taken]
        first, row_bytes, began_s = values.ctypes.data, values.strides[0], time.perf_counter()
        for place in range(count):
            if place == PROBED and time.perf_counter() - began_s > PROBED * STARVED_S:
                # Who waits for the interpreter at each call, behind a thread of pure Python, keeps it from one to the next.
                calls = [(name, getattr(ctypes.PyDLL(self._cupti.path), name), taken[name]) for name in taken]
            told.sampleIndex = asked.rangeIndex = place
            asked.pMetricValues = first + place * row_bytes
            for name, function, parameters in calls:
                self._check(name, function(parameters))
            times[0, place], times[1, place] = told.startTimestamp, told.endTimestamp
        is_real = (times[0] > 0) & (times[1] > times[0])  # one that stands behind the end of the sampling has no length
        return times[0, is_real], times[1, is_real], values[is_real] * self._units

    def _readings(self, start_ns: Int64Array, end_ns: Int64Array, values: NDArray[np.float64]) -> list[CounterReading]:
        """Put samples on the host's clock. Where some are missing in front of one, NaN stands from there on."""
        if not len(start_ns):
            return []
        if abs(int(end_ns[-1]) - time.time_ns()) > _SAME_CLOCK_NS:
            raise CaptureUnavailableError(
                f"CUPTI tells times of samples by a clock that is not known here: {int(end_ns[-1])} while the wall clock was "
                f"{time.time_ns()} and the monotonic one {time.monotonic_ns()}. End what else profiles this process."
            )
        before_ns = np.append(self._last_ns or start_ns[0], end_ns[:-1])
        gaps = np.flatnonzero(start_ns - before_ns > self._every_ns // 2)
        self._last_ns = int(end_ns[-1])
        begin_ns = np.insert(start_ns, gaps, before_ns[gaps])
        values = np.insert(values, gaps, np.nan, axis=0)
        self._wall.look()
        begin_host_ns, last = self._wall.to_host_ns(begin_ns), self._wall.to_host_ns(end_ns[-1:])
        return [CounterReading(begin_host_ns, int(last[0]), dict(zip(self._names, values.T, strict=True)))]

    # Calls

    def _call(self, name: str, allowed: Collection[int] = (), /, **fields: Any) -> Any:
        """Call a function of CUPTI; return what it took, with what it has written there, and its result code."""
        parameters = _make(name, **fields)
        parameters.code = self._cupti.call(name, ctypes.byref(parameters))
        if parameters.code not in allowed:
            self._check(name, parameters.code)
        return parameters

    def _check(self, name: str, code: int) -> None:
        if code:
            raise CaptureUnavailableError(self._explain(name, code))

    def _explain(self, name: str, code: int) -> str:
        """Say which call refused, its result code, and what to do."""
        cupti = self._cupti
        text = f"CUDA device {self._ordinal} cannot be sampled: {name} gave {code}, {cupti.explain(code)}."
        if code == NO_SUCH_FUNCTION:
            return f"{text} {cupti.title} has no such function. Install the CUPTI of CUDA 12.6 or newer."
        if code in {INSUFFICIENT_PRIVILEGES, _VIRTUAL_PRIVILEGES}:
            return (
                f"{text} Only administrators may read the counters here: RmProfilingAdminOnly is 1 in "
                "/proc/driver/nvidia/params. Who runs the machine can load the driver with the option "
                "NVreg_RestrictProfilingToAdminUsers=0. Use gpustreamlab.Session(counters=True) until then."
            )
        if code == _HARDWARE_BUSY or (code == _INVALID_OPERATION and name in _CLAIMS):
            return f"{text} Another sampler has the card, and it has one: end ncu, nsys, DCGM's profiling, or the other block."
        if code == _NOT_INITIALIZED:
            return f"{text} It needs libnvperf_host.so and libnvperf_target.so beside {cupti.path}: install nvidia-cuda-cupti."
        if code in _DEVICE_REFUSED:
            return f"{text} This card, or this way to use it, is not supported. Use gpustreamlab.Session(counters=True)."
        return text


@cache
def _parameters(name: str) -> Any:
    """Return the type of what a function takes, and the size that CUPTI wants to be told: up to the end of the last field."""
    pairs = (field.split(":") for field in f"structSize:n pPriv:p {_PARAMETERS[name]}".split())
    fields = [(field, _TYPES[kind]) for field, kind in pairs]
    made = type(name, (ctypes.Structure,), {"_fields_": fields, "code": 0})
    last = getattr(made, fields[-1][0])
    return made, last.offset + last.size


def _make(name: str, /, **fields: Any) -> Any:
    made, size = _parameters(name)
    return made(structSize=size, **fields)
