"""`%%gpuprogram` in a real shell."""

from __future__ import annotations

import html
import re

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.utils.capture import capture_output

from gpustreamlab import Session, Timeline
from gpustreamlab.draw import why_tables
from tests.helpers.shells import one_shell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")

TWO = "y = x @ x\nz = x + 1\nw = z * 2\n"


@pytest.fixture
def shell():
    with one_shell() as made:
        made.run_cell("%load_ext gpustreamlab")
        run(made, "%gpulab start --backend sim\nx = lab.xp.ones((256, 256))")
        yield made
        for value in list(made.user_ns.values()):
            if isinstance(value, Session):
                value.close()
        made.run_line_magic("unload_ext", "gpustreamlab")


def run(shell, cell):
    """Run a cell as a notebook does; return IPython's result, and what was printed and shown."""
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    shown = "".join(output.data["text/plain"] + "\n" for output in captured.outputs)
    return result, re.sub(r"\x1b\[[0-9;]*m", "", captured.stdout + captured.stderr) + shown


def spans(lab):
    lab.synchronize()
    return [lab.trace.names[code] for code in lab.trace.name]


def test_it_shows_the_plan_runs_it_and_has_the_value_of_the_last_line(shell):
    result, shown = run(shell, f"%%gpuprogram\n{TWO}float(y.sum() + w.sum())")
    assert re.search(r"<Plan: 4 statements on [12] stream", shown)
    assert result.result == 256**3 + 4 * 256**2
    assert shell.user_ns["w"].shape == (256, 256)
    assert "result" not in shell.user_ns
    assert shell.user_ns["lab"].current is None


def test_a_variable_called_result_stays_the_users(shell):
    run(shell, "result = 5")
    run(shell, "%%gpuprogram\n(x + 1).sum()")
    assert shell.user_ns["result"] == 5
    value, _ = run(shell, "%%gpuprogram\nresult = x + 1\nfloat(result.sum())")
    assert (value.result, shell.user_ns["result"].shape) == (2 * 256**2, (256, 256))
    assert "result_2" not in shell.user_ns


def planned(shell, cell):
    """Return what is shown of a cell's plan, once it has run."""
    line, _, body = cell.partition("\n")
    run(shell, f"%%gpuprogram{line}\n{body}")
    return run(shell, f"%%gpuprogram --plan{line}\n{body}")


def test_nothing_runs_with_plan(shell):
    result, shown = run(shell, f"%%gpuprogram --plan --on copy,compute\n{TWO}")
    assert "not run yet" in shown
    assert "y" not in shell.user_ns
    run(shell, f"%%gpuprogram --on copy,compute\n{TWO}")
    del shell.user_ns["y"]
    result, shown = run(shell, f"%%gpuprogram --plan --on copy,compute\n{TWO}")
    page = result.result._repr_html_()
    assert page.index('class="gsl-still"') < page.index("Statements, as planned") < page.index("The Python that runs")
    assert "Plan:" in shown
    assert "with lab.on('copy'" in shown
    assert "y" not in shell.user_ns
    assert {"copy", "compute"} <= set(shell.user_ns["lab"].streams)


def test_a_plan_is_a_trace_that_says_it_is_predicted(shell):
    plan = planned(shell, "\na = x @ x\nb = x @ x + 1\nc = a + b")[0].result
    trace = plan.trace
    assert [trace.names[code] for code in trace.name] == ["2: a = x @ x", "3: b = x @ x + 1", "4: c = a + b"]
    assert trace.lane.tolist() == [0, 1, trace.lane[2]]
    assert [lane.name for lane in trace.lanes] == list(plan.streams)
    assert (trace.start_ns.tolist(), trace.duration_ns.tolist()) == (
        [one.start_ns for one in plan.statements],
        [one.duration_ns for one in plan.statements],
    )
    source, target = trace.edges.source.tolist(), trace.edges.target.tolist()
    assert [(place, 2) for place in plan.statements[2].waits_for] == list(zip(source, target, strict=True))
    assert len(source) == 1
    line = 2 + source[0]
    crosses = {2: "a", 3: "b"}[line]
    assert f"waits for line {line} ({crosses})" in trace.details[trace.extra["detail"][2]].full_name
    assert f"line {line} ({crosses})" in str(plan)
    assert trace.metadata.is_predicted
    shown = str(Timeline(trace))
    assert "(PREDICTED)" in shown
    assert "modelled, not" in shown
    why = why_tables(trace, 0)
    assert (why["explained"], why["marks"]) == (False, []), "what held work up is not in a plan"
    assert "Run it" in why["line"]


