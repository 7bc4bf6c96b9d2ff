"""A block of any library is recorded as it is: `gsl.record`, `lab.record` and `%%gpurecord`."""

from __future__ import annotations

import numpy as np
import pytest
from IPython.utils.capture import capture_output

import gpustreamlab as gsl
from gpustreamlab.errors import SessionClosedError, SessionError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.streams.life import open_sessions
from gpustreamlab.typing import CaptureTier, SpanKind
from tests.helpers.shells import one_shell

OPTIONS = {"capture": "ranges"}


def kernels_of(trace):
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    return [(trace.names[trace.name[row]], trace.lanes[trace.lane[row]].name) for row in rows.tolist()]


def test_a_block_is_recorded_without_a_session_and_leaves_none():
    with gsl.record("sim", title="a block") as run:
        run.session.xp.ones(1000) + 1
    assert kernels_of(run.trace) == [("ones", "default stream"), ("add", "default stream")]
    calls = {run.trace.names[code] for code in run.trace.name[run.trace.kind == SPAN_KINDS.index(SpanKind.HOST)]}
    assert "cudaLaunchKernel" in calls
    assert not any("Synchronize" in call for call in calls), "the wait behind the block is not the program's"
    assert run.trace.metadata.title == "a block"
    assert open_sessions() == []
    assert repr(run).startswith("<Recorded: a block: timeline of ")
    assert "image/svg+xml" in run._repr_mimebundle_()
    assert run.explain().metadata is run.trace.metadata


def test_the_open_session_records_where_there_is_one(lab):
    with lab.on(lab.stream("copy"), "before"):
        lab.xp.zeros(4)
    with gsl.record() as run:
        assert run.session is lab
        with lab.on("copy", "inside"):
            lab.xp.zeros(4)
        lab.xp.ones(4)
    assert [run.trace.names[code] for code in run.trace.name if run.trace.names[code] in {"before", "inside"}] == ["inside"]
    assert kernels_of(run.trace) == [("ones", "default stream")]
    assert lab.recording.tier is CaptureTier.RANGES, "it goes back to what was captured before"
    lab.xp.ones(4)
    assert kernels_of(run.trace) == [("ones", "default stream")]


def test_no_stream_is_selected(lab):
    with lab.record():
        assert lab.current is None
    with lab.select("a" if "a" in lab.streams else lab.stream("a")), lab.record():
        assert lab.current is lab.streams["a"], "what is selected stays so"


def test_a_block_that_fails_fails_and_is_recorded(lab):
    with pytest.raises(ZeroDivisionError), lab.record() as run:
        lab.xp.ones(4)
        1 / 0  # noqa: B018
    assert kernels_of(run.trace) == [("ones", "default stream")]


def test_wrong_order_is_told(lab):
    run = lab.record()
    with pytest.raises(SessionError, match="once its with block has ended"):
        run.trace  # noqa: B018
    with pytest.raises(SessionError, match="once its with block has begun"):
        run.session  # noqa: B018
    assert repr(run) == "<Recorded: a block that has not ended>"
    with run:
        pass
    with pytest.raises(SessionError, match="Make another"), run:
        pass
    lab.close()
    with pytest.raises(SessionClosedError, match="record a block"):
        lab.record()


@pytest.fixture
def shell():
    with one_shell() as made:
        made.run_cell("%load_ext gpustreamlab")
        yield made
        made.run_line_magic("unload_ext", "gpustreamlab")
        for session in open_sessions():
            session.close()


def run_cell(shell, cell):
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    return result, captured


@pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")
class TestMagic:
    def test_a_cell_is_shown_with_its_value(self, shell, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run_cell(shell, "%gpulab start --backend sim --capture ranges")
        result, captured = run_cell(shell, "%%gpurecord --explain --save cell.svg\nx = lab.xp.ones(4) + 1\nfloat(x.sum())")
        assert result.success
        assert result.result == 8.0
        shown = captured.stdout + "\n".join(output.data.get("text/plain", "") for output in captured.outputs)
        assert "timeline of " in shown.lower()  # a terminal draws it with signs
        assert "Why:" in shown
        assert "Timeline saved to cell.svg" in captured.stdout
        assert shell.user_ns["lab"].recording.tier is CaptureTier.RANGES

    def test_without_a_session_one_is_made_and_used_again(self, shell, monkeypatch):
        monkeypatch.setattr("gpustreamlab.backends.cuda._probe.why_unavailable", lambda: ("none", "No GPU."))
        for _ in range(2):
            result, captured = run_cell(shell, "%%gpurecord\n6 * 7")
            assert result.result == 42
            assert "timeline of 0 spans" in captured.stdout
        assert len(open_sessions()) == 1
        assert "lab" not in shell.user_ns

    def test_a_cell_that_fails_fails_and_one_that_awaits_waits(self, shell):
        run_cell(shell, "%gpulab start --backend sim --capture ranges")
        result, captured = run_cell(shell, "%%gpurecord\nlab.xp.ones(4)\n1 / 0")
        assert isinstance(result.error_in_exec, ZeroDivisionError)
        assert "Timeline of " in captured.stdout
        result, captured = run_cell(shell, "%%gpurecord\nlab.xp.ones(4)\nraise KeyboardInterrupt")
        assert isinstance(result.error_in_exec, KeyboardInterrupt)
        assert "Timeline of " in captured.stdout
        result, _ = run_cell(shell, "%%gpurecord\nimport asyncio\nawait asyncio.sleep(0, 5)")
        assert result.result == 5
        result, captured = run_cell(shell, "%%gpurecord --nothing\n1")
        assert "UsageError" in captured.stdout + captured.stderr
