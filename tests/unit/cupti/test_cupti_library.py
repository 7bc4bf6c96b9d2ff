"""Loading CUPTI, asking it, and what is said where it cannot be used."""

from __future__ import annotations

import builtins
import ctypes
import sys
import types
from pathlib import Path

import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda import _libcuda
from gpustreamlab.backends.cuda.cupti import _library as _cupti
from gpustreamlab.backends.cuda.cupti._constants import CallbackDomain, RecordKind
from gpustreamlab.backends.cuda.cupti._library import Cupti, classify_call, find_installed, find_loaded, load_cupti
from gpustreamlab.errors import CaptureUnavailableError, MissingExtraError
from tests.helpers.fake_cupti import INSUFFICIENT_PRIVILEGES, NOT_COMPATIBLE, FakeCuptiLibrary
from tests.helpers.libcuda import FakeLibcuda, no_libcuda

pytestmark = pytest.mark.usefixtures("installed_as_wheel")

read_driver = _libcuda.read_driver


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(_cupti, "_loaded", {})
    monkeypatch.setattr(_libcuda, "read_driver", lambda *_: read_driver(no_libcuda))


def pretend_driver(monkeypatch, version):
    monkeypatch.setattr(_libcuda, "read_driver", lambda *_: read_driver(lambda: FakeLibcuda(version=version)))


TITLES = {18: "CUPTI 12 (API 18)", 28: "CUPTI 12 (API 28)", 130001: "CUPTI 13.0", 130101: "CUPTI 13.1", 130500: "CUPTI 13.5"}


@pytest.mark.parametrize(("version", "title"), TITLES.items())
def test_the_title_says_the_version(version, title):
    assert Cupti(FakeCuptiLibrary(version), "").title == title


@pytest.mark.parametrize("version", [17, 25, 139900, 140000])
def test_records_of_an_unknown_version_are_not_guessed_at(version):
    library = FakeCuptiLibrary()
    library.version = version

    with pytest.raises(CaptureUnavailableError, match=rf"API version {version}, /x/y.*pip install --upgrade gpustreamlab"):
        Cupti(library, "/x/y")


CALLS = {
    "cudaLaunchKernel": CallClass.LAUNCH,
    "cudaLaunchKernelExC": CallClass.LAUNCH,
    "cudaLaunchCooperativeKernel": CallClass.LAUNCH,
    "cudaLaunchCooperativeKernelMultiDevice": CallClass.LAUNCH,
    "cuLaunchKernelEx": CallClass.LAUNCH,
    "cuLaunch": CallClass.LAUNCH,
    "cuLaunchGridAsync": CallClass.LAUNCH,
    "cuGraphLaunch": CallClass.LAUNCH,
    "cuMemcpyHtoDAsync": CallClass.LAUNCH,
    "cudaMemset2DAsync": CallClass.LAUNCH,
    "cuCtxSynchronize": CallClass.SYNCHRONIZE,
    "cudaDeviceSynchronize": CallClass.SYNCHRONIZE,
    "cudaEventSynchronize": CallClass.SYNCHRONIZE,
    "cudaMallocAsync": CallClass.MEMORY,
    "cudaMallocHost": CallClass.MEMORY,
    "cudaMalloc3D": CallClass.MEMORY,
    "cudaHostAlloc": CallClass.MEMORY,
    "cuMemHostAlloc": CallClass.MEMORY,
    "cuMemAllocFromPoolAsync": CallClass.MEMORY,
    "cuMemFree": CallClass.MEMORY,
    "cudaFreeArray": CallClass.MEMORY,
    "cudaStreamWaitEvent": CallClass.EVENT,
    "cuGreenCtxWaitEvent": CallClass.EVENT,
    "cudaEventRecord": None,
    "cuLaunchHostFunc": None,
    "cudaGraphAddMemcpyNode": None,
    "cuMemAddressFree": None,
    "cuFuncGetAttribute": None,
    "printf": None,
    "": None,
}


@pytest.mark.parametrize(("name", "call_class"), CALLS.items())
def test_calls_are_classified_by_name(name, call_class):
    assert classify_call(name) is call_class


def test_names_lose_what_programs_do_not_write():
    cupti = Cupti(FakeCuptiLibrary(), "")

    assert cupti.call_name(CallbackDomain.RUNTIME_API, 41) == "cudaMemcpyAsync"
    assert cupti.call_name(CallbackDomain.DRIVER_API, 277) == "cuMemcpyHtoDAsync"
    assert cupti.call_name(CallbackDomain.DRIVER_API, 1_999) == ""
    assert cupti.call_classes[CallbackDomain.DRIVER_API][307] is CallClass.LAUNCH
    assert 677 not in cupti.call_classes[CallbackDomain.DRIVER_API]


