"""Find out what this machine can do with CUDA, and what to type where it cannot. Nothing here raises or makes a context."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpustreamlab._util.words import update_line
from gpustreamlab.adapters import KNOWN, Library, installed_version, library_of, obstacle_of, what_it_does
from gpustreamlab.backends.cuda._kernels import probe_kernel
from gpustreamlab.backends.cuda._libcuda import (
    OLDEST_GREEN,
    Driver,
    Gpu,
    cuda_extra,
    cupti_line_for,
    import_cuda_core,
    import_cupy,
    import_nvtx,
    install_line_for,
    mapped_errors,
    read_driver,
    read_gpus,
)
from gpustreamlab.backends.cuda._nvtx import CRASHING_VERSIONS, INJECTION_VARIABLE, is_injection_ours
from gpustreamlab.backends.cuda._stream import CudaStream
from gpustreamlab.backends.cuda.cupti._library import load_cupti
from gpustreamlab.errors import BackendError, CaptureUnavailableError, DeviceError, MissingExtraError
from gpustreamlab.model import ClockRates
from gpustreamlab.typing import Int64Array, PeerAccess, Unavailable

_log = logging.getLogger(__name__)

_MODULES = ("cupy", "cuda.core", "cuda.bindings", "nvtx")
_CUPY_BUILDS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_DRIVER_PAGE = "https://www.nvidia.com/drivers"
_CUPTI_BUILDS = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12")
_NEWER_CUPTI_LINE = "pip install --upgrade 'nvidia-cuda-cupti>=13.0.85,<14'"


class CheckStatus(StrEnum):
    """What a check found."""

    OK = "ok"  # It works
    LACKING = "lacking"  # It does not work, and the fix can be typed here
    UNAVAILABLE = "unavailable"  # It cannot work on this machine as it is: hardware, or a driver, is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at, and what was found."""

    name: str  # What was looked at
    status: CheckStatus  # What was found
    detail: str  # Versions and numbers, or what is wrong
    fix: str = ""  # What to type or do; empty where nothing is wrong


def why_unavailable() -> tuple[Unavailable, str] | None:
    """Say why the CUDA backend cannot run here, or None if it can.

    Costs under a millisecond where there is no driver: no CUDA package is imported.
    """
    driver = read_driver()
    if driver.reason is not None:
        return driver.reason, f"{_driver_problem(driver)} {_driver_fix(driver)}"
    missing = [name for name in _MODULES if not _has_module(name)]
    if missing:
        found = f"{'Python package' if len(missing) == 1 else 'Python packages'} {', '.join(missing)}"
        return Unavailable.NO_PACKAGE, f"CUDA needs the {found}. Install with: {install_line_for(driver.version)}"
    build = _newer_build(driver.version)
    if build is not None:
        return Unavailable.OLD_DRIVER, f"{_build_problem(build, driver)} {_build_fix(build, driver)}"
    return None


def cuda_checks() -> list[Check]:
    """Check the driver, the GPUs, the CUDA packages, green contexts, CUPTI, and whether NVTX ranges will be seen.

    Without a GPU and its driver that is said once, and what only the GPU can tell is left out. Imports the CUDA packages,
    which takes a second.
    """
    driver = read_driver()
    has_gpu = driver.reason is None
    return [
        _check_driver(driver),
        *(_check_gpu(gpu) for gpu in read_gpus()),
        _with_lane(_check_cupy(driver), library_of("cupy")),
        _with_lane(_check_package("cuda.core", _use_cuda_core, driver, ("cuda-core",)), library_of("cuda.core")),
        _check_package("nvtx", _use_nvtx, driver, ("nvtx",)),
        *((_check_green_contexts(driver),) if has_gpu else ()),
        _check_cupti(driver) if has_gpu else _check_cupti_file(driver),
        *((_check_annotations(driver),) if has_gpu else ()),
        # Other libraries: none is imported, and none is needed.
        *(_with_lane(_check_library(library, driver), library) for library in KNOWN if library.module not in _MODULES),
    ]


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, status=CheckStatus.OK, detail=detail)


def _lacking(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status=CheckStatus.LACKING, detail=detail, fix=fix)


def _unavailable(name: str, detail: str, fix: str) -> Check:
    return Check(name=name, status=CheckStatus.UNAVAILABLE, detail=detail, fix=fix)


