"""What is said about a machine's CUDA, with a fake driver: no GPU and no CUDA package is needed."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from unittest.mock import Mock

import pytest

from gpustreamlab import Session
from gpustreamlab.adapters import KNOWN, _known
from gpustreamlab.adapters import _followers as _table
from gpustreamlab.backends.cuda import _probe
from gpustreamlab.backends.cuda._libcuda import (
    Gpu,
    bindings_version,
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


def test_gpus_are_described_by_the_driver_and_it_names_its_own_error():
    first, second = read_gpus(lambda: FakeLibcuda(gpus=("NVIDIA H200", "NVIDIA H100")))

    assert first == Gpu(ordinal=0, name="NVIDIA H200", sm_count=132, memory_bytes=139 * 2**30, compute_capability=(9, 0))
    assert (second.ordinal, second.name) == (1, "NVIDIA H100")
    assert read_gpus(no_libcuda) == ()
    assert read_driver(lambda: FakeLibcuda(init_result=NO_DEVICE)).message == "cuInit said CUDA_ERROR_NO_DEVICE"


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


@pytest.mark.parametrize(("installed", "version"), [("13.1.0", (13, 1)), ("unreadable", None), (None, None)])
def test_the_bindings_tell_their_version(monkeypatch, installed, version):
    pretend_installed(monkeypatch, {} if installed is None else {"cuda-bindings": installed})
    assert bindings_version() == version


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


REASONS = {
    "no driver": (no_libcuda, Unavailable.NO_DRIVER, ("No NVIDIA driver", "nvidia.com/drivers", "--gpus all")),
    "old driver": (
        lambda: FakeLibcuda(version=11080),
        Unavailable.OLD_DRIVER,
        ("supports CUDA 11.8", "needs 12.0", "Update it"),
    ),
    "no device": (lambda: FakeLibcuda(gpus=()), Unavailable.NO_DEVICE, ("finds no GPU", "nvidia-smi -L")),
    "hidden": (
        lambda: FakeLibcuda(init_result=NO_DEVICE),
        Unavailable.NO_DEVICE,
        ("CUDA_VISIBLE_DEVICES='-1'", "unset CUDA_VISIBLE_DEVICES"),
    ),
    "unknown": (
        lambda: FakeLibcuda(init_result=UNKNOWN_ERROR),
        Unavailable.UNKNOWN,
        ("does not start", "error 999", "nvidia-smi"),
    ),
    "no package": (
        FakeLibcuda,
        Unavailable.NO_PACKAGE,
        ("packages cupy, cuda.core, cuda.bindings, nvtx", "pip install 'gpustreamlab[cuda13]'"),
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_says_what_is_wrong_and_what_to_do(monkeypatch, block_packages, case):
    load, reason, words = REASONS[case]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if case == "hidden":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    install_driver(monkeypatch, load)

    got, message = why_unavailable()

    assert got is reason
    assert all(word in message for word in words), message


def test_nothing_is_wrong_where_all_works_and_one_missing_package_is_named_alone(monkeypatch, working_packages):
    install_driver(monkeypatch, FakeLibcuda)
    assert why_unavailable() is None

    monkeypatch.setitem(sys.modules, "nvtx", None)
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

    assert {check.status for check in checks.values()} == {CheckStatus.OK}
    assert {check.fix for check in checks.values()} == {""}
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
    assert (
        checks["CuPy"].detail == "not installed; on a stream: follows, its current stream is set, with its memory pool's arena"
    )


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
    assert checks["numba-cuda"].detail.startswith("0.31.0 is installed; it was not tried; on a stream: follows, launches and")
    assert checks["jax"].detail == (
        "0.9 is installed; it was not tried; "
        "on a stream: cannot follow, it has its own streams; its work is found by lab.trace.strays()"
    )
    assert checks["triton"].detail == (
        "not installed, and not needed; on a stream: follows through torch, it launches on torch's current stream"
    )


def test_torch_without_a_gpu_or_for_the_cpu_says_what_it_lacks(monkeypatch):
    torch = library_checks(monkeypatch, {"torch": "2.11.0"}, no_libcuda)["torch"]
    assert torch.status is CheckStatus.UNAVAILABLE
    assert torch.detail.startswith("2.11.0 is installed; its work on a GPU needs one and its driver; on a stream: follows")
    assert torch.fix.startswith("Install it from")

    checks = library_checks(monkeypatch, {"torch": "2.11.0+cpu", "triton": "3.6.0"})
    assert checks["torch"].status is CheckStatus.OK
    assert checks["torch"].detail == (
        "2.11.0+cpu is installed; on a stream: cannot follow, this build of torch has no CUDA, so it has no work to follow with"
    )
    assert checks["triton"].detail.endswith(
        "on a stream: cannot follow, it launches on torch's current stream, and torch: cannot follow"
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

    rows = {check.name.lower(): check.detail.partition("; on a stream: ")[2] for check in cuda_checks()}
    with Session("sim") as lab:
        table = {item.name: item.reason.partition("; on a GPU: ")[2] for item in lab.recording.adapters}

    assert list(table) == [library.name for library in KNOWN]
    assert {name: rows[name] for name in table} == table
    assert all(table.values())


LACKING, UNAVAILABLE, OK = CheckStatus.LACKING, CheckStatus.UNAVAILABLE, CheckStatus.OK
UPGRADE = "pip install --upgrade 'gpustreamlab[cuda13]'"


NVTX = "NVTX ranges of others"
CASES = {
    "broken package": (
        {"broken": "cupy"},
        {"CuPy": (LACKING, "cupy-cuda13x 14.2.0 is installed but cannot be imported: ", "pip install 'gpustreamlab[cuda13]'")},
    ),
    "failing first use": (
        {"fails": True},
        {
            "cuda.core": (
                LACKING,
                "cuda-core 1.2.2 is installed; its first use fails: CUDA_ERROR_NOT_INITIALIZED: no luck; "
                "on a stream: takes a stream, it has no current stream: pass stream.core to launch() and the like",
                UPGRADE,
            ),
            "green contexts": (LACKING, "cannot read the device's SMs", UPGRADE),
        },
    ),
    "driver 12.4": ({"driver": 12040}, {"green contexts": (UNAVAILABLE, "12.4; they need 12.5", "Update the NVIDIA driver")}),
    "driver 12.5": ({"driver": 12050}, {"green contexts": (OK, "GPU 0: 132 SMs", "")}),
    "CUPTI without a driver": (  # 13.2 crashes when it is asked for its version there
        {"driver": None, "installed": ALL_INSTALLED | {"nvidia-cuda-cupti": "13.2.86"}},
        {"CUPTI": (UNAVAILABLE, "nvidia-cuda-cupti 13.2.86 is installed; it needs a GPU and its driver", "Install it from")},
    ),
    "no CUPTI, driver 12": ({"driver": 12040}, {"CUPTI": (LACKING, "not installed", "pip install 'gpustreamlab[cupti12]'")}),
    "CUPTI not loadable": (
        {"installed": {"nvidia-cuda-cupti-cu12": "12.9.79"}},
        {"CUPTI": (LACKING, "nvidia-cuda-cupti-cu12 12.9.79 is installed but cannot be loaded: ", "pip install")},
    ),
    "unknown CUPTI": (
        {"cupti": 139900},
        {
            "CUPTI": (LACKING, "API version 139900", "pip install --upgrade gpustreamlab"),
            NVTX: (LACKING, "they need a CUPTI that is known", "pip install"),
        },
    ),
    "crashing CUPTI": (
        {"cupti": 130000},
        {
            NVTX: (
                LACKING,
                "CUPTI 13.0.0 crashes when NVTX loads it",
                "pip install --upgrade 'nvidia-cuda-cupti>=13.0.85,<14'",
            )
        },
    ),
    "nsys listens": (
        {"cupti": 130001, "listener": "/opt/nsys/libToolsInjection64.so"},
        {NVTX: (LACKING, "to '/opt/nsys/libToolsInjection64.so', so they go there", "Restart without it: unset NVTX")},
    ),
    "a CUPTI listens": (
        {"cupti": 130001, "listener": "/my/libcupti.so.13"},
        {NVTX: (OK, "seen: NVTX_INJECTION64_PATH was", "")},
    ),
    "an empty listener": ({"cupti": 130001, "listener": ""}, {NVTX: (LACKING, "not seen: ", "Restart without it")}),
}


@pytest.mark.parametrize(("machine", "rows"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_said_with_what_to_type(monkeypatch, working_packages, machine, rows):
    if "broken" in machine:
        monkeypatch.setitem(sys.modules, machine["broken"], None)
    if "fails" in machine:
        working_packages.Device = Mock(side_effect=RuntimeError("CUDA_ERROR_NOT_INITIALIZED: no luck"))
    if "installed" in machine:
        pretend_installed(monkeypatch, machine["installed"])
    version = machine.get("driver", 13000)
    install_driver(monkeypatch, no_libcuda if version is None else lambda: FakeLibcuda(version=version))
    if version is None:
        monkeypatch.setattr(_probe, "load_cupti", lambda: pytest.fail("it was loaded"))
    if "cupti" in machine:
        pretend_cupti(monkeypatch, machine["cupti"])
    if "listener" in machine:
        monkeypatch.setenv("NVTX_INJECTION64_PATH", machine["listener"])

    checks = checks_by_name()

    for name, (status, detail, fix) in rows.items():
        assert checks[name].status is status
        assert detail in checks[name].detail
        assert checks[name].fix.startswith(fix)


def test_this_machine_gets_every_row_whatever_it_has():
    checks = cuda_checks()

    assert {"CUDA driver", "CuPy", "cuda.core", "nvtx", "CUPTI"} <= {check.name for check in checks}
    assert all(check.fix for check in checks if check.status is not CheckStatus.OK)
