"""Libraries follow the selected stream: who is taken, in which order, and what happens when one fails."""

from __future__ import annotations

import importlib.util
import sys
import threading
import types
import warnings

import pytest
from IPython.lib.pretty import pretty

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import AdapterWarning, MissingExtraError, NotSimulatedError, OptionError, SelectionError
from gpustreamlab.typing import AdapterState
from tests.helpers.lending_backend import LendingBackend, StandIn, add_libraries, fresh_registry, make_torch

NULL = (0, 0, 1)


class Library:
    """A library with a current stream for each thread, and its adapter."""

    def __init__(self, name, log):
        self.name, self.log, self.local = name, log, threading.local()
        self.fails = set()
        self.closed_count = 0

    @property
    def current(self):
        return getattr(self.local, "current", 0)

    def select(self, stream):
        self.log.append((self.name, "select", stream.handle))
        if "select" in self.fails:
            raise ValueError("no such stream")
        assert stream.__cuda_stream__() == (0, stream.handle)
        before, self.local.current = self.current, stream.handle
        return before

    def restore(self, token):
        self.log.append((self.name, "restore", token))
        if "restore" in self.fails:
            raise OSError("lost")
        self.local.current = token

    def close(self):
        self.closed_count += 1


@pytest.fixture
def fresh(monkeypatch):
    """A registry of its own, and a function that makes a library loaded."""
    fresh_registry(monkeypatch)

    def load(name, module):
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return load


@pytest.fixture
def lab(fresh):
    with Session(LendingBackend()) as session:
        session.stream("a")
        session.stream("b")
        yield session


@pytest.fixture
def libraries(fresh, monkeypatch):
    """Return a function that loads libraries with adapters of their own; it gives them and the log of all calls."""
    log, found = [], {}

    def add(*names):
        for name in names:
            library = Library(name, log)
            module = fresh(name, StandIn(name, __version__="1.2", library=library))
            found[name] = module
        return [found[name].library for name in names]

    def make(module, ordinal):
        log.append((module.__name__, "make", ordinal))
        return module.library

    add_libraries(monkeypatch, make, "one", "two")
    return types.SimpleNamespace(add=add, log=log)


def handles(lab):
    return [lab.stream(name).handle for name in ("a", "b")]


@pytest.mark.parametrize("private", [True, False])
def test_torch_follows_through_nested_selections_and_gets_its_own_back(fresh, lab, private):
    torch, state = make_torch(private=private)
    fresh("torch", torch)
    a, b = handles(lab)
    assert lab.recording.adapters["torch"].state == AdapterState.FOLLOWS
    assert state.calls == []  # it is started by the first selection
    state.local.current = (99, 0, 1)
    with lab.on("a"):
        assert state.current == (a, 0, 1)
        with lab.select("b"), lab.range("step"):
            assert state.current == (b, 0, 1)
        assert state.current == (a, 0, 1)
    assert state.current == (99, 0, 1)
    assert lab.current is None
    lab.partition(p=32, rest="rest")
    lab.stream("a", partition="p")
    with lab.on("a"):
        assert state.current[0] == lab.stream("a").handle != a
    assert state.calls.count("init") == 1


def too_old():
    raise RuntimeError("The NVIDIA driver on your system is too old")


UNABLE = {
    "a build for the CPU": ({"cuda_version": None}, lambda torch: None, "no CUDA", False),
    "CUDA does not start": ({}, lambda torch: setattr(torch.cuda, "init", too_old), "too old", False),
    "no device of that number": ({}, lambda torch: setattr(torch.cuda, "device_count", lambda: 0), "so no device 0", False),
    "nothing to set": ({"private": False}, lambda torch: delattr(torch.cuda, "set_stream"), "no set_stream", True),
}


@pytest.mark.parametrize(("options", "change", "reason", "is_told"), UNABLE.values(), ids=UNABLE)
def test_a_torch_that_cannot_follow_is_told_in_the_table_and_if_it_has_work_by_one_warning(
    fresh, lab, options, change, reason, is_told
):
    torch, state = make_torch(**options)
    change(torch)
    fresh("torch", torch)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with lab.on("a"):
                pass
    assert [str(item.message).startswith("torch 2.11.0 cannot follow") for item in told] == [True] * is_told
    assert not any("set" in call for call in state.calls)
    found = lab.recording.adapters["torch"]
    assert found.state == AdapterState.CANNOT_FOLLOW
    assert reason in found.reason


