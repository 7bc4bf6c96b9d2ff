"""Libraries are followed when the program imports them, and torch when it first uses the GPU; by stand-ins of the libraries."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab.model import SPAN_KINDS, merge
from gpustreamlab.run._imports import ImportWatch
from gpustreamlab.run._preflight import why_no_gpu
from gpustreamlab.run._recording import ProgramRecording, Wanted
from gpustreamlab.run._torch import TorchHooks
from gpustreamlab.session import Session
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend

ROOT = Path(__file__).resolve().parents[2]
TORCH = {
    "__init__.py": "from torch import cuda, nn, optim\nfrom torch.version import __version__\n",
    "version.py": "cuda = '13.0'\n__version__ = '2.9'\n",
    "cuda.py": """
        queued, is_used = [], False
        def _lazy_call(call):
            call() if is_used else queued.append(call)
        def use():
            global is_used
            is_used = True
            for call in queued:
                call()
    """,
    "nn/__init__.py": "from torch.nn import modules\n",
    "nn/modules/__init__.py": "from torch.nn.modules import module\n",
    "nn/modules/module.py": """
        before, behind = [], []
        class Handle:
            def __init__(self, hooks, hook):
                self.hooks, self.hook = hooks, hook
                hooks.append(hook)
            def remove(self):
                self.hooks.remove(self.hook)
        def register_module_forward_pre_hook(hook):
            return Handle(before, hook)
        def register_module_forward_hook(hook, *, always_call=False):
            assert always_call
            return Handle(behind, hook)
        class Module:
            def named_modules(self, prefix=""):
                yield prefix, self
                for name, part in vars(self).items():
                    yield from part.named_modules(f"{prefix}.{name}" if prefix else name)
            def __call__(self, x):
                for hook in before:
                    hook(self, x)
                try:
                    return self.forward(x)
                finally:
                    for hook in behind:
                        hook(self, x, None)
    """,
    "optim/__init__.py": "from torch.optim.optimizer import SGD\ndel optimizer\n",
    "optim/optimizer.py": """
        from torch.nn.modules.module import Handle
        before, behind = [], []
        def register_optimizer_step_pre_hook(hook):
            return Handle(before, hook)
        def register_optimizer_step_post_hook(hook):
            return Handle(behind, hook)
        class SGD:
            def step(self):
                for hook in [*before, *behind]:
                    hook(self, (), {})
    """,
}
"""The parts of torch that are used, with the names and the order of calls of torch 2.9."""


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """Put the stand-in where it can be imported; nothing of it is left afterwards."""
    for name, text in TORCH.items():
        (tmp_path / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        del sys.modules[name]


def test_a_module_is_told_when_it_has_run_and_looks_as_ever(tmp_path, monkeypatch):
    # GIVEN modules that are watched, one of them in a package, and one that is not there
    (tmp_path / "watched_one.py").write_text("value = 1\nspec = __spec__.loader\n")
    (tmp_path / "watched_two").mkdir()
    (tmp_path / "watched_two" / "__init__.py").write_text("import watched_two.inner\nvalue = 2\n")
    (tmp_path / "watched_two" / "inner.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = []
    names = ("watched_one", "watched_two", "watched_two.inner", "watched_none", "json")
    watch = ImportWatch(names, lambda name: told.append((name, getattr(sys.modules[name], "value", None))))
    # WHEN they are imported
    watch.start()
    try:
        one = importlib.import_module("watched_one")
        importlib.import_module("watched_two")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("watched_none")
        importlib.reload(one)
    finally:
        watch.stop()
    # THEN each was told once, complete; what was there at once; and their loaders are their own
    assert told == [("json", None), ("watched_one", 1), ("watched_two.inner", 3), ("watched_two", 2)]
    assert type(one.__spec__.loader) is type(one.__loader__) is type(one.spec) is type(importlib.util.find_spec("wave").loader)
    assert watch not in sys.meta_path


class Domain:
    """Keeps what an NVTX domain is told."""

    def __init__(self):
        self.told = []

    def get_event_attributes(self, message):
        return message

    def push_range(self, attributes):
        self.told.append(attributes)

    def pop_range(self):
        self.told.append("end")


def test_ranges_of_torch_begin_with_its_first_use_of_the_gpu_and_nest(torch):
    # GIVEN hooks in torch, and a model in which a part fails
    domain, used = Domain(), []
    hooks = TorchHooks(has_ranges=True, on_step=None, open_domain=lambda: domain)
    module, optimizer = importlib.import_module("torch.nn.modules.module"), importlib.import_module("torch.optim.optimizer")
    hooks.install(lambda: used.append(True))

    class Layer(module.Module):
        def forward(self, x):
            return 1 / x

    class Model(module.Module):
        def __init__(self):
            self.first, self.second = Layer(), Layer()

        def forward(self, x):
            return self.second(self.first(x))

    model = Model()
    # WHEN it runs before torch uses the GPU, and behind that
    model(1)
    optimizer.SGD().step()
    assert (domain.told, used) == ([], [])
    sys.modules["torch.cuda"].use()
    model(1)
    with pytest.raises(ZeroDivisionError):
        model(0)
    optimizer.SGD().step()
    # THEN ranges nest, also where it fails
    whole = ["Model", "first (Layer)", "end", "second (Layer)", "end", "end"]
    assert used == [True]
    assert domain.told == [*whole, "Model", "first (Layer)", "end", "end", "SGD.step", "end"]
    hooks.remove()
    assert [module.before, module.behind, optimizer.before, optimizer.behind] == [[], [], [], []]


@pytest.mark.parametrize(("steps", "found"), [("3:5", ["step 3", "step 4"]), ("0:1", ["step 0"])])
def test_steps_of_an_optimizer_open_and_close_the_window(torch, steps, found):
    program = """
    import torch
    from gpustreamlab.workloads import spin
    optimizer = torch.optim.SGD()
    lab.stream("a")
    for step in range(10):
        with lab.on("a", f"step {step}"):
            spin(lab, 1_000)
        lab.synchronize()
        optimizer.step()
    """
    (torch / "program.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpustreamlab",
            "run",
            "--backend",
            "sim",
            "--steps",
            steps,
            "-o",
            "run.parquet",
            "program.py",
        ],
        cwd=torch,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trace = gsl.load_trace(torch / "run.parquet")
    kernels = trace.parent[trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)]
    assert [trace.names[trace.name[row]] for row in kernels.tolist()] == found


def test_a_session_that_cannot_start_is_told_and_the_program_goes_on(torch, tmp_path, monkeypatch):
    # GIVEN a machine whose GPU fails when it is used
    def refuse(*_, **__):
        raise RuntimeError("no such luck")

    monkeypatch.setattr("gpustreamlab.run._recording.Session", refuse)
    said, warned = [], []
    recording = ProgramRecording(Wanted(title="program", stem=tmp_path / "program"), said.append, warned.append)
    recording.start()
    # WHEN torch uses it, twice
    importlib.import_module("torch")
    sys.modules["torch.cuda"].use()
    sys.modules["torch.cuda"].use()
    # THEN that is told, once, and nothing is raised
    assert recording.finish() == []
    assert warned == recording.problems == ["Nothing is recorded. no such luck"]
    assert said == []


def test_whether_there_is_a_gpu_is_asked_in_another_process(monkeypatch):
    answered = []
    monkeypatch.setattr("gpustreamlab.run._preflight.why_unavailable", lambda: answered.append(1) or ("none", "No GPU: ü."))
    assert why_no_gpu() == "No GPU: ü."
    assert answered == []
    monkeypatch.setattr("gpustreamlab.run._preflight.why_unavailable", lambda: None)
    assert why_no_gpu() == ""


def test_a_session_of_the_program_and_the_rest_become_one_trace(tmp_path, monkeypatch):
    # GIVEN a card whose sessions are all told of work in streams that are of none of them, by clocks that differ a little
    sources = [FakeActivitySource(error_ns=500), FakeActivitySource(error_ns=500)]
    given = iter(sources)

    def open_session(_name, *, device, **options):
        return Session(FakeSourceBackend(next(given)), **options)

    def merge_at_one_time(traces, **options):  # a simulated trace does not tell when its time begins, and one of a card does
        return merge(traces, ahead_ns=[0] * len(traces), **options)

    monkeypatch.setattr("gpustreamlab.run._recording.Session", open_session)
    monkeypatch.setattr("gpustreamlab.run._recording.merge", merge_at_one_time)
    recording = ProgramRecording(Wanted(title="program", stem=tmp_path / "program", is_at_once=True), str, str)
    recording.start()
    # WHEN the program opens one of its own, works in that and in another stream, and in that inside a range
    with open_session(None, device=0) as lab, lab.on(lab.stream("mine"), "step"):
        zeros = [session.trace.metadata.epoch_unix_ns for session in (*recording._sessions[:1], lab)]
        now_ns = sources[1].host_time_ns() + zeros[1]
        for source, zero, later_ns in zip(sources, zeros, (0, 300), strict=True):
            for place, count in ((1, 1), (2, 3)):  # a launch, and one of a graph of three
                at_ns = now_ns - zero + 20_000 * place
                source.push_call(at_ns, at_ns + 900, correlation=place)
                for node in range(count):
                    start_ns = at_ns + 1_000 + 3_000 * node + later_ns
                    source.push_work(start_ns, start_ns + 3_000, stream=14, name="outside", correlation=place)
        spin(lab, 1_000_000)
        lab.synchronize()
    merged = recording.finish()
    # THEN it is one trace, with that range, and each kernel and each call once
    assert recording.problems == []
    assert len(merged) == 1
    counts = {kind: int((merged[0].kind == SPAN_KINDS.index(kind)).sum()) for kind in ("kernel", "host", "range")}
    assert counts == {"kernel": 4, "host": 2, "range": 1}
    outside = merged[0].parent[merged[0].kind == SPAN_KINDS.index("kernel")]
    assert [merged[0].names[merged[0].name[row]] for row in outside.tolist()] == ["step"] * 4


def test_why_kernels_of_a_child_are_missing_is_told(tmp_path):
    recording = ProgramRecording(Wanted(title="program", stem=tmp_path / "program", backend="sim"), str, str)
    child = gsl.Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"])
    refused = replace(child, metadata=replace(child.metadata, capture_note="CUPTI was taken."))
    assert recording.finish([child, refused, refused]) == [child, refused, refused]
    assert recording.problems == ["Of a child: CUPTI was taken."]
