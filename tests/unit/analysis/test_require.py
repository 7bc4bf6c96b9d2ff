"""What functions of traces say to what is no trace."""

from __future__ import annotations

import pytest

from gpustreamlab.analysis import compare_traces, concurrency, host_waits, overlap, strays, utilization
from gpustreamlab.errors import OptionError
from tests.helpers.traces import pipeline_trace


class Session:
    """Stands for a session, whose trace takes time to build."""

    @property
    def trace(self):
        raise AssertionError("nobody asked for it")


@pytest.mark.parametrize("function", [overlap, concurrency, utilization, strays, host_waits])
def test_a_session_is_told_to_pass_its_trace(function):
    name = function.__name__
    with pytest.raises(OptionError) as told:
        function(Session())
    assert str(told.value) == (f"{name}() got a Session; it takes a Trace. Pass the trace of the Session: {name}(lab.trace).")


def test_anything_else_is_told_where_traces_come_from():
    with pytest.raises(OptionError, match=r"strays\(\) got a str; .* Pass lab\.trace, or gsl\.load_trace\('run\.parquet'\)"):
        strays("run.parquet")
    with pytest.raises(OptionError, match="compare_traces"):
        compare_traces(pipeline_trace(), None)
