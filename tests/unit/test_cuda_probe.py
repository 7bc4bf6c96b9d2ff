"""What is said about a machine's CUDA, with a fake driver: no GPU and no CUDA package is needed."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import pytest

from gpustreamlab import Session
from gpustreamlab.adapters import KNOWN, _known
from gpustreamlab.adapters import _followers as _table
from gpustreamlab.backends.cuda import _probe
from gpustreamlab.backends.cuda._libcuda import (
    Driver,
    Gpu,
    cuda_extra,
    import_cuda_core,
    import_cupy,
    import_nvtx,
    install_line_for,
    read_driver,
    read_gpus,
)
from gpustreamlab.backends.cuda._probe import CheckStatus, cuda_checks, why_unavailable
from gpustreamlab.backends.cuda.cupti import _library as _cupti
from gpustreamlab.errors import MissingExtraError
from gpustreamlab.typing import Unavailable
from tests.helpers.fake_cupti import FakeCuptiLibrary
from tests.helpers.libcuda import NO_DEVICE, STUB_LIBRARY, UNKNOWN_ERROR, FakeLibcuda, install_driver, no_libcuda

pytestmark = pytest.mark.usefixtures("installed_as_wheel")

CUDA_MODULES = ("cupy", "cuda", "cuda.core", "cuda.bindings", "nvtx", "cupti")
ALL_INSTALLED = {"cupy-cuda13x": "14.2.0", "cuda-core": "1.2.2", "cuda-bindings": "13.5.0", "nvtx": "0.2.17"}

LIBRARIES = ("torch", "numba-cuda", "triton", "jax", "onnxruntime")
NEWER_FEATURES = ("unequal-split", "co-scheduling", "backfill", "workqueues")


@pytest.fixture
def block_packages(monkeypatch):
    """Make every CUDA package look as if it were not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] in {"cupy", "cuda", "nvtx", "cupti"}]:
        monkeypatch.delitem(sys.modules, name)
    for name in CUDA_MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    pretend_installed(monkeypatch, {})


@pytest.fixture
def working_packages(monkeypatch):
    """Put stand-ins that work in the place of the CUDA packages."""
    sms = types.SimpleNamespace(sm_count=132, min_partition_size=8, coscheduled_alignment=8)
    device = types.SimpleNamespace(resources=types.SimpleNamespace(sm=sms))
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1)
    modules = {
        "cupy": {"__version__": "14.2.0", "cuda": types.SimpleNamespace(runtime=runtime)},
        "cuda": {"__path__": []},
        "cuda.core": {"__version__": "1.2.2", "Device": lambda ordinal: device},
        "cuda.bindings": {},
        "nvtx": {"get_domain": lambda name: None},
    }
    for name, values in modules.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    pretend_installed(monkeypatch, ALL_INSTALLED)
    return sys.modules["cuda.core"]


def pretend_installed(monkeypatch, versions):
    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(_probe.importlib.metadata, "version", version)


def pretend_cupti(monkeypatch, version=130001):
    """Let libcupti be in this process already, of a version."""
    library = FakeCuptiLibrary()
    library.version = version
    monkeypatch.setattr(_cupti, "_loaded", {})
    monkeypatch.setattr(_cupti, "find_loaded", lambda: "/x/libcupti.so.13")
    monkeypatch.setattr(_cupti.ctypes, "CDLL", lambda path: library)


@pytest.fixture(autouse=True)
def no_cupti(monkeypatch):
    """Nothing is loaded, and no tool listens to NVTX, unless a test says so."""
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    monkeypatch.setattr(_cupti, "_loaded", {})
    monkeypatch.setattr(_cupti, "find_loaded", lambda: None)


def checks_by_name():
    return {check.name: check for check in cuda_checks()}