def test_a_plan_that_has_not_run_is_an_empty_trace(shell):
    lab = shell.user_ns["lab"]
    plan = lab.program("y = x @ x", {"x": shell.user_ns["x"]}).plan(1)
    assert len(plan.trace) == 0
    assert "gsl-still" not in plan._repr_html_()


def test_its_picture_calls_statements_by_the_lines_of_tracebacks_and_follows_the_theme(shell):
    plan = planned(shell, f"\n\n{TWO}")[0].result
    for page in plan._repr_html_(), plan.overview():
        assert re.search(r"(The length is set by lines? 3|The host sets the length.* line \d)", page)
        assert "4: z = x + 1" in page
        assert ">PREDICTED</text>" not in page  # it would be left where frames are taken out
        assert ">PREDICTED</text>" in html.unescape(page)
        assert 'fill="var(--gsl-1b1f24)"' in html.unescape(page)
        assert "<script" not in page
    hostile = planned(shell, "\ny = x + len('<script>alert(1)</script>')")[0].result
    assert "<script" not in hostile._repr_html_()


def test_a_plan_that_waits_for_the_host_says_so(shell):
    run(shell, "small = lab.xp.ones((8, 8))")
    result, _ = planned(shell, "\n" + "\n".join(f"v{number} = small + {number}" for number in range(24)))
    page = result.result._repr_html_()
    assert "The host sets the length" in page
    assert "The length is set by" not in page


def test_one_is_no_plural(shell):
    _, shown = run(shell, "%%gpuprogram --check\ny = x @ x")
    assert "1 statement on one stream" in shown
    lab = shell.user_ns["lab"]
    program = lab.program("y = 1", {"lab": lab})
    assert repr(lab.program("y = x", {"x": shell.user_ns["x"]})) == "<Program: 1 statement>"
    plan = program.plan()
    plan.run()
    assert "1 variable is equal to that of one stream" in str(plan.check())


def test_what_it_prints_is_printed_once(shell):
    for _ in range(2):
        _, shown = run(shell, "%%gpuprogram\nprint('printed')\ny = x + 1")
        assert shown.count("printed\n") == 1


def test_other_magics_run_in_it_on_the_notebooks_variables(shell):
    for _ in range(3):
        result, shown = run(shell, "%%gpuprogram\na = x @ x\n%time b = a + 1\nc = b * 2")
        assert result.success, shown
        assert float(shell.user_ns["c"].get()[0, 0]) == 2 * 257
    assert "ordered before and after everything: it uses" in str(planned(shell, "\na = x @ x\n%time b = a + 1")[1])


def test_annotations_and_futures_are_the_cells_own(shell):
    run(shell, "from dataclasses import dataclass, fields")
    cell = "%%gpuprogram\n@dataclass\nclass A:\n    q: int = 3\nkind = fields(A)[0].type"
    for _ in range(3):
        run(shell, cell)
        assert shell.user_ns["kind"] is int
    run(shell, "%%gpuprogram\nfrom __future__ import annotations\n" + cell.partition("\n")[2])
    assert shell.user_ns["kind"] == "int"


