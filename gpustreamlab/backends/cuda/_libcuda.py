"""Ask the NVIDIA driver what there is, through ctypes: no CUDA package is imported and no context is made."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpustreamlab._util import words as installs
from gpustreamlab.errors import (
    DeviceError,
    DeviceMemoryError,
    DeviceNotFoundError,
    GPUStreamLabError,
    GraphCaptureError,
    InvalidHandleError,
    MissingExtraError,
    StickyDeviceError,
)
from gpustreamlab.typing import Unavailable

LIBRARY_NAME = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

OLDEST_CUDA = (12, 0)  # The oldest CUDA version of a driver that any extra works with
OLDEST_GREEN = (12, 5)
"""The CUDA version of a driver that makes streams of green contexts. Source: CUDA 12.5 driver API, Green Contexts."""

_SUCCESS = 0
_CODES = {34: Unavailable.NO_DRIVER, 100: Unavailable.NO_DEVICE, 101: Unavailable.NO_DEVICE}
"""What a result of cuInit means: stub library, no device, invalid device. Source: CUDA driver API, CUresult."""
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76  # Numbers of device attributes. Source: CUDA driver API, CUdevice_attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver describes it."""

    ordinal: int  # The CUDA device number
    name: str  # The name that the driver gives
    sm_count: int  # How many SMs it has
    memory_bytes: int  # Its memory, in bytes
    compute_capability: tuple[int, int]  # Major and minor number


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What the driver says about this machine."""

    reason: Unavailable | None = None  # Why no GPU can be used, or None if one can
    message: str = ""  # The driver's own words for `reason`
    version: tuple[int, int] | None = None  # The CUDA version that it supports, or None where there is no driver
    device_count: int = 0  # How many GPUs this process may use

    @property
    def version_text(self) -> str:
        """The version as users write it, for example ``"13.0"``."""
        return "" if self.version is None else f"{self.version[0]}.{self.version[1]}"


def load_libcuda() -> Any:
    """Load the driver's library."""
    return ctypes.CDLL(LIBRARY_NAME)


def read_driver(load: Callable[[], Any] = load_libcuda) -> Driver:
    """Read the driver's version and count its GPUs. Never raises."""
    try:
        library = load()
    except OSError as error:
        return Driver(reason=Unavailable.NO_DRIVER, message=str(error))
    version = _read_version(library)
    result = library.cuInit(0)
    if result != _SUCCESS:
        reason = _CODES.get(result, Unavailable.UNKNOWN)
        return Driver(reason=reason, message=_describe(library, "cuInit", result), version=version)
    count = ctypes.c_int()
    result = library.cuDeviceGetCount(ctypes.byref(count))
    if result != _SUCCESS:
        return Driver(reason=Unavailable.UNKNOWN, message=_describe(library, "cuDeviceGetCount", result), version=version)
    if version is not None and version < OLDEST_CUDA:
        return Driver(reason=Unavailable.OLD_DRIVER, version=version, device_count=count.value)
    return Driver(reason=None if count.value else Unavailable.NO_DEVICE, version=version, device_count=count.value)


def read_gpus(load: Callable[[], Any] = load_libcuda) -> tuple[Gpu, ...]:
    """Describe each GPU that this process may use; none where the driver finds none. Never raises."""
    driver = read_driver(load)
    if driver.reason is not None:
        return ()
    library = load()
    return tuple(gpu for ordinal in range(driver.device_count) if (gpu := _read_gpu(library, ordinal)) is not None)


def cuda_extra(version: tuple[int, int] | None) -> str | None:
    """Name the extra that suits a driver.

    Examples
    --------
    >>> cuda_extra((12, 8)), cuda_extra((13, 0)), cuda_extra((11, 8)), cuda_extra(None)
    ('cuda12', 'cuda13', None, None)
    """
    if version is None or version < OLDEST_CUDA:
        return None
    # A driver runs what was built for its own major version and for older ones, so a later one takes the newest extra.
    return "cuda12" if version[0] == 12 else "cuda13"


def cupti_extra(version: tuple[int, int] | None) -> str:
    """Name the extra with the CUPTI that suits a driver: CUPTI works with drivers as new as itself or newer.

    Examples
    --------
    >>> cupti_extra((12, 8)), cupti_extra((13, 0)), cupti_extra(None)
    ('cupti12', 'cupti', 'cupti')
    """
    return "cupti12" if cuda_extra(version) == "cuda12" else "cupti"


def _read_version(library: Any) -> tuple[int, int] | None:
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != _SUCCESS:
        return None
    # The driver writes 13.1 as 13010.
    return number.value // 1000, number.value % 1000 // 10


def _read_gpu(library: Any, ordinal: int) -> Gpu | None:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    results = (
        library.cuDeviceGet(ctypes.byref(device), ordinal),
        library.cuDeviceGetName(name, len(name), device),
        library.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
    )
    if any(result != _SUCCESS for result in results):
        return None
    return Gpu(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        sm_count=_read_attribute(library, device, _SM_COUNT),
        memory_bytes=memory.value,
        compute_capability=(_read_attribute(library, device, _MAJOR), _read_attribute(library, device, _MINOR)),
    )