def _check_driver(driver: Driver) -> Check:
    if driver.reason is None:
        return _ok("CUDA driver", f"supports CUDA {driver.version_text}")
    return _unavailable("CUDA driver", _driver_problem(driver), _driver_fix(driver))


def _check_gpu(gpu: Gpu) -> Check:
    capability = ".".join(str(part) for part in gpu.compute_capability)
    memory = f"{gpu.memory_bytes / 2**30:.1f} GiB"
    return _ok(f"GPU {gpu.ordinal}", f"{gpu.name}, {gpu.sm_count} SMs, {memory}, compute capability {capability}")


def _check_cupy(driver: Driver) -> Check:
    build = _newer_build(driver.version)
    if build is not None:
        return _lacking("CuPy", _build_problem(build, driver), _build_fix(build, driver))
    return _check_package("CuPy", _use_cupy, driver, _CUPY_BUILDS)


def _use_cupy() -> str:
    cupy = import_cupy()
    with mapped_errors("CuPy's first use"):
        cupy.cuda.runtime.getDeviceCount()
    return str(cupy.__version__)


def _use_cuda_core() -> str:
    core = import_cuda_core()
    with mapped_errors("cuda.core's first use"):
        core.Device(0)
    return f"{core.__version__}, with cuda.bindings {_version_of('cuda-bindings') or 'of an unknown version'}"


def _use_nvtx() -> str:
    nvtx = import_nvtx()
    with mapped_errors("nvtx's first use"):
        nvtx.get_domain("gpustreamlab")
    return _version_of("nvtx") or "unknown version"


def _check_package(name: str, use: Callable[[], str], driver: Driver, distributions: tuple[str, ...]) -> Check:
    """Use a package once: a failing import is lacking, a failing first use lies with the driver."""
    try:
        return _ok(name, use())
    except MissingExtraError as error:
        installed = _first_version(distributions)
        detail = f"{installed} is installed but cannot be imported: {error.__cause__}" if installed else "not installed"
        return _lacking(name, detail, install_line_for(driver.version))
    except DeviceError as error:
        return _failed_use(name, driver, f"{_first_version(distributions)} is installed; its first use fails: {_cause(error)}")


def _failed_use(name: str, driver: Driver, detail: str) -> Check:
    if driver.reason is not None:
        return _unavailable(name, detail, _driver_fix(driver))
    return _lacking(name, detail, _upgrade_line(driver))


def _check_green_contexts(driver: Driver) -> Check:
    name = "green contexts"
    if driver.version is None or driver.version < OLDEST_GREEN:
        detail = f"the driver supports CUDA {driver.version_text or 'of an unknown version'}; they need 12.5"
        return _unavailable(name, detail, f"Update the NVIDIA driver: {_DRIVER_PAGE}")
    try:
        core = import_cuda_core()
        with mapped_errors("Reading the SM resource of GPU 0"):
            sms = core.Device(0).resources.sm
            steps = f"at least {sms.min_partition_size} a partition, in steps of {sms.coscheduled_alignment}"
            return _ok(name, f"GPU 0: {sms.sm_count} SMs, {steps}")
    except MissingExtraError:
        return _lacking(name, "they need cuda.core and cuda.bindings", install_line_for(driver.version))
    except DeviceError as error:
        return _failed_use(name, driver, f"cuda.core cannot read the device's SMs: {_cause(error)}")


def _check_cupti_file(driver: Driver) -> Check:
    """Look for CUPTI without loading it: without a driver, CUPTI 13.2 crashes when asked for its version."""
    installed = _first_version(_CUPTI_BUILDS)
    if not installed:
        return _lacking("CUPTI", "not installed; ranges are timed without it", cupti_line_for(driver.version))
    return _unavailable("CUPTI", f"{installed} is installed; it needs a GPU and its driver", _driver_fix(driver))


def _check_cupti(driver: Driver) -> Check:
    try:
        cupti = load_cupti()
    except MissingExtraError as error:
        installed = _first_version(_CUPTI_BUILDS)
        detail = f"{installed} is installed but cannot be loaded: {_cause(error)}" if installed else "not installed"
        return _lacking("CUPTI", f"{detail}; ranges are timed without it", cupti_line_for(driver.version))
    except CaptureUnavailableError as error:
        return _lacking("CUPTI", str(error), update_line())
    return _ok("CUPTI", f"{cupti.title} (API version {cupti.version}), whose records are known, from {cupti.path}")