DRIVERS = {
    "no library": (no_libcuda, Unavailable.NO_DRIVER, None),
    "stub library": (lambda: FakeLibcuda(init_result=STUB_LIBRARY), Unavailable.NO_DRIVER, (13, 0)),
    "no device": (lambda: FakeLibcuda(init_result=NO_DEVICE), Unavailable.NO_DEVICE, (13, 0)),
    "hidden devices": (lambda: FakeLibcuda(gpus=()), Unavailable.NO_DEVICE, (13, 0)),
    "broken": (lambda: FakeLibcuda(init_result=UNKNOWN_ERROR), Unavailable.UNKNOWN, (13, 0)),
    "broken later": (lambda: FakeLibcuda(count_result=UNKNOWN_ERROR), Unavailable.UNKNOWN, (13, 0)),
    "no version": (lambda: FakeLibcuda(version=None), None, None),
    "too old": (lambda: FakeLibcuda(version=11080), Unavailable.OLD_DRIVER, (11, 8)),
    "12.4": (lambda: FakeLibcuda(version=12040), None, (12, 4)),
    "13.1": (lambda: FakeLibcuda(version=13010), None, (13, 1)),
}


@pytest.mark.parametrize(("load", "reason", "version"), DRIVERS.values(), ids=DRIVERS.keys())
def test_the_driver_is_read_without_raising(load, reason, version):
    driver = read_driver(load)

    assert driver.reason is reason
    assert driver.version == version


def test_the_driver_names_its_own_error():
    assert read_driver(lambda: FakeLibcuda(init_result=NO_DEVICE)).message == "cuInit said CUDA_ERROR_NO_DEVICE"
    assert read_driver(lambda: FakeLibcuda(init_result=UNKNOWN_ERROR)).message == "cuInit said error 999"


def test_gpus_are_described_by_the_driver():
    first, second = read_gpus(lambda: FakeLibcuda(gpus=("NVIDIA H200", "NVIDIA H100")))

    assert first == Gpu(ordinal=0, name="NVIDIA H200", sm_count=132, memory_bytes=139 * 2**30, compute_capability=(9, 0))
    assert (second.ordinal, second.name) == (1, "NVIDIA H100")


def test_there_are_no_gpus_without_a_driver():
    assert read_gpus(no_libcuda) == ()


EXTRAS = {
    "none": (None, None),
    "11.8": ((11, 8), None),
    "12.0": ((12, 0), "cuda12"),
    "12.9": ((12, 9), "cuda12"),
    "13.0": ((13, 0), "cuda13"),
    "14.0": ((14, 0), "cuda13"),
}


@pytest.mark.parametrize(("version", "extra"), EXTRAS.values(), ids=EXTRAS.keys())
def test_the_extra_suits_the_driver(version, extra):
    assert cuda_extra(version) == extra
    assert install_line_for(version) == f"pip install 'gpustreamlab[{extra or 'cuda13'}]'"


@pytest.mark.parametrize(
    ("import_it", "title"),
    [(import_cupy, "CuPy"), (import_cuda_core, "cuda.core"), (import_nvtx, "nvtx")],
    ids=["cupy", "core", "nvtx"],
)
def test_a_missing_package_is_named_with_the_line_to_type(monkeypatch, block_packages, import_it, title):
    install_driver(monkeypatch, lambda: FakeLibcuda(version=12080))

    with pytest.raises(
        MissingExtraError, match=rf"^{title} .*install it with: pip install 'gpustreamlab\[cuda12\]'$"
    ) as caught:
        import_it()

    assert isinstance(caught.value.__cause__, ImportError)


def test_present_packages_are_imported(working_packages):
    assert import_cupy().__version__ == "14.2.0"
    assert import_cuda_core() is working_packages
    assert import_nvtx() is sys.modules["nvtx"]


