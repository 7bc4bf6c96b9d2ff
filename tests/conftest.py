"""Guards that hold for every test."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.helpers.long_runs import count

# Workers share the cores. Threads of a matrix product that wait for each other's core spin;
# this must be set before the first import of NumPy.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples at each run, and no clock: a red run means a change, not a busy machine. Look further now and then with
# --hypothesis-profile=default.
settings.register_profile("gpustreamlab", derandomize=True, deadline=None, max_examples=count(50, 100))
settings.load_profile("gpustreamlab")

SESSION_MODULE = "gpustreamlab.streams.life"

FOREIGN_THREAD_TYPES = frozenset({"HistorySavingThread", "GarbageCollectorThread", "TMonitor"})
"""Threads that other packages start once a process and never end: IPython's history, pyzmq's collector, tqdm's monitor."""
FOREIGN_THREAD_NAMES = ("Dask-Offload",)
"""Likewise, by the beginnings of their names: Dask's."""
GRACE_S = 30.0
"""How long a thread that a test asked to end may take to do so."""


TESTS_A_FREEZE = 100
"""After so many tests what is there is left out of later collections: they took up to 2.4 s each at the end of a run."""
_ended = itertools.count(1)


def pytest_runtest_teardown() -> None:
    if next(_ended) % TESTS_A_FREEZE == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread running."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and is_ours(thread)]
    for thread in left:
        thread.join(GRACE_S)
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"The test left threads running: {names}"


@pytest.fixture(autouse=True)
def no_session_is_left() -> Iterator[None]:
    """Fail a test that leaves a session open; it is closed for the tests that follow."""
    before = open_sessions()
    yield
    left = [session for session in open_sessions() if session not in before]
    shown = [repr(session) for session in left]
    for session in left:
        session.close()
    assert not shown, f"The test left sessions open: {shown}"


@pytest.fixture(autouse=True)
def one_look_at_an_owner() -> None:
    """Let one sweep find memory that nobody uses, also without a global interpreter lock: no thread of a test moves it then."""
    ownership = sys.modules.get("gpustreamlab._util.arrays")
    if ownership is not None:
        ownership._SIGHTINGS = 1


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where a shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def open_sessions() -> list[object]:
    """List the open sessions; none where the module was not imported, so that this imports nothing."""
    module = sys.modules.get(SESSION_MODULE)
    return [] if module is None else list(module.known_sessions)


def is_ours(thread: threading.Thread) -> bool:
    """Tell whether the project, not a package that it uses, started the thread."""
    if isinstance(thread, threading._DummyThread) or thread.name.startswith(FOREIGN_THREAD_NAMES):
        return False
    return type(thread).__name__ not in FOREIGN_THREAD_TYPES


@pytest.fixture
def installed_as_wheel(monkeypatch):
    """Let lines to type be those of a package that was not installed from a clone."""
    monkeypatch.setattr("gpustreamlab._util.words.clone_folder", lambda: None)


@pytest.hookimpl(wrapper=True, trylast=True)  # inside of the wrapper of pytest-cov
def pytest_runtest_call(item):
    """Trace no test that is marked with no_cover: pytest-cov's own pause has no effect in a worker of xdist."""
    tracer = sys.gettrace()
    if item.get_closest_marker("no_cover") is None or tracer is None:
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