def test_only_the_calls_that_are_shown_are_recorded():
    library = FakeCuptiLibrary()
    cupti = Cupti(library, "")

    cupti.enable_calls()
    left_out = set(library.left_out)
    cupti.disable_calls()

    assert {(1, 1), (1, 119), (1, 677), (2, 17)} <= left_out
    assert {(1, 307), (2, 20), (2, 131), (2, 311)}.isdisjoint(left_out)
    assert library.left_out == set()
    assert library.kinds == set()


def test_a_function_that_a_version_lacks_gives_minus_one():
    cupti = Cupti(FakeCuptiLibrary(lacking={"cuptiActivityFlushAll"}), "")

    assert cupti.call("cuptiActivityFlushAll", 0) == -1
    with pytest.raises(CaptureUnavailableError, match=r"CUPTI 13\.0 refused cuptiActivityFlushAll: code -1"):
        cupti.require("cuptiActivityFlushAll", 0)


def test_refusals_say_what_to_do(monkeypatch):
    cupti = Cupti(FakeCuptiLibrary(refused={RecordKind.MEMCPY: INSUFFICIENT_PRIVILEGES}), "")

    with pytest.raises(CaptureUnavailableError, match="INSUFFICIENT_PRIVILEGES.*ERR_NVGPUCTRPERM"):
        cupti.enable([RecordKind.MEMCPY])
    pretend_driver(monkeypatch, 12040)
    assert cupti.explain(NOT_COMPATIBLE).endswith("pip install 'nvidia-cuda-cupti-cu12==12.4.*'")
    pretend_driver(monkeypatch, 13010)
    assert cupti.explain(NOT_COMPATIBLE).endswith("pip install 'nvidia-cuda-cupti==13.1.*'")
    assert cupti.explain(12_345) == "code 12345"


def test_who_holds_the_place_is_asked_without_taking_it():
    library = FakeCuptiLibrary()
    cupti = Cupti(library, "")

    assert not cupti.is_held_by_another()
    assert library.subscriber is None
    library.subscriber = "nsys"
    assert cupti.is_held_by_another()
    assert library.subscriber == "nsys"


@pytest.mark.parametrize(("driver", "extra"), [(None, "cupti"), (13000, "cupti"), (12040, "cupti12")])
def test_a_missing_cupti_is_named_with_the_line_to_type(monkeypatch, driver, extra):
    monkeypatch.setattr(_cupti, "find_loaded", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    if driver is not None:
        pretend_driver(monkeypatch, driver)

    with pytest.raises(MissingExtraError, match=rf"is not installed.*pip install 'gpustreamlab\[{extra}\]'$") as caught:
        load_cupti()

    assert isinstance(caught.value.__cause__, ImportError)


def test_a_broken_cupti_is_named_with_the_line_to_type(monkeypatch, tmp_path):
    broken = tmp_path / "libcupti.so.13"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(_cupti, "find_loaded", lambda: str(broken))

    with pytest.raises(MissingExtraError, match=r"CUPTI cannot be loaded \(.*pip install 'gpustreamlab\[cupti\]'$"):
        load_cupti()


def test_cupti_is_loaded_once_and_rather_the_one_that_is_there(monkeypatch):
    loaded = []

    def load(path):
        loaded.append(path)
        return FakeCuptiLibrary()

    monkeypatch.setattr(_cupti, "find_loaded", lambda: "/torch/lib/libcupti.so.13")
    monkeypatch.setattr(_cupti, "find_installed", lambda: pytest.fail("a second one would fight with the first"))
    monkeypatch.setattr(ctypes, "CDLL", load)

    assert load_cupti() is load_cupti()
    assert loaded == ["/torch/lib/libcupti.so.13"]
    assert load_cupti().path == "/torch/lib/libcupti.so.13"


def test_the_installed_one_is_found_by_cuda_pathfinder(monkeypatch):
    cuda = types.ModuleType("cuda")
    cuda.pathfinder = types.SimpleNamespace(
        load_nvidia_dynamic_lib=lambda name: types.SimpleNamespace(abs_path=Path(f"/lib/lib{name}.so"))
    )
    monkeypatch.setitem(sys.modules, "cuda", cuda)

    assert find_installed() == "/lib/libcupti.so"


def test_the_one_in_this_process_is_found_in_its_maps(monkeypatch, tmp_path):
    text = "7f00-7f01 r-xp 00000000 08:01 5    /opt/my libs/libcupti.so.2025.3.0\n7f02-7f03 rw-p 00000000 00:00 0\n"
    monkeypatch.setattr(_cupti.Path, "read_text", lambda self: text)
    assert find_loaded() == "/opt/my libs/libcupti.so.2025.3.0"

    def fail(self):
        raise OSError("no /proc here")

    monkeypatch.setattr(_cupti.Path, "read_text", fail)
    assert find_loaded() is None


def test_no_module_of_cupti_python_is_imported(monkeypatch):
    imported = []
    original = builtins.__import__

    def watch(name, *arguments, **options):
        imported.append(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", watch)
    Cupti(FakeCuptiLibrary(), "").enable_calls()

    assert not [name for name in imported if name.split(".")[0] == "cupti"]
