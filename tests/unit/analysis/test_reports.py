"""What all results of a trace share: how they show themselves, what they take, what they keep."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from gpustreamlab.analysis import (
    compare_traces,
    concurrency,
    critical_path,
    host_waits,
    idle,
    overlap,
    stragglers,
    strays,
    utilization,
)
from gpustreamlab.errors import OptionError
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_kernel_trace,
    many_partitions_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)

RESULTS = {
    "overlap": overlap, "utilization": utilization, "strays": strays, "host_waits": host_waits, "idle": idle,
    "critical_path": critical_path, "stragglers": stragglers,
}  # fmt: skip
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
    "empty": empty_trace(),
}  # fmt: skip


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("method", RESULTS)
def test_html_is_well_formed_and_no_name_is_markup(method, trace):
    result = getattr(trace, method)()
    html = result._repr_html_()
    assert {element.tag for element in ET.fromstring(html).iter()} <= TAGS
    assert EVIL_NAME not in html
    assert str(result) == str(RESULTS[method](trace))
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert ("Simulated: NVIDIA H200" in str(result)) is trace.metadata.simulated
    assert not any(getattr(result, column).flags.writeable for column in result._columns)
    assert len(result.to_pandas()) == (len(result.lanes) ** 2 if method == "overlap" else len(result))


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("trace", [kernel_trace(), evil_kernels(), pipeline_trace()], ids=["kernels", "hostile", "ranges"])
def test_text_fits_its_columns(monkeypatch, method, trace):
    monkeypatch.setenv("COLUMNS", "100")
    text = str(RESULTS[method](trace))
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("trace", [kernel_trace(), evil_kernels(), pipeline_trace()], ids=["kernels", "hostile", "ranges"])
def test_of_a_part_the_same_is_asked(method, trace):
    middle_ns = int(trace.start_ns.min() + trace.end_ns.max()) // 2
    for part in (trace.between(int(trace.start_ns.min()), middle_ns), trace[:0], trace[::2]):
        result = getattr(part, method)()
        assert result.metadata.part_of_spans == len(trace)
        assert str(result)
        assert result._repr_html_()
        assert len(result.to_pandas()) >= 0


def test_a_list_that_is_cut_says_so():
    for form in (str(strays(evil_kernels())), strays(evil_kernels())._repr_html_()):
        assert "10 more: see .to_pandas()" in form


class Session:
    """Stands for a session, whose trace takes time to build."""

    @property
    def trace(self):
        raise AssertionError("nobody asked for it")


@pytest.mark.parametrize("function", [*RESULTS.values(), concurrency])
def test_what_is_no_trace_is_told_where_traces_come_from(function):
    name = function.__name__
    with pytest.raises(OptionError) as told:
        function(Session())
    assert str(told.value) == f"{name}() got a Session; it takes a Trace. Pass the trace of the Session: {name}(lab.trace)."
    with pytest.raises(OptionError, match=r"got a str; .* Pass lab\.trace, or gsl\.load_trace\('run\.parquet'\)"):
        function("run.parquet")
    with pytest.raises(OptionError, match="compare_traces"):
        compare_traces(pipeline_trace(), None)