def test_what_ran_before_an_error_stays(shell):
    result, _ = run(shell, "%%gpuprogram\na = x @ x\nraise ValueError('z')\nb = 1")
    assert isinstance(result.error_in_exec, ValueError)
    assert float(shell.user_ns["a"].get()[0, 0]) == 256
    assert "b" not in shell.user_ns


def test_a_check_is_shown_and_the_cell_runs(shell):
    _, shown = run(shell, f"%%gpuprogram --check\n{TWO}")
    assert "bit for bit" in shown
    assert "y" in shell.user_ns


def test_runs_of_a_check_and_of_a_replay_are_not_in_the_trace(shell):
    run(shell, f"%%gpuprogram\n{TWO}")
    lab = shell.user_ns["lab"]
    before = spans(lab)
    checkpoint = lab.recording.checkpoint()
    _, shown = run(shell, f"%%gpuprogram --check --replay 2\n{TWO}")
    assert "of one stream, bit for bit" in shown
    assert "replayed" in shown
    assert spans(lab).count("matmul") == before.count("matmul") + 1 == 2
    assert "replay" not in spans(lab)
    ran = lab.recording.since(checkpoint)
    assert [ran.names[code] for code in ran.name].count("matmul") == 1


def test_a_failed_check_runs_nothing(shell, monkeypatch):
    monkeypatch.setattr("gpustreamlab.programs.Check.__len__", lambda check: 0)
    run(shell, f"%%gpuprogram\n{TWO}")
    del shell.user_ns["y"]
    result, shown = run(shell, f"%%gpuprogram --check\n{TWO}")
    assert not result.success
    assert "the cell was not run as planned" in shown
    assert "y" not in shell.user_ns


def test_it_is_measured(shell):
    _, shown = run(shell, f"%%gpuprogram --replay 2\n{TWO}")
    assert "medians of 2 runs" in " ".join(shown.split())


def test_a_cell_that_runs_again_has_its_plan_until_its_inputs_change(shell):
    _, shown = run(shell, f"%%gpuprogram\n{TWO}")
    in_order = "It ran in order on one stream"
    assert shown.count("<Plan") == 1
    assert f"{in_order} (its first run); the next run of the cell is as planned here." in shown
    _, shown = run(shell, f"%%gpuprogram\n{TWO}")
    assert in_order not in shown
    run(shell, "x = lab.xp.ones((128, 128))")
    _, shown = run(shell, f"%%gpuprogram\n{TWO}")
    assert f"{in_order} (another type, shape or plain value than before: x)" in shown
    assert shell.user_ns["y"].shape == (128, 128)


def test_tracebacks_have_the_cells_own_lines_also_in_a_later_run(shell):
    code = "%%gpuprogram\ny = x + 1\nz = 1 / int(y.sum() * n)"
    run(shell, "n = 0")
    result, shown = run(shell, code)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert f"Cell In[{result.execution_count}], line 3" in shown
    assert "_record.py" not in shown
    run(shell, "flag = [1]")
    code = "%%gpuprogram\ny = x + 1\nz = 1 / flag[0]"
    assert run(shell, code)[0].success
    run(shell, "flag[0] = 0")
    result, shown = run(shell, code)
    assert f"Cell In[{result.execution_count}], line 3" in shown
    assert shell.user_ns["lab"].current is None


