"""What all answers share: how they show themselves, what they take, what they keep."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import (
    compare_traces,
    concurrency,
    critical_path,
    expect_faster,
    expect_no_host_waits,
    expect_no_strays,
    expect_none,
    expect_overlap,
    explain,
    host_waits,
    idle,
    overlap,
    stragglers,
    strays,
    totals,
    utilization,
)
from gpustreamlab.errors import OptionError, StreamNotFoundError
from gpustreamlab.model import Device
from tests.helpers.hazard_cases import CASES
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_kernel_trace,
    make_trace,
    many_partitions_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)

QUESTIONS = (overlap, utilization, totals, strays, host_waits, idle, critical_path, stragglers)
HAZARDS = {}  # what was found in a racy program, in a clean one, and in one that nobody watched
CLEAN = next(name for name, case in CASES.items() if not case.found)
for name, mode in (("read_without_wait", "report"), (CLEAN, "report"), ("diamond", "off")):
    with Session("sim", hazards=mode) as lab:
        CASES[name].run(lab)
        HAZARDS[f"hazards of {name}"] = lab.memory.hazards()


def hazards_of(found, trace):
    """Return hazards as an answer of any trace: where they were found is told by the backend, not by spans."""
    return replace(found, trace=trace)


def overlaps(trace):
    try:
        return expect_overlap("prefill", "decode", 0.9)(trace)
    except StreamNotFoundError:
        return expect_none(strays(trace))


ANSWERS = {question.__name__: question for question in QUESTIONS} | {
    **{f"totals by {by}": partial(totals, by=by) for by in ("stream", "partition")},
    **{name: partial(hazards_of, found) for name, found in HAZARDS.items()},
    "expected to be faster": expect_faster(1, 2),
    "expected without strays": expect_no_strays,
    "expected without host waits": expect_no_host_waits(None),
    "expected to overlap": overlaps,
}
TAGS = {"div", "p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "span"}
HOST = "host: MainThread"


def evil_kernels():
    """Thirty strays of hostile names, and a call that waits for the first."""
    spans = [("a", EVIL_NAME, 0, 10_000, {"kind": "range"})]
    spans += [("b", f"{EVIL_NAME} {k}", 10 * k, 10 * k + 5, {"parent": 0}) for k in range(30)]
    return make_kernel_trace([*spans, (HOST, f"cudaStreamSynchronize {EVIL_NAME}", 50, 110, {"kind": "host"})])


TRACES = {
    "three": pipeline_trace(), "kernels": kernel_trace(), "partitions": partition_trace(), "many": random_trace(100, 20),
    "hostile": evil_trace(), "hostile kernels": evil_kernels(), "hostile partitions": many_partitions_trace(9, 3, 50),
    "empty": empty_trace(), "one span": make_trace([("a", "x", 0, 10)]), "no length": make_trace([("a", "x", 5, 5)]),
    "cut": kernel_trace().between(1_000_000, 5_000_000), "some rows": kernel_trace()[::3],
    "hardware": pipeline_trace(device=Device(name="NVIDIA H200", sm_count=132)),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_shows_itself_as_line_text_page_and_frame(monkeypatch, ask, trace):
    monkeypatch.setenv("COLUMNS", "100")
    answer = ask(trace)
    line, text, html = repr(answer), str(answer), answer._repr_html_()
    # The line is cheap, and at the head of the text, which fits its columns and has no control signs.
    assert line.startswith(f"<{type(answer).__name__}: ")
    assert line[1:-1].split(": ", 1)[1] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    # The page is well formed, no name is markup, and it has the notes of the text.
    assert {element.tag for element in ET.fromstring(html.replace("<wbr>", "")).iter()} <= TAGS
    assert EVIL_NAME not in html
    assert ("Simulated: NVIDIA H200" in text) is ("Simulated: NVIDIA H200" in html) is trace.metadata.simulated
    # Its columns cannot be changed, and the frame has a row for each thing.
    assert answer.trace is trace
    assert not any(getattr(answer, column).flags.writeable for column in answer._columns)
    assert len(answer.to_pandas()) == (len(answer.lanes) ** 2 if ask is overlap else len(answer))
    assert bool(answer) is (len(answer) > 0)


@pytest.mark.parametrize("ask", [overlap, utilization, partial(totals, by="stream"), idle], ids=["o", "u", "t", "i"])
@pytest.mark.parametrize("trace", [kernel_trace(), many_partitions_trace(9, 3, 50)], ids=["kernels", "partitions"])
def test_no_answer_depends_on_the_order_of_the_spans(ask, trace):
    order = np.random.default_rng(1).permutation(len(trace))
    one, other = ask(trace).to_pandas(), ask(trace[order]).to_pandas()
    assert one.drop(columns="row", errors="ignore").equals(other.drop(columns="row", errors="ignore"))


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("trace", [kernel_trace(), evil_kernels(), pipeline_trace()], ids=["kernels", "hostile", "ranges"])
def test_of_a_part_the_same_is_asked(ask, trace):
    middle_ns = int(trace.start_ns.min() + trace.end_ns.max()) // 2
    for part in (trace.between(int(trace.start_ns.min()), middle_ns), trace[:0], trace[::2]):
        answer = ask(part)
        assert answer.metadata.part_of_spans == len(trace)
        assert str(answer)
        assert answer._repr_html_()
        assert len(answer.to_pandas()) >= 0


@pytest.mark.parametrize(("answer", "more"), [(strays(evil_kernels()), 10), (overlap(random_trace(500, 30)), 405)])
def test_a_list_that_is_cut_says_so(answer, more):
    for form in (str(answer), answer._repr_html_()):
        assert f"… {more:,} more" in form
        assert "see .to_pandas()" in form


def test_the_pretty_printer_gets_the_text():
    class Printer:
        def text(self, text):
            self.got = text

    printer, answer = Printer(), overlap(pipeline_trace())
    answer._repr_pretty_(printer, False)
    assert printer.got == str(answer)


class Session:
    """Stands for a session, whose trace takes time to build."""

    @property
    def trace(self):
        raise AssertionError("nobody asked for it")


@pytest.mark.parametrize("function", [*QUESTIONS, concurrency, explain])
def test_what_is_no_trace_is_told_where_traces_come_from(function):
    name = function.__name__
    with pytest.raises(OptionError) as told:
        function(Session())
    assert str(told.value) == f"{name}() got a Session; it takes a Trace. Pass the trace of the Session: {name}(lab.trace)."
    with pytest.raises(OptionError, match=r"got a str; .* Pass lab\.trace, or gsl\.load_trace\('run\.parquet'\)"):
        function("run.parquet")
    with pytest.raises(OptionError, match="compare_traces"):
        compare_traces(pipeline_trace(), None)
