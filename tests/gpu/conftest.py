"""Everything here needs a CUDA device. A skipped GPU run counts as a failed one, so nothing here skips."""

import importlib.util
import os

import pytest

# With several GPUs, `pytest -n 2 --dist loadfile` gives each worker a card of its own. In place of a worker that crashed comes
# one of the next number.
if os.environ.get("PYTEST_XDIST_WORKER"):
    worker, worker_count = os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"), os.environ["PYTEST_XDIST_WORKER_COUNT"]
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(int(worker) % int(worker_count)))
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # torch.compile would leave worker processes, and their threads, behind
collect_ignore = [] if importlib.util.find_spec("quadrants") else ["test_quadrants_cuda.py"]  # its wheel, 40 MB, travels alone
os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # small kernels are meant here


def pytest_configure(config):
    """Show what cuda.core warns of from 1.3 on: that what a lost device held could not be destroyed. Tests here lose it."""
    try:
        from cuda import core
    except ImportError:
        return
    if hasattr(core, "CUDAWarning"):
        config.addinivalue_line("filterwarnings", "default::cuda.core.CUDAWarning")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Tell of a failure at once: the machine may be taken back, or the time be up, before pytest's own list."""
    report = (yield).get_result()
    if report.failed and item.path.parent.name == "gpu":
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext[-2_000:]}\n")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def lab(request):
    """Open a session; its module may say in `CAPTURE` what it records."""
    from gpustreamlab import Session

    with Session("cuda", title="tests/gpu", capture=getattr(request.module, "CAPTURE", "ranges")) as session:
        yield session