def test_a_session_on_the_simulated_device_touches_no_library(fresh):
    torch, state = make_torch()
    fresh("torch", torch)
    with Session("sim") as lab:
        lab.stream("a")
        with lab.on("a"), lab.select("a"):
            pass
        assert state.calls == []
        assert lab.recording.adapters["torch"].state == AdapterState.CANNOT_FOLLOW
        assert "simulated" in lab.recording.adapters["torch"].reason
        for library in ("cupy", "torch", "numba", "core"):
            with pytest.raises(NotSimulatedError, match="simulated device"):
                getattr(lab.stream("a"), library)


def test_a_library_that_is_being_imported_is_taken_when_it_is_there(fresh, lab):
    torch, state = make_torch()
    torch.__spec__._initializing = True
    fresh("torch", torch)
    with lab.on("a"):
        assert state.current == NULL
    assert lab.recording.adapters["torch"].state == AdapterState.NOT_LOADED
    torch.__spec__._initializing = False
    with lab.on("a"):
        assert state.current[0] == lab.stream("a").handle
    assert state.current == NULL


def test_a_library_imported_inside_a_selection_follows_from_the_next_one(fresh, lab):
    torch, state = make_torch()
    _, b = handles(lab)
    with lab.on("a"):
        fresh("torch", torch)
        assert state.current == NULL
        with lab.on("b"):
            assert state.current == (b, 0, 1)
        assert state.current == NULL
    assert state.current == NULL
    assert state.calls == ["init", ("set", b), ("set", 0)]


@pytest.mark.parametrize("kind", [SimBackend, LendingBackend])
def test_libraries_are_looked_for_after_an_import_and_not_before_each_selection(fresh, monkeypatch, kind):
    with Session(kind()) as lab:
        lab.stream("a")
        looks = []
        for _ in range(2):  # the first selection may import something itself
            with lab.on("a"):
                pass
        look = lab._selections.look
        monkeypatch.setattr(lab._selections, "look", lambda: looks.append(look()))
        for wanted in (0, 1, 2):
            if wanted == 1:
                fresh("one_more", StandIn("one_more"))
            elif wanted == 2:
                del sys.modules["one_more"]
            for _ in range(3):
                with lab.on("a"):
                    pass
            assert len(looks) == wanted


def test_libraries_are_selected_in_one_order_and_put_back_in_the_other_once(libraries, lab):
    libraries.add("one", "two")
    a, b = handles(lab)
    selected = [("one", "select", a), ("two", "select", a), ("one", "select", b), ("two", "select", b)]
    restored = [("two", "restore", a), ("one", "restore", a), ("two", "restore", 0), ("one", "restore", 0)]
    with lab.on("a"), lab.select("b"):
        pass
    assert [entry for entry in libraries.log if entry[1] != "make"] == selected + restored
    # WHEN the outer one is left first
    del libraries.log[:]
    outer, inner = lab.on("a"), lab.on("b")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(SelectionError):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert libraries.log == selected + restored


def test_an_adapter_that_fails_to_select_is_switched_off_with_one_warning(libraries, lab):
    one, two = libraries.add("one", "two")
    with lab.on("a"):
        one.fails.add("select")
        with pytest.warns(AdapterWarning) as told, lab.on("b"):
            assert (one.current, two.current) == (lab.stream("a").handle, lab.stream("b").handle)
        with lab.on("b"):
            assert two.current == lab.stream("b").handle
    assert (one.current, two.current) == (0, 0), "what it had selected before it failed is put back"
    assert [str(item.message) for item in told] == [
        "one 1.2 does not follow the selected stream of device 0 any more: its adapter failed to select a stream: ValueError: "
        "no such stream. From now on its work leaves the stream; lab.trace.strays() finds it. Restart the process to try again."
    ]
    assert told[0].filename == __file__
    assert lab.recording.adapters["one"].state == AdapterState.SWITCHED_OFF
    assert lab.recording.adapters["two"].state == AdapterState.FOLLOWS


def test_a_factory_that_raises_is_told_once(libraries, lab):
    libraries.add("one")
    sys.modules["one"].__dict__.pop("library")
    libraries.add("two")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            with lab.on("a"):
                assert sys.modules["two"].library.current == lab.stream("a").handle
    assert len(told) == 1
    assert "has no attribute 'library'" in lab.recording.adapters["one"].reason