def test_a_later_run_of_the_same_plan_names_the_number_it_has_now(shell):
    run(shell, "hidden = [False]\ndef f():\n    if hidden[0]:\n        raise ValueError('now')")
    code = "%%gpuprogram\ny = x + 1\nf()"
    assert run(shell, code)[0].success
    shell.user_ns["hidden"].__setitem__(0, 1)
    result, shown = run(shell, code)
    assert isinstance(result.error_in_exec, ValueError)
    assert f"Cell In[{result.execution_count}], line 3" in shown


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%%gpuprogram\nimport asyncio\nawait asyncio.sleep(0)", "Line 3 of .* awaits; .* Await in a cell of its own"),
        ("%%gpuprogram\nfrom math import *", r"imports \*"),
        ("%%gpuprogram\n# nothing", "has no statements"),
        ("%%gpuprogram --streams 2 --on a\ny = x", "exclude each other"),
        ("%%gpuprogram --streams 99\ny = x", "a plan uses 1 to 32 streams"),
        ("%%gpuprogram --stream 2\ny = x", "--streams"),
        ("%%gpuprogram\nyield 1", "is no generator"),
        ("%%gpuprogram\ny = x + 1 #: nosuch", "nosuch"),
    ],
)
def test_misuse_is_one_line(shell, cell, told):
    result, shown = run(shell, cell)
    assert not result.success
    assert re.search(told, " ".join(shown.split()))
    assert "UsageError" in shown
    assert "Traceback" not in shown


def test_a_syntax_error_has_the_cells_line(shell):
    result, shown = run(shell, "%%gpuprogram\ny = x\nz = = 2")
    assert not result.success
    assert "SyntaxError" in shown
    assert f"Cell In[{result.execution_count}], line 3" in shown


def test_an_interrupt_leaves_no_selection(shell):
    result, shown = run(shell, "%%gpuprogram\nimport signal\ny = x + 1\nsignal.raise_signal(signal.SIGINT)")
    assert "KeyboardInterrupt" in shown
    assert (result.success, shell.user_ns["lab"].current) == (False, None)


def test_a_value_is_silenced_by_a_semicolon_and_a_constant_is_shown(shell):
    assert run(shell, "%%gpuprogram\ny = x + 1\n7 + 1;")[0].result is None
    assert run(shell, "%%gpuprogram\ny = x + 1\n7")[0].result == 7


def test_options_streams_and_help_are_there(shell):
    shell.user_ns["lab"].stream("copy")
    with provisionalcompleter():
        found = {one.text.strip() for one in shell.Completer.completions("%%gpuprogram --", 15)}
        assert {"--streams", "--on", "--plan", "--check", "--replay"} <= found
        found = {one.text.strip() for one in shell.Completer.completions("%%gpuprogram --on ", 18)}
        assert "copy" in found
    assert "how many streams" in run(shell, "%%gpuprogram -h")[1]


IN_TURNS = """for _ in range(4):
    with lab.on(a):
        y = x @ x
    lab.synchronize()
    with lab.on(b):
        z = x @ x
    lab.synchronize()
"""


def test_improve_shows_what_gains_and_runs_nothing_on_the_users_variables(shell):
    run(shell, "a, b = lab.stream('a'), lab.stream('b')")
    lab = shell.user_ns["lab"]
    before, names = (spans(lab), set(lab.streams)), set(shell.user_ns)
    result, shown = run(shell, f"%%gpuprogram --improve 300\n{IN_TURNS}")
    found = result.result
    assert found.speedup > 1.5
    assert "(predicted: " in shown
    assert "-    lab.synchronize()" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert found.apply() == found.source
    assert shell.rl_next_input == found.source, "the next cell"
    assert not {"y", "z"} & shell.user_ns.keys()
    assert all(name.startswith("_") for name in shell.user_ns.keys() - names)
    assert (spans(lab), set(lab.streams)) == (before[0] + ["cudaDeviceSynchronize"], before[1]), "spans() waits, too"


@pytest.mark.parametrize("options", ["--plan", "--check", "--on copy", "--streams 2", "--replay 3"])
def test_improve_takes_no_option_beside_it(shell, options):
    _, shown = run(shell, f"%%gpuprogram --improve {options}\ny = x @ x")
    assert "--improve takes no other option beside it" in shown
    assert "y" not in shell.user_ns


def test_what_improve_cannot_run_again_is_refused_in_one_line(shell):
    _, shown = run(shell, "%%gpuprogram --improve\nopen('f')")
    assert "UsageError: lab.improve runs a program many times" in shown
    assert "it calls open" in shown
    assert "Traceback" not in shown
