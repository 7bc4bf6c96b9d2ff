"""Driver errors become errors of ours here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

from gpustreamlab.errors import (
    DeviceError,
    DeviceMemoryError,
    DeviceNotFoundError,
    GPUStreamLabError,
    InvalidHandleError,
    StickyDeviceError,
)

_STICKY = (
    "The CUDA context is lost: every later call of this process fails until it is restarted. What was recorded so far is kept: "
    "lab.trace.save(path). Find the faulty GPU kernel with compute-sanitizer."
)
_HANDLE = "The stream or event was destroyed, or belongs to another device or context. Make a new one with lab.stream(name)."

_BY_CODE: MappingProxyType[str, tuple[type[DeviceError], str]] = MappingProxyType(
    {
        "OUT_OF_MEMORY": (
            DeviceMemoryError,
            "Free arrays, or give CuPy's cache back with cupy.get_default_memory_pool().free_all_blocks().",
        ),
        "INVALID_DEVICE": (DeviceNotFoundError, "List the devices with: gpustreamlab doctor"),
        "NO_DEVICE": (DeviceNotFoundError, "The driver sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES."),
        "INVALID_HANDLE": (InvalidHandleError, _HANDLE),
        "INVALID_RESOURCE_HANDLE": (InvalidHandleError, _HANDLE),
        "INVALID_CONTEXT": (InvalidHandleError, _HANDLE),
        "CONTEXT_IS_DESTROYED": (InvalidHandleError, _HANDLE),
        "ILLEGAL_ADDRESS": (StickyDeviceError, _STICKY),
        "LAUNCH_FAILED": (StickyDeviceError, _STICKY),
        "LAUNCH_FAILURE": (StickyDeviceError, _STICKY),
        "LAUNCH_TIMEOUT": (StickyDeviceError, _STICKY),
        "ILLEGAL_INSTRUCTION": (StickyDeviceError, _STICKY),
        "MISALIGNED_ADDRESS": (StickyDeviceError, _STICKY),
        "INVALID_ADDRESS_SPACE": (StickyDeviceError, _STICKY),
        "INVALID_PC": (StickyDeviceError, _STICKY),
        "HARDWARE_STACK_ERROR": (StickyDeviceError, _STICKY),
        "ASSERT": (StickyDeviceError, _STICKY),
        "ECC_UNCORRECTABLE": (StickyDeviceError, _STICKY),
        "NVLINK_UNCORRECTABLE": (StickyDeviceError, _STICKY),
        "MPS_CONNECTION_FAILED": (StickyDeviceError, _STICKY),
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
    """Return the error of ours that stands for one of the driver's.

    Parameters
    ----------
    error
        What CuPy, cuda.core or the bindings raised.
    doing
        What was being done, with its values, as the start of a sentence.
    """
    if isinstance(error, GPUStreamLabError):
        return error
    code = driver_code(error)
    kind, fix = _BY_CODE.get(code or "", (DeviceError, _OTHER))
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