def _read_attribute(library: Any, device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    result = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value if result == _SUCCESS else 0


def _describe(library: Any, call: str, result: int) -> str:
    name = ctypes.c_char_p()
    known = library.cuGetErrorName(result, ctypes.byref(name)) == _SUCCESS and name.value
    text = name.value.decode(errors="replace") if known and name.value else f"error {result}"
    return f"{call} said {text}"


_STICKY = (
    "The CUDA context is lost: every later call of this process fails until it is restarted. What was recorded so far is kept: "
    "lab.trace.save(path). Find the faulty GPU kernel with compute-sanitizer."
)
_HANDLE = "The stream or event was destroyed, or belongs to another device or context. Make a new one with lab.stream(name)."

_CAPTURE = (
    "It cannot be part of the CUDA graph that is being captured: calls that wait, read values or free memory, and waits for "
    "events of outside. Make it before the capture or after a launch."
)

_BY_CODE: MappingProxyType[str, tuple[type[DeviceError], str]] = MappingProxyType(
    {
        "OUT_OF_MEMORY": (
            DeviceMemoryError,
            "Free arrays, or give CuPy's cache back with cupy.get_default_memory_pool().free_all_blocks().",
        ),
        **dict.fromkeys(
            (
                *("STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED", "STREAM_CAPTURE_MERGE"),
                *("STREAM_CAPTURE_UNMATCHED", "STREAM_CAPTURE_UNJOINED", "STREAM_CAPTURE_ISOLATION"),
                *("STREAM_CAPTURE_IMPLICIT", "STREAM_CAPTURE_WRONG_THREAD", "CAPTURED_EVENT"),
            ),
            (GraphCaptureError, _CAPTURE),
        ),
        "INVALID_DEVICE": (DeviceNotFoundError, "List the devices with: gpustreamlab doctor"),
        "NO_DEVICE": (DeviceNotFoundError, "The driver sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES."),
        **dict.fromkeys(
            ("INVALID_HANDLE", "INVALID_RESOURCE_HANDLE", "INVALID_CONTEXT", "CONTEXT_IS_DESTROYED"),
            (InvalidHandleError, _HANDLE),
        ),
        **dict.fromkeys(
            (
                *("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_FAILURE", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION"),
                *("MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ASSERT"),
                *("ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE", "MPS_CONNECTION_FAILED"),
            ),
            (StickyDeviceError, _STICKY),
        ),
    }
)
"""What each driver or runtime error code means, without its prefix. Source: CUDA driver API, CUresult."""

_OTHER = "Run gpustreamlab doctor to see what this machine can do; the driver's own message stands above."
_CODE = re.compile(r"\b(?:CUDA_ERROR_|cudaError)([A-Za-z0-9_]+)")


def driver_code(error: BaseException) -> str | None:
    """Return the driver's error code inside an exception of CuPy or cuda.core, for example ``ILLEGAL_ADDRESS``."""
    found = _CODE.search(str(error))
    if found is None:
        return None
    code = found.group(1)
    if code.isupper():
        return code
    # The runtime writes cudaErrorIllegalAddress where the driver writes CUDA_ERROR_ILLEGAL_ADDRESS.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", code).upper()
    return {"MEMORY_ALLOCATION": "OUT_OF_MEMORY"}.get(words, words)


def map_error(error: Exception, doing: str) -> GPUStreamLabError:
    """Return the error of ours that stands for one of the driver's."""
    if isinstance(error, GPUStreamLabError):
        return error
    code = driver_code(error)
    # CuPy refuses some calls during a capture by itself, without a code.
    unknown = (GraphCaptureError, _CAPTURE) if code is None and "captur" in str(error) else (DeviceError, _OTHER)
    kind, fix = _BY_CODE.get(code or "", unknown)
    return kind(f"{doing} failed: {str(error).rstrip('.')}. {fix}", driver_code=code)


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Raise errors of ours for whatever the driver raises inside; user errors do not pass through here."""
    try:
        yield
    except Exception as error:
        mapped = map_error(error, doing)
        if mapped is error:
            raise
        raise mapped from error


def import_cupy() -> Any:
    """Import CuPy."""
    return _import("cupy", "CuPy")


def import_cuda_core() -> Any:
    """Import cuda.core, which needs cuda.bindings beside it."""
    return _import("cuda.core", "cuda.core")


def import_nvtx() -> Any:
    """Import nvtx."""
    return _import("nvtx", "nvtx")


def bindings_version() -> tuple[int, int] | None:
    """Return the CUDA version that the installed cuda.bindings are for, or None where there are none."""
    try:
        major, minor, *_ = importlib.metadata.version("cuda-bindings").split(".")
        return int(major), int(minor)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def install_line_for(version: tuple[int, int] | None) -> str:
    """Return what to type to install the CUDA packages that suit a driver."""
    return installs.install_line(cuda_extra(version) or "cuda13")


def cupti_line() -> str:
    """Return what to type to install the CUPTI that suits this machine's driver."""
    return cupti_line_for(read_driver().version)


def cupti_line_for(version: tuple[int, int] | None) -> str:
    """Return what to type to install the CUPTI that suits a driver."""
    return installs.install_line(cupti_extra(version))


def exact_cupti_line() -> str:
    """Return what to type to install the CUPTI of exactly this driver's CUDA version."""
    version = read_driver().version
    if version is None:
        return cupti_line_for(version)
    package = "nvidia-cuda-cupti-cu12" if version[0] == 12 else "nvidia-cuda-cupti"
    return f"pip install '{package}=={version[0]}.{version[1]}.*'"


def _import(module: str, title: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        line = install_line_for(read_driver().version)
        raise MissingExtraError(
            f"{title} cannot be imported ({error}). The CUDA backend needs it; install it with: {line}", name=module
        ) from error