def _check_annotations(driver: Driver) -> Check:
    """Check whether ranges that libraries name by NVTX will be seen while kernels are captured."""
    name = "NVTX ranges of others"
    try:
        cupti = load_cupti()
    except BackendError:
        return _lacking(name, "they need a CUPTI that is known (see there)", cupti_line_for(driver.version))
    taken = os.environ.get(INJECTION_VARIABLE)
    if taken is not None and not is_injection_ours():
        if Path(taken).name.startswith("libcupti"):
            return _ok(name, f"seen: {INJECTION_VARIABLE} was set outside of this package, to {taken}")
        detail = f"not seen: {INJECTION_VARIABLE} was set outside of this package, to {taken!r}, so they go there"
        return _lacking(name, detail, f"Restart without it: unset {INJECTION_VARIABLE}")
    if cupti.version in CRASHING_VERSIONS:
        return _lacking(name, f"{cupti.title}.0 crashes when NVTX loads it, so it is not asked to", _NEWER_CUPTI_LINE)
    return _ok(name, f"seen: a session sets {INJECTION_VARIABLE} while it is open. Start it before a library's first NVTX call")


def _check_library(library: Library, driver: Driver) -> Check:
    version = installed_version(library.module)
    if not version:
        return _ok(library.name, "not installed, and not needed")
    obstacle = obstacle_of(library, version)
    if obstacle is not None:
        detail = f"{version} is installed"
        return _lacking(library.name, detail, obstacle.fix) if obstacle.fix else _ok(library.name, detail)
    if driver.reason is not None:
        detail = f"{version} is installed; its work on a GPU needs one and its driver"
        return _unavailable(library.name, detail, _driver_fix(driver))
    return _ok(library.name, f"{version} is installed; it was not tried")


def _with_lane(check: Check, library: Library) -> Check:
    """Add what the library does about a selected stream, in the words of ``lab.recording.adapters``."""
    does = what_it_does(library, installed_version(library.module))
    return replace(check, detail=f"{check.detail.removesuffix('.')}; on a stream: {does}")


def _upgrade_line(driver: Driver) -> str:
    return install_line_for(driver.version).replace("install ", "install --upgrade ", 1)


def _driver_problem(driver: Driver) -> str:
    match driver.reason:
        case Unavailable.NO_DRIVER:
            return f"No NVIDIA driver was found ({driver.message})."
        case Unavailable.OLD_DRIVER:
            return f"The NVIDIA driver supports CUDA {driver.version_text}; gpustreamlab needs 12.0 or newer."
        case Unavailable.NO_DEVICE if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            shown = os.environ["CUDA_VISIBLE_DEVICES"]
            return f"The NVIDIA driver shows this process no GPU, with CUDA_VISIBLE_DEVICES={shown!r}."
        case Unavailable.NO_DEVICE:
            return "The NVIDIA driver finds no GPU."
        case _:
            return f"The NVIDIA driver does not start ({driver.message})."


def _driver_fix(driver: Driver) -> str:
    match driver.reason:
        case Unavailable.NO_DRIVER:
            return f"Install it from {_DRIVER_PAGE}, or in a container start that with: docker run --gpus all"
        case Unavailable.OLD_DRIVER:
            return f"Update it from {_DRIVER_PAGE}"
        case Unavailable.NO_DEVICE if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            return "Restart without it: unset CUDA_VISIBLE_DEVICES"
        case Unavailable.NO_DEVICE:
            return "Look whether it is listed by: nvidia-smi -L"
        case _:
            return "Look for the cause in: nvidia-smi; sudo dmesg | grep -i nvrm"


def _newer_build(version: tuple[int, int] | None) -> str | None:
    """Name an installed CuPy build that is made for a newer driver than this one, or None."""
    if version is None or version[0] >= 13 or _version_of("cupy-cuda13x") is None:
        return None
    return "cupy-cuda13x"


def _build_problem(build: str, driver: Driver) -> str:
    return f"{build} is installed; it needs a driver for CUDA 13, and this one supports CUDA {driver.version_text}."


def _build_fix(build: str, driver: Driver) -> str:
    # Two builds of CuPy in one environment overwrite each other, so the wrong one goes first.
    if cuda_extra(driver.version) is None:
        return f"Update the driver from {_DRIVER_PAGE}"
    return f"pip uninstall --yes {build} && {install_line_for(driver.version)}"


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        # The parent package is missing, or something put a module without a spec in its place.
        return False