@pytest.mark.parametrize(
    ("load", "reason", "words"),
    [
        (no_libcuda, Unavailable.NO_DRIVER, ("No NVIDIA driver", "nvidia.com/drivers", "--gpus all")),
        (lambda: FakeLibcuda(version=11080), Unavailable.OLD_DRIVER, ("supports CUDA 11.8", "needs 12.0", "Update it")),
        (lambda: FakeLibcuda(gpus=()), Unavailable.NO_DEVICE, ("finds no GPU", "nvidia-smi -L")),
        (lambda: FakeLibcuda(init_result=UNKNOWN_ERROR), Unavailable.UNKNOWN, ("does not start", "error 999", "nvidia-smi")),
        (FakeLibcuda, Unavailable.NO_PACKAGE, ("cupy, cuda.core, cuda.bindings, nvtx", "pip install 'gpustreamlab[cuda13]'")),
    ],
    ids=["no driver", "old driver", "no device", "unknown", "no package"],
)
def test_the_reason_says_what_is_wrong_and_what_to_do(monkeypatch, block_packages, load, reason, words):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    install_driver(monkeypatch, load)

    got, message = why_unavailable()

    assert got is reason
    assert all(word in message for word in words), message


def test_hidden_gpus_are_blamed_on_the_variable(monkeypatch, block_packages):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    install_driver(monkeypatch, lambda: FakeLibcuda(init_result=NO_DEVICE))

    _, message = why_unavailable()

    assert "CUDA_VISIBLE_DEVICES='-1'" in message
    assert "unset CUDA_VISIBLE_DEVICES" in message


def test_nothing_is_wrong_where_all_works(monkeypatch, working_packages):
    install_driver(monkeypatch, FakeLibcuda)

    assert why_unavailable() is None


def test_one_missing_package_is_named_alone(monkeypatch, working_packages):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    install_driver(monkeypatch, FakeLibcuda)

    assert why_unavailable() == (
        Unavailable.NO_PACKAGE,
        "CUDA needs the Python package nvtx. Install with: pip install 'gpustreamlab[cuda13]'",
    )


def test_packages_for_a_newer_driver_are_to_be_replaced(monkeypatch, working_packages):
    install_driver(monkeypatch, lambda: FakeLibcuda(version=12080))

    reason, message = why_unavailable()

    assert reason is Unavailable.OLD_DRIVER
    assert message.endswith("pip uninstall --yes cupy-cuda13x && pip install 'gpustreamlab[cuda12]'")
    assert checks_by_name()["CuPy"].status is CheckStatus.LACKING


def test_all_checks_are_ok_where_all_works(monkeypatch, working_packages):
    install_driver(monkeypatch, FakeLibcuda)
    pretend_cupti(monkeypatch)

    checks = checks_by_name()

    newer = {name: checks.pop(name) for name in NEWER_FEATURES}
    assert {check.status for check in checks.values()} == {CheckStatus.OK}
    assert {check.fix for check in checks.values()} == {""}
    assert {check.status for check in newer.values()} == {CheckStatus.UNAVAILABLE}
    assert checks["GPU 0"].detail == "NVIDIA H200, 132 SMs, 139.0 GiB, compute capability 9.0"
    assert checks["green contexts"].detail == "GPU 0: 132 SMs, at least 8 a partition, in steps of 8"
    assert checks["CUPTI"].detail == "CUPTI 13.0 (API version 130001), whose records are known, from /x/libcupti.so.13"
    assert checks["NVTX ranges of others"].detail == (
        "seen: a session sets NVTX_INJECTION64_PATH while it is open. Start it before a library's first NVTX call"
    )


def test_missing_packages_become_rows(monkeypatch, block_packages):
    install_driver(monkeypatch, FakeLibcuda)

    checks = checks_by_name()

    for name in ("CuPy", "cuda.core", "nvtx", "green contexts"):
        assert checks[name].status is CheckStatus.LACKING
        assert checks[name].fix == "pip install 'gpustreamlab[cuda13]'"
    for name in ("CUPTI", "NVTX ranges of others"):
        assert checks[name].status is CheckStatus.LACKING
        assert checks[name].fix == "pip install 'gpustreamlab[cupti]'"
    assert checks["CUPTI"].detail == "not installed; ranges are timed without it"
    assert checks["CuPy"].detail == "not installed; on a lane: follows, its current stream is set, with its memory pool's arena"


