"""A fake card with a fake libcupti, and a source that is told of its work."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import pytest

from gpustreamlab.backends.cuda.cupti import _buffers, _clients, _work
from tests.helpers.fake_cupti import FakeCard, FakeCuptiLibrary, make_source


@pytest.fixture(autouse=True)
def no_other_client(monkeypatch):
    for name in _clients._NSYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "cupti", raising=False)


@pytest.fixture(autouse=True)
def no_known_contexts(monkeypatch):
    monkeypatch.setattr(_work, "_sms", {})


@pytest.fixture
def card():
    return FakeCard(FakeCuptiLibrary(), drift_ppm=3.0)


@pytest.fixture
def source(monkeypatch, card):
    return make_source(monkeypatch, card)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compile the callbacks once: what reads records is in C, so there is nothing to test without a compiler."""
    assert any(map(shutil.which, _buffers.COMPILERS)), "There is no C compiler: install cc, gcc or clang."
    library = tmp_path_factory.mktemp("callbacks") / "callbacks.so"
    _buffers.compile_sources(_buffers.SOURCES, library)
    return library


@pytest.fixture(autouse=True)
def fresh_library(monkeypatch, tmp_path, compiled):
    """Let each test load a copy of its own, as the loader takes a file once; what an install built beside it is away."""
    folder = tmp_path / "source"
    folder.mkdir()
    monkeypatch.setattr(_buffers, "SOURCES", tuple(Path(shutil.copy(source, folder)) for source in _buffers.SOURCES))
    numbers = itertools.count()
    monkeypatch.setattr(_buffers, "find_library", lambda: shutil.copy(compiled, tmp_path / f"callbacks-{next(numbers)}.so"))