def _version_of(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _first_version(distributions: tuple[str, ...]) -> str:
    found = (f"{name} {version}" for name in distributions if (version := _version_of(name)) is not None)
    return next(found, "")


def _cause(error: BaseException) -> Any:
    return error.__cause__ or error


MAX_SM_IDS = 1_024  # Room for SM ids; the largest cards have under 200
BLOCK_NS = 10_000  # How long each block holds its SM, so that the blocks behind it go to others
BLOCKS_PER_SM = 2  # Blocks for each SM of the card: with one, a late start of a neighbour could leave an SM out

_in_flight: list[tuple[Any, tuple[CudaStream, ...]]] = []
"""What kernels may still write to: after an error or an interrupt, the memory stays until their streams are done."""


def probe_sms(
    streams: Sequence[CudaStream], *, ordinal: int, sm_count: int, pinned_empty: Callable[..., Any], select: Any, restore: Any
) -> list[Int64Array]:
    """Run the probe on all streams at once and wait for it.

    Each block takes a whole SM for a moment. Enough blocks for the whole card run on every stream, so a stream that is not
    confined shows more SMs than its partition has.
    """
    _in_flight[:] = [(array, used) for array, used in _in_flight if not all(stream.is_idle for stream in used)]
    seen = pinned_empty((len(streams), MAX_SM_IDS), np.uint32)
    seen[...] = 0
    kernel, shared_bytes = probe_kernel(ordinal)
    entry = (seen, tuple(streams))
    _in_flight.append(entry)
    for row, stream in zip(seen, streams, strict=True):
        token = select(stream)
        try:
            arguments = (np.uint64(row.ctypes.data), np.int64(BLOCK_NS))
            kernel((BLOCKS_PER_SM * sm_count,), (32,), arguments, shared_mem=shared_bytes)
        finally:
            restore(token)
    for stream in streams:
        stream.synchronize()
    _in_flight[:] = [known for known in _in_flight if known is not entry]
    return [np.flatnonzero(row).astype(np.int64) for row in seen]


_IS_ON = 704  # cudaErrorPeerAccessAlreadyEnabled


def read_peer_access(own: int, other: int) -> PeerAccess:
    """Tell whether the current device, of this number, reads the memory of another directly. Only turning it on tells."""
    runtime = import_cupy().cuda.runtime
    if not runtime.deviceCanAccessPeer(own, other):
        return PeerAccess.IMPOSSIBLE
    try:
        runtime.deviceEnablePeerAccess(other)
    except runtime.CUDARuntimeError as error:
        if error.status != _IS_ON:
            raise
        return PeerAccess.ON
    runtime.deviceDisablePeerAccess(other)
    return PeerAccess.OFF


CLOCK_LIMITS = {  # What holds clocks down, by the end of NVML's names, ``nvmlClocksEventReason...``
    "SwPowerCap": "its power limit",
    "HwSlowdown": "a hardware slowdown",
    "SwThermalSlowdown": "heat",
    "HwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "the power supply",
    "ApplicationsClocksSetting": "clocks that were set for applications",
    "SyncBoost": "clocks in step with other cards",
}


def read_clocks(bus_id: str) -> ClockRates | None:
    """Return the clocks of the card with a PCI bus id; None where NVML cannot be asked."""
    nvml = load_nvml()
    if nvml is None:
        return None
    try:
        card = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))
        return ClockRates(
            sm_mhz=int(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            memory_mhz=int(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM)),
            limits=tuple(dict.fromkeys(word for name, word in CLOCK_LIMITS.items() if reasons & clock_bit(nvml, name))),
        )
    except nvml.NVMLError as error:
        _log.debug("NVML describes no card %s: %s", bus_id, error)
        return None


def clock_bit(nvml: Any, name: str) -> int:
    return int(getattr(nvml, f"nvmlClocksEventReason{name}", 0) or getattr(nvml, f"nvmlClocksThrottleReason{name}", 0))


@cache
def load_nvml() -> Any:
    """Return the package, with NVML begun; None where either is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - the library is missing, or the driver's is
        _log.debug("NVML cannot be asked: %s", error)
        return None
    return pynvml