def test_without_a_driver_that_is_said_once(monkeypatch, block_packages):
    install_driver(monkeypatch, no_libcuda)

    checks = cuda_checks()

    assert [check.name for check in checks] == ["CUDA driver", "CuPy", "cuda.core", "nvtx", "CUPTI", *LIBRARIES]
    assert sum("driver" in check.detail for check in checks) == 1
    assert all(check.fix for check in checks if check.name not in LIBRARIES)


def library_checks(monkeypatch, versions, load=FakeLibcuda):
    """Return the rows of the libraries that are not needed, by name, where these versions are installed."""
    for owner in (_probe, _known):
        monkeypatch.setattr(owner, "installed_version", lambda module: versions.get(module, ""))
    install_driver(monkeypatch, load)
    return {check.name: check for check in cuda_checks() if check.name in LIBRARIES}


def test_libraries_are_said_to_be_usable_and_to_follow_or_not_and_none_is_needed(monkeypatch):
    checks = library_checks(monkeypatch, {"numba.cuda": "0.31.0", "jax": "0.9"})

    assert list(checks) == [*LIBRARIES]
    assert {check.status for check in checks.values()} == {CheckStatus.OK}
    assert checks["numba-cuda"].detail.startswith("0.31.0 is installed; it was not tried; on a lane: follows, launches and")
    assert checks["jax"].detail == (
        "0.9 is installed; it was not tried; "
        "on a lane: cannot follow, it has its own streams; its work is found by lab.trace.strays()"
    )
    assert checks["triton"].detail == (
        "not installed, and not needed; on a lane: follows through torch, it launches on torch's current stream"
    )


def test_an_installed_library_without_a_gpu_says_what_it_lacks(monkeypatch):
    checks = library_checks(monkeypatch, {"torch": "2.11.0"}, no_libcuda)

    assert checks["torch"].status is CheckStatus.UNAVAILABLE
    assert checks["torch"].detail.startswith(
        "2.11.0 is installed; its work on a GPU needs one and its driver; on a lane: follows"
    )
    assert checks["torch"].fix.startswith("Install it from")


def test_a_torch_for_the_cpu_cannot_follow_and_neither_can_triton(monkeypatch):
    checks = library_checks(monkeypatch, {"torch": "2.11.0+cpu", "triton": "3.6.0"})

    assert checks["torch"].detail == (
        "2.11.0+cpu is installed; on a lane: cannot follow, this build of torch has no CUDA, so it has no work to follow with"
    )
    assert checks["triton"].detail.endswith(
        "on a lane: cannot follow, it launches on torch's current stream, and torch: cannot follow"
    )


@pytest.mark.parametrize(
    ("version", "has_name", "status"),
    [
        ("0.30.4", False, CheckStatus.LACKING),
        ("0.9", False, CheckStatus.LACKING),
        ("0.30.4", True, CheckStatus.OK),
        ("0.31.0", False, CheckStatus.OK),
        ("unreadable", False, CheckStatus.OK),
    ],
)
def test_numba_that_numpy_is_too_new_for_is_told_with_the_line_to_type(monkeypatch, version, has_name, status):
    fake = types.SimpleNamespace(__version__="2.5.2", **{"row_stack": None} if has_name else {})
    monkeypatch.setattr(_known, "np", fake)

    check = library_checks(monkeypatch, {"numba.cuda": version})["numba-cuda"]

    assert check.status is status
    assert check.fix == ("pip install 'numpy<2.5'" if status is CheckStatus.LACKING else "")
    assert ("cannot follow, it cannot be imported: it asks for numpy.row_stack" in check.detail) == bool(check.fix)