def test_adapters_are_made_once_and_closed_with_the_last_session(libraries):
    (one,) = libraries.add("one")
    first, second = Session(LendingBackend()), Session(LendingBackend())
    for session in (first, second):
        session.stream("a")
        with session.on("a"):
            pass
    first.close()
    assert (one.closed_count, [entry[1] for entry in libraries.log].count("make")) == (0, 1)
    second.close()
    assert one.closed_count == 1
    with Session(LendingBackend()) as third:
        third.stream("a")
        with third.on("a"):
            assert one.current == third.stream("a").handle
    assert one.closed_count == 2


# The table, and the stream as others have it


def test_the_table_is_text_and_html_imports_nothing_and_is_short_at_the_prompt(fresh, lab):
    fresh("onnxruntime", StandIn("onnxruntime", __version__="1.23"))
    before = set(sys.modules)
    table = lab.recording.adapters
    text, page = str(table), table._repr_html_()
    assert {item.name for item in table} >= {"cupy", "torch", "numba-cuda", "triton", "cuda.core", "jax", "onnxruntime"}
    assert "user_compute_stream" in text
    assert max(map(len, text.splitlines())) <= 110
    assert (page.startswith("<table>"), page.count("<tr>")) == (True, len(table.items) + 1)
    assert not {"torch", "cupy", "jax", "numba"} & (set(sys.modules) - before)
    fresh("torch", make_torch()[0])
    table = lab.recording.adapters
    assert len(table) == len(list(table)) == len(table.items)
    assert repr(table) == f"<Adapters: {len(table)} libraries, 1 loaded and following; print() shows them>"
    assert repr(table["torch"]) == "<LibraryState torch 2.11.0: follows>"
    assert pretty(table["torch"]) == str(table["torch"]) == "torch 2.11.0: follows, its current stream is set"
    assert pretty(table) == str(table)
    assert "torch" in table
    assert table["torch"] in table
    assert "tensorflow" not in table
    with pytest.raises(OptionError, match="Did you mean 'torch'"):
        table["torhc"]
    fresh("triton", StandIn("triton", __version__="3.6"))
    fresh("jax", StandIn("jax", __version__="<0.9>"))
    table = lab.recording.adapters
    assert (table["triton"].state, table["jax"].state) == (AdapterState.THROUGH_TORCH, AdapterState.CANNOT_FOLLOW)
    fresh("torch", make_torch(cuda_version=None)[0])
    with lab.on("b"):
        assert "&lt;0.9&gt;" in table._repr_html_()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_on_the_simulated_device_the_table_promises_nothing_that_an_import_takes_back(fresh, monkeypatch, is_loaded):
    monkeypatch.setattr("gpustreamlab.adapters._followers.installed_version", lambda module: "2.11.0")
    if is_loaded:
        fresh("torch", make_torch()[0])
    with Session("sim") as lab:
        told = lab.recording.adapters["torch"]
    assert told.state == (AdapterState.CANNOT_FOLLOW if is_loaded else AdapterState.NOT_LOADED)
    assert told.reason == ("" if is_loaded else "once it is imported: cannot follow, ") + (
        "the simulated device of this session has no stream to give; on a GPU: follows, its current stream is set"
    )


def test_a_lane_is_given_as_the_library_has_it(fresh, lab, monkeypatch):
    def streams(**makers):
        return types.SimpleNamespace(Stream=types.SimpleNamespace(**makers))

    fresh("torch", make_torch()[0])
    fresh("numba.cuda", StandIn("numba.cuda", external_stream=lambda handle: ("numba", handle)))
    fresh("cupy", StandIn("cupy", cuda=streams(from_external=lambda stream: ("cupy", stream))))
    fresh("cuda.core", StandIn("cuda.core", **vars(streams(from_handle=lambda handle: ("core", handle)))))
    stream = lab.stream("a")
    assert stream.torch.triple == (stream.handle, 0, 1)
    assert stream.numba == ("numba", stream.handle)
    assert stream.cupy == ("cupy", stream)
    assert stream.core == ("core", stream.handle)
    for module, fix in (("torch", "pip install torch"), ("cuda.core", r"\[cuda13\]")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=fix):
            getattr(stream, module.rpartition(".")[2])


def test_a_library_that_is_loaded_lazily_is_not_loaded_by_a_selection(tmp_path, monkeypatch):
    # GIVEN a module that is imported as soon as anything of it is asked for
    (tmp_path / "lazy_torch.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("lazy_torch")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    # THEN it counts as not loaded
    monkeypatch.setitem(sys.modules, "torch", lazy)
    with Session(LendingBackend()) as lab:
        with lab.on(lab.stream("a")):
            pass
        assert next(row for row in lab.recording.adapters if row.name == "torch").state is AdapterState.NOT_LOADED
