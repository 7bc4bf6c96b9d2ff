"""Reports of Nsight Systems through nvtx.writer: what it is told, and what is said where it is not there.

The writer here is a fake with the signatures of nvtx 0.2.17. Neither nsys nor its library is on the machines that run this.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange import _nsight


@pytest.fixture
def trace():
    return gsl.Trace.from_columns(
        start_ns=[0, 100, 50, 500], end_ns=[400, 200, 450, 600], stream=["a", "a", "a", "b"], name=["step", "k1", "k2", "copy"],
        kind=["range", "kernel", "kernel", "copy"],
    )  # fmt: skip


class FakeWriter:
    """Keeps what it is told; writes the file if it is told to."""

    def __init__(self, *, writes: bool = True) -> None:
        self.spans: dict[str, list[tuple[object, ...]]] = {}
        self.backend = ""
        self._writes = writes
        self.WriterError = type("WriterError", (Exception,), {})

    def load_backend(self, path):
        self.backend = str(path)
        return self.backend

    def Session(self, name, *, backend, config=None):  # noqa: N802
        self.name = name
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._writes:
            Path(f"{self.name}.nsys-rep").write_bytes(b"report")

    def get_domain(self, name=None):
        return name

    def create_stream(self, name, *, domain=None):
        return FakeStream(self.spans.setdefault(name, []))


class FakeStream:
    def __init__(self, spans):
        self._spans = spans

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def write_pushpop(self, start, end, *, message=None, color=None, category=None):
        self._spans.append((start, end, message, category))


def install(monkeypatch, writer):
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(writer=writer))
    monkeypatch.setitem(sys.modules, "nvtx.writer", writer)
    monkeypatch.setenv("NVTXW_BACKEND", "/opt/libNvtxwBackend.so")
    return writer


def test_each_lane_is_a_stream_and_what_does_not_nest_has_one_of_its_own(monkeypatch, tmp_path, trace):
    writer = install(monkeypatch, FakeWriter())
    trace.save(tmp_path / "run.nsys-rep")
    assert writer.backend == "/opt/libNvtxwBackend.so"
    assert writer.spans == {
        "a": [(0, 400, "step", "range"), (100, 200, "k1", "kernel")],
        "a (2)": [(50, 450, "k2", "kernel")],
        "b": [(500, 600, "copy", "copy")],
    }


def test_a_library_that_writes_nothing_is_no_success(monkeypatch, tmp_path, trace):
    install(monkeypatch, FakeWriter(writes=False))
    with pytest.raises(TraceFileError, match="there is no"):
        trace.save(tmp_path / "run.nsys-rep")


def test_without_nsight_systems_it_says_what_it_needs(monkeypatch, tmp_path, trace):
    install(monkeypatch, FakeWriter())
    monkeypatch.delenv("NVTXW_BACKEND")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"2024\.6 or later"):
        trace.save(tmp_path / "run.nsys-rep")


def test_the_library_is_found_beside_nsys(monkeypatch, tmp_path):
    home = tmp_path / "nsight-systems" / "2026.1.1"
    for path in (home / "target-linux-x64" / "nsys", home / "host-linux-x64" / _nsight.LIBRARY):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    monkeypatch.delenv("NVTXW_BACKEND", raising=False)
    monkeypatch.setenv("PATH", str(home / "target-linux-x64"))
    assert _nsight.find_library() == home / "host-linux-x64" / _nsight.LIBRARY


def test_without_nvtx_it_says_what_to_install(monkeypatch, tmp_path, trace):
    monkeypatch.setitem(sys.modules, "nvtx.writer", None)
    with pytest.raises(MissingExtraError, match="pip install 'nvtx"):
        trace.save(tmp_path / "run.nsys-rep")