def test_the_words_about_a_lane_are_those_of_a_sessions_table(monkeypatch, block_packages):
    """Two lists in two words had come to contradict each other."""
    monkeypatch.setattr(_known, "installed_version", lambda module: "9.9")
    monkeypatch.setattr(_table, "installed_version", lambda module: "9.9")
    install_driver(monkeypatch, FakeLibcuda)
    for library in KNOWN:
        monkeypatch.delitem(sys.modules, library.module, raising=False)

    rows = {check.name.lower(): check.detail.partition("; on a lane: ")[2] for check in cuda_checks()}
    with Session("sim") as lab:
        table = {item.name: item.reason.partition("; on a GPU: ")[2] for item in lab.recording.adapters}

    assert list(table) == [library.name for library in KNOWN]
    assert {name: rows[name] for name in table} == table
    assert all(table.values())


def test_a_package_that_is_there_but_broken_says_so(monkeypatch, working_packages):
    monkeypatch.setitem(sys.modules, "cupy", None)
    install_driver(monkeypatch, FakeLibcuda)

    assert checks_by_name()["CuPy"].detail.startswith("cupy-cuda13x 14.2.0 is installed but cannot be imported: ")


def test_a_failing_first_use_lies_with_the_driver(monkeypatch, working_packages):
    def fail(ordinal):
        raise RuntimeError("CUDA_ERROR_NOT_INITIALIZED: no luck")

    working_packages.Device = fail
    install_driver(monkeypatch, FakeLibcuda)

    checks = checks_by_name()

    assert checks["cuda.core"].detail == (
        "cuda-core 1.2.2 is installed; its first use fails: CUDA_ERROR_NOT_INITIALIZED: no luck; "
        "on a lane: takes a stream, it has no current stream: pass lane.core to launch() and the like"
    )
    assert checks["cuda.core"].fix == "pip install --upgrade 'gpustreamlab[cuda13]'"
    assert checks["green contexts"].status is CheckStatus.LACKING


@pytest.mark.parametrize(("version", "status"), [(12040, CheckStatus.UNAVAILABLE), (12050, CheckStatus.OK)])
def test_green_contexts_need_a_driver_for_12_5(monkeypatch, working_packages, version, status):
    install_driver(monkeypatch, lambda: FakeLibcuda(version=version))

    check = checks_by_name()["green contexts"]

    assert check.status is status
    assert (status is CheckStatus.OK) or "12.4; they need 12.5" in check.detail


@pytest.mark.parametrize(
    ("version", "bindings", "status", "detail", "fix"),
    [
        (13010, "13.1.0", CheckStatus.OK, "available (CUDA 13.1 in the driver and the bindings)", ""),
        (13020, "13.5.0", CheckStatus.OK, "available", ""),
        (
            13000,
            "13.5.0",
            CheckStatus.UNAVAILABLE,
            "the driver supports CUDA 13.0; needs CUDA 13.1",
            "Update the NVIDIA driver",
        ),
        (
            13010,
            "13.0.3",
            CheckStatus.LACKING,
            "cuda.bindings is for CUDA 13.0",
            "pip install --upgrade 'gpustreamlab[cuda13]'",
        ),
        (13010, None, CheckStatus.LACKING, "cuda.bindings is not installed", "pip install --upgrade 'gpustreamlab[cuda13]'"),
        (13010, "unreadable", CheckStatus.LACKING, "cuda.bindings is not installed", "pip install --upgrade"),
    ],
)
def test_newer_features_need_driver_and_bindings(monkeypatch, working_packages, version, bindings, status, detail, fix):
    installed = {name: number for name, number in ALL_INSTALLED.items() if name != "cuda-bindings"}
    pretend_installed(monkeypatch, installed | ({} if bindings is None else {"cuda-bindings": bindings}))
    install_driver(monkeypatch, lambda: FakeLibcuda(version=version))

    checks = checks_by_name()

    for name in NEWER_FEATURES:
        assert checks[name].status is status
        assert detail in checks[name].detail
        assert checks[name].fix.startswith(fix)
        assert (status is CheckStatus.OK) or "Without it: " in checks[name].detail


