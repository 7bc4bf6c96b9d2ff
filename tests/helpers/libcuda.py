"""A fake of the NVIDIA driver's library, for machines without one."""

from __future__ import annotations

from collections.abc import Sequence

from gpustreamlab.backends.cuda import _libcuda, _probe

read_driver = _libcuda.read_driver

SUCCESS, NO_DEVICE, STUB_LIBRARY, UNKNOWN_ERROR = 0, 100, 34, 999
ERROR_NAMES = {NO_DEVICE: b"CUDA_ERROR_NO_DEVICE", STUB_LIBRARY: b"CUDA_ERROR_STUB_LIBRARY"}


class FakeLibcuda:
    """Answers as libcuda.so.1 does; any call that it does not know raises AttributeError.

    Parameters
    ----------
    version
        The CUDA version as the driver writes it: 13000 is 13.0. None makes the call for it fail.
    gpus
        Names of the GPUs; each has 132 SMs, 139 GiB and compute capability 9.0.
    init_result
        What cuInit returns.
    count_result
        What cuDeviceGetCount returns.
    """

    def __init__(
        self,
        *,
        version: int | None = 13000,
        gpus: Sequence[str] = ("NVIDIA H200",),
        init_result: int = SUCCESS,
        count_result: int = SUCCESS,
    ) -> None:
        self.version = version
        self.gpus = list(gpus)
        self.init_result = init_result
        self.count_result = count_result

    def cuDriverGetVersion(self, place):  # noqa: N802 - the driver's own name
        place._obj.value = self.version or 0
        return SUCCESS if self.version is not None else UNKNOWN_ERROR

    def cuInit(self, flags):  # noqa: N802
        assert flags == 0
        return self.init_result

    def cuDeviceGetCount(self, place):  # noqa: N802
        assert self.init_result == SUCCESS, "the driver was asked before it was initialised"
        place._obj.value = len(self.gpus)
        return self.count_result

    def cuDeviceGet(self, place, ordinal):  # noqa: N802
        place._obj.value = ordinal
        return SUCCESS if ordinal < len(self.gpus) else 101

    def cuDeviceGetName(self, buffer, size, device):  # noqa: N802
        buffer.value = self.gpus[device.value].encode()[: size - 1]
        return SUCCESS

    def cuDeviceTotalMem_v2(self, place, device):  # noqa: N802
        place._obj.value = 139 * 2**30
        return SUCCESS

    def cuDeviceGetAttribute(self, place, attribute, device):  # noqa: N802
        place._obj.value = {16: 132, 75: 9, 76: 0}[attribute]
        return SUCCESS

    def cuGetErrorName(self, result, place):  # noqa: N802
        place._obj.value = ERROR_NAMES.get(result)
        return SUCCESS if result in ERROR_NAMES else 1


def no_libcuda() -> object:
    """Fail as ctypes does where there is no driver."""
    raise OSError("libcuda.so.1: cannot open shared object file: No such file or directory")


def install_driver(monkeypatch, load) -> None:
    """Make the package find this driver, or none with `no_libcuda`."""
    monkeypatch.setattr(_probe, "read_driver", lambda: read_driver(load))
    monkeypatch.setattr(_probe, "read_gpus", lambda: _libcuda.read_gpus(load))
    monkeypatch.setattr(_libcuda, "read_driver", lambda *_: read_driver(load))
