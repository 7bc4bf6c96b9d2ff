"""Loading CUPTI, asking it, and what is said where it cannot be used."""

from __future__ import annotations

import ctypes
import sys
import types
from pathlib import Path

import pytest

from gpustreamlab.backends import CallClass
from gpustreamlab.backends.cuda import _libcuda
from gpustreamlab.backends.cuda.cupti import _library as _cupti
from gpustreamlab.backends.cuda.cupti._layouts import CallbackDomain, RecordKind
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


TITLES = {18: "CUPTI 12 (API 18)", 28: "CUPTI 12 (API 28)", 130001: "CUPTI 13.0", 130500: "CUPTI 13.5"}


@pytest.mark.parametrize("version", [*TITLES, 17, 25, 139900, 140000])
def test_the_title_says_the_version_and_records_of_an_unknown_one_are_not_guessed_at(version):
    library = FakeCuptiLibrary()
    library.version = version
    if version in TITLES:
        assert Cupti(library, "").title == TITLES[version]
        return
    with pytest.raises(CaptureUnavailableError, match=rf"API version {version}, /x/y.*pip install --upgrade gpustreamlab"):
        Cupti(library, "/x/y")


CALLS = {
    CallClass.LAUNCH: "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernelMultiDevice cuLaunchKernelEx cuLaunch "
    "cuLaunchGridAsync cuGraphLaunch cuMemcpyHtoDAsync cudaMemset2DAsync",
    CallClass.SYNCHRONIZE: "cuCtxSynchronize cudaDeviceSynchronize cudaEventSynchronize",
    CallClass.MEMORY: "cudaMallocAsync cudaMallocHost cudaMalloc3D cudaHostAlloc cuMemHostAlloc "
    "cuMemAllocFromPoolAsync cuMemFree cudaFreeArray",
    CallClass.EVENT: "cudaStreamWaitEvent cuGreenCtxWaitEvent",
    CallClass.CREATE: "cuStreamCreate cuStreamCreateWithPriority cudaStreamCreateWithFlags cuGreenCtxCreate "
    "cuGreenCtxStreamCreate cudaGraphInstantiate cuGraphInstantiateWithFlags",
    CallClass.OTHER: "cuLaunchHostFunc cudaStreamAddCallback cuModuleLoadData cuLibraryLoadData",
    None: "cudaEventRecord cudaGraphAddMemcpyNode cuMemAddressFree cuFuncGetAttribute printf",
}


@pytest.mark.parametrize(("call_class", "names"), CALLS.items())
def test_calls_are_classified_by_name(call_class, names):
    assert {classify_call(name) for name in names.split()} == {call_class}


def test_names_lose_what_programs_do_not_write():
    cupti = Cupti(FakeCuptiLibrary(), "")

    assert cupti.call_name(CallbackDomain.RUNTIME_API, 41) == "cudaMemcpyAsync"
    assert cupti.call_name(CallbackDomain.DRIVER_API, 277) == "cuMemcpyHtoDAsync"
    assert cupti.call_name(CallbackDomain.DRIVER_API, 1_999) == ""
    assert cupti.call_classes[CallbackDomain.DRIVER_API][307] is CallClass.LAUNCH
    assert 677 not in cupti.call_classes[CallbackDomain.DRIVER_API]


def test_only_the_calls_that_are_shown_or_say_something_of_memory_or_order_are_followed():
    library = FakeCuptiLibrary()
    cupti = Cupti(library, "")

    cupti.enable_calls("callback")
    cupti.enable_calls("callback")  # another session's
    followed = set(library.followed)
    is_held = cupti.is_held_by_another()
    cupti.disable_calls()

    assert {(1, 307), (1, 119), (1, 126), (1, 243), (1, 527)} <= followed
    assert {(1, 1), (1, 2), (1, 677)}.isdisjoint(followed)
    assert {domain for domain, _ in followed} == {1}
    assert (library.kinds, library.left_out, library.subscriber, is_held) == (set(), set(), None, False)


@pytest.mark.parametrize(("version", "is_shared"), [(130201, False), (130300, True)])
def test_from_13_3_calls_are_followed_beside_another_subscriber_that_allows_it(version, is_shared):
    library = FakeCuptiLibrary(version)
    library.subscriber, library.allows_others = "torch", True
    cupti = Cupti(library, "")

    cupti.enable_calls("callback")
    is_followed, is_recorded = (1, 307) in library.followed, RecordKind.DRIVER in library.kinds
    cupti.disable_calls()

    assert (is_followed, is_recorded) == (is_shared, not is_shared)
    assert (library.kinds, library.followed, library.left_out, library.subscriber) == (set(), set(), set(), "torch")


def test_only_the_calls_that_are_shown_are_recorded():
    library = FakeCuptiLibrary()
    library.subscriber = "torch"
    cupti = Cupti(library, "")

    cupti.enable_calls("callback")
    left_out = set(library.left_out)
    cupti.disable_calls()
    assert library.subscriber == "torch"

    assert {(1, 1), (1, 119), (1, 677), (2, 17)} <= left_out
    assert {(1, 307), (2, 20), (2, 131), (2, 311)}.isdisjoint(left_out)
    assert library.left_out == set()
    assert library.kinds == set()


def test_refusals_say_what_to_do(monkeypatch):
    library = FakeCuptiLibrary(lacking={"cuptiActivityFlushAll"}, refused={RecordKind.MEMCPY: INSUFFICIENT_PRIVILEGES})
    cupti = Cupti(library, "")

    with pytest.raises(CaptureUnavailableError, match=r"CUPTI 13\.0 refused cuptiActivityFlushAll: code -1"):
        cupti.require("cuptiActivityFlushAll", 0)
    with pytest.raises(CaptureUnavailableError, match="INSUFFICIENT_PRIVILEGES.*ERR_NVGPUCTRPERM"):
        cupti.enable([RecordKind.MEMCPY])
    pretend_driver(monkeypatch, 12040)
    assert cupti.explain(NOT_COMPATIBLE).endswith("pip install 'nvidia-cuda-cupti-cu12==12.4.*'")
    pretend_driver(monkeypatch, 13010)
    assert cupti.explain(NOT_COMPATIBLE).endswith("pip install 'nvidia-cuda-cupti==13.1.*'")
    assert cupti.explain(12_345) == "code 12345"


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