def test_cupti_is_not_loaded_without_a_driver(monkeypatch, working_packages):
    """CUPTI 13.2 crashes when it is asked for its version there."""
    pretend_installed(monkeypatch, ALL_INSTALLED | {"nvidia-cuda-cupti": "13.2.86"})
    install_driver(monkeypatch, no_libcuda)
    monkeypatch.setattr(_probe, "load_cupti", lambda: pytest.fail("it was loaded"))

    checks = checks_by_name()

    assert checks["CUPTI"].status is CheckStatus.UNAVAILABLE
    assert checks["CUPTI"].detail == "nvidia-cuda-cupti 13.2.86 is installed; it needs a GPU and its driver"


@pytest.mark.parametrize(("driver", "extra"), [(12040, "cupti12"), (13000, "cupti")])
def test_the_cupti_that_suits_the_driver_is_named(monkeypatch, block_packages, driver, extra):
    install_driver(monkeypatch, lambda: FakeLibcuda(version=driver))

    assert checks_by_name()["CUPTI"].fix == f"pip install 'gpustreamlab[{extra}]'"


def test_a_cupti_that_cannot_be_loaded_says_why(monkeypatch, block_packages):
    pretend_installed(monkeypatch, {"nvidia-cuda-cupti-cu12": "12.9.79"})
    install_driver(monkeypatch, FakeLibcuda)

    check = checks_by_name()["CUPTI"]

    assert check.status is CheckStatus.LACKING
    assert check.detail.startswith("nvidia-cuda-cupti-cu12 12.9.79 is installed but cannot be loaded: ")


def test_a_cupti_of_an_unknown_version_says_so(monkeypatch, working_packages):
    install_driver(monkeypatch, FakeLibcuda)
    pretend_cupti(monkeypatch, 139900)

    checks = checks_by_name()

    assert "API version 139900" in checks["CUPTI"].detail
    assert checks["CUPTI"].fix == "pip install --upgrade gpustreamlab"
    assert checks["NVTX ranges of others"].status is CheckStatus.LACKING


def test_a_cupti_that_crashes_with_nvtx_is_named(monkeypatch, working_packages):
    install_driver(monkeypatch, FakeLibcuda)
    pretend_cupti(monkeypatch, 130000)

    check = checks_by_name()["NVTX ranges of others"]

    assert check.status is CheckStatus.LACKING
    assert check.detail.startswith("CUPTI 13.0.0 crashes when NVTX loads it")
    assert check.fix == "pip install --upgrade 'nvidia-cuda-cupti>=13.0.85,<14'"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/opt/nsys/libToolsInjection64.so", CheckStatus.LACKING, "not seen"),
        ("/my/libcupti.so.13", CheckStatus.OK, "seen: "),
        ("", CheckStatus.LACKING, "not seen"),
    ],
)
def test_who_else_listens_to_nvtx_is_named(monkeypatch, working_packages, path, status, words):
    install_driver(monkeypatch, FakeLibcuda)
    pretend_cupti(monkeypatch)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", path)

    check = checks_by_name()["NVTX ranges of others"]

    assert check.status is status
    assert check.detail.startswith(words)
    assert path in check.detail
    assert (status is CheckStatus.OK) or check.fix.endswith("unset NVTX_INJECTION64_PATH")


def test_this_machine_gets_every_row_whatever_it_has():
    checks = cuda_checks()

    assert {"CUDA driver", "CuPy", "cuda.core", "nvtx", "CUPTI"} <= {check.name for check in checks}
    assert all(check.fix for check in checks if check.status is not CheckStatus.OK)


def test_version_text_is_empty_without_a_driver():
    assert Driver().version_text == ""
    assert Driver(version=(12, 4)).version_text == "12.4"
