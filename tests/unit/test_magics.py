"""The magics in a real shell."""

import re
import signal
import textwrap

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.utils.capture import capture_output

import gpustreamlab
from gpustreamlab import Session
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.shells import one_shell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")


@pytest.fixture
def shell():
    with one_shell() as made:
        made.run_cell("%load_ext gpustreamlab")
        yield made
        for value in list(made.user_ns.values()):
            if isinstance(value, Session):
                value.close()
        made.run_line_magic("unload_ext", "gpustreamlab")


@pytest.fixture
def lab(shell):
    run(shell, "%gpulab start --backend sim --capture ranges")
    return shell.user_ns["lab"]


def run(shell, cell):
    """Run a cell as a notebook does; return IPython's result and what was printed."""
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    return result, captured.stdout + captured.stderr


def names(lab):
    lab.synchronize()
    return [lab.trace.names[code] for code in lab.trace.name]


def told(shell, cell):
    """Return what a cell that is typed wrongly says: one line, and it is not run."""
    result, printed = run(shell, cell)
    assert not result.success
    assert "UsageError" in printed
    assert "Traceback" not in printed
    return printed


def completed(shell, line):
    with provisionalcompleter():
        return {completion.text.strip() for completion in shell.Completer.completions(line, len(line))}


def plain(printed):
    return re.sub(r"\x1b\[[0-9;]*m", "", printed)


AWAIT = "import asyncio\nawait asyncio.sleep(0)\n"


def test_the_last_value_is_returned_and_kept_and_a_semicolon_silences_it(shell, lab):
    number = shell.execution_count
    result, _ = run(shell, "%%gpustream copy\nx = 20\nx + 1")
    assert (result.result, shell.user_ns["Out"][number], shell.user_ns["x"]) == (21, 21, 20)
    assert names(lab) == [f"In [{number}]"]
    result, printed = run(shell, "%%gpustream copy\n20 + 1;")
    assert (result.result, "21" in printed) == (None, False)


@pytest.mark.parametrize("options", ["", " --show", " --kernels"])
@pytest.mark.parametrize("line", ["x + 1", "await asyncio.sleep(0)\nx + 1"], ids=["plain", "awaiting"])
def test_a_value_is_shown_on_the_stream_of_the_cell(shell, lab, line, options):
    run(shell, "import asyncio\n_ = lab.capture('kernels')")
    result, printed = run(shell, f"%%gpustream work{options}\nx = lab.xp.ones(8)\n{line}")
    assert "array([2., 2." in printed
    lab.synchronize()
    assert {lane.name for lane in lab.trace.lanes} == {"work", "host: MainThread"}
    assert not lab.memory.hazards()
    assert result.result.tolist() == [2.0] * 8
    assert lab.current is None


def test_a_value_is_not_shown_twice_nor_where_it_is_silenced(shell, lab):
    run(shell, "class Shown:\n    count = 0\n    def __repr__(self):\n        Shown.count += 1\n        return 'shown'")
    assert run(shell, "%%gpustream copy\nShown()")[1].count("shown") == 1
    assert run(shell, "%%gpustream copy\nShown();")[1] == ""
    assert "shown" not in run(shell, "%%capture kept\n%%gpustream copy\nShown()")[1]
    assert run(shell, "kept.outputs[0].data['text/plain']")[0].result == "shown"
    assert run(shell, "value = get_ipython().run_cell_magic('gpustream', 'copy', 'Shown()')")[1] == ""
    assert run(shell, "type(value).__name__")[0].result == "Shown"
    assert shell.user_ns["Shown"].count == 2


@pytest.mark.parametrize("body", ["x = 1", "", "# only a comment", "def f():\n    return 1"])
def test_cells_without_a_value_have_none(shell, lab, body):
    result, _ = run(shell, f"%%gpustream copy\n{body}")
    assert result.success
    assert result.result is None


@pytest.mark.parametrize("options", ["", " --show", " --kernels"])
def test_a_failing_cell_fails_and_shows_its_own_line(shell, lab, options):
    result, printed = run(shell, f"%%gpustream copy --label mine{options}\nx = 1\n\ny = x / 0\nz = 2")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    printed = plain(printed)
    assert f"Cell In[{result.execution_count}], line 4" in printed
    assert "----> 4 y = x / 0" in printed
    assert "magics.py" not in printed
    assert ("mine: timeline of 1 span in 1 stream" in printed.partition("ZeroDivisionError")[0]) is (options == " --show")
    assert (lab.current, lab.recording.tier, names(lab)) == (None, "ranges", ["mine"])


def test_counters_are_counted_while_the_cell_runs_and_its_work_is_waited_for(shell, lab):
    run(shell, "%%gpustream work --counters\nx = lab.xp.ones(1 << 22) + 1")
    counters = lab.trace.counters
    is_memory = counters.name == counters.names.index("dram_active_percent")
    assert np.nanmax(counters.value[is_memory]) > 50
    run(shell, "%%gpustream work\nx + 1")
    assert len(lab.trace.counters) == len(counters)
    with lab.counters("sm"):
        assert "open in this session already" in told(shell, "%%gpustream work --counters\nx + 1")


def test_a_syntax_error_is_told_and_runs_nothing(shell, lab):
    result, printed = run(shell, "%%gpustream copy\nx = 1\ny = = 2")
    assert not result.success
    assert "SyntaxError" in printed
    assert "x" not in shell.user_ns
    assert names(lab) == []


@pytest.mark.parametrize("options", ["", " --show"])
def test_an_interrupt_restores_the_selection_and_waits_for_no_picture(shell, lab, options):
    result, printed = run(shell, f"%%gpustream copy{options}\nimport signal\nsignal.raise_signal(signal.SIGINT)\nx = 1")
    assert "KeyboardInterrupt" in printed
    assert "timeline of" not in printed
    assert (result.success, lab.current) == (False, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.no_cover  # it traces itself
def test_what_an_interrupted_cell_has_left_selected_is_put_back(shell, lab):
    code = """
    import sys
    from gpustreamlab.memory.guards import GuardedUse
    from gpustreamlab.streams.selection import Selection
    exits, before = (Selection.__exit__.__code__, GuardedUse.__exit__.__code__), sys.gettrace()
    def interrupt(frame, event, argument):
        if event == "call" and frame.f_code in exits:
            sys.settrace(before)
            raise KeyboardInterrupt
    def use():
        {}
            sys.settrace(interrupt)
    """
    for block in ("with lab.on('copy', 'x'):", "with guard.on('copy'):", "with lab.on('copy'), guard.on('copy'):"):
        run(shell, "guard = lab.memory.guard([])\nlab.stream('copy')")
        result, printed = run(shell, textwrap.dedent(code).format(block) + "use()")
        assert isinstance(result.error_in_exec, KeyboardInterrupt), printed
        assert lab.current is None, block
        result, printed = run(shell, "guard.close()")
        assert result.success, printed


def test_top_level_await(shell, lab):
    result, printed = run(shell, f"%%gpustream copy\n{AWAIT}x = lab.current.name\nx")
    assert result.result == "copy", printed
    result, printed = run(shell, "%%gpustream copy\nasync def f():\n    return 5\nawait f()")
    assert (result.result, lab.current) == (5, None), printed
    result, printed = run(shell, f"%%gpustream copy --label mine --show\n{AWAIT}1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "mine: timeline of 2 spans" in printed  # one before the await, one after it
    result, printed = run(shell, f"%%gpustream copy --label mine --show\n{AWAIT}7")
    assert (result.result, lab.current) == (7, None)
    assert "2 spans in 1 stream" in printed
    run(shell, f"%%gpustream other --kernels\n{AWAIT}b = lab.xp.zeros(8)")
    assert kernels(lab) == ["memset"]


def test_magics_and_shell_commands_inside_the_cell(shell, lab):
    result, printed = run(shell, "%%gpustream copy --priority -2\n%alias_magic t timeit\nout = !echo hello\nout[0]")
    assert result.result == "hello", printed
    assert (lab.streams["copy"].priority, lab.current) == (-2, None)


def test_after_waits_label_names_and_sync_waits(shell, lab):
    run(shell, "from gpustreamlab.workloads import spin")
    run(shell, "%%gpustream first --label produce\nspin(lab, 1_000_000)")
    run(shell, "%%gpustream second --after first --label 'use it' --sync\nspin(lab, 1_000_000)")
    assert lab.streams["second"].query()
    trace = lab.trace
    assert [trace.names[code] for code in trace.name] == ["produce", "use it"]
    assert trace.start_ns[1] >= trace.end_ns[0]


MISUSED = {
    "%%gpustream copy --prority 1\n1": "'--priority'",
    "%%gpustream copy --after cpoy\n1": "'copy'",
    "%%gpustream copy --priority 7\n1": "outside what the device takes",
    "%%gpustream copy --priority x\n1": "invalid int value",
    "%%gpustream\n1": "required: stream",
    "%%gpustream 'a b'\n1": "'a_b'",
    '%%gpustream "a\n1': "close the quotes",
    "%%gpustream copy extra\n1": "no option or argument 'extra'",
    "%%gpustream copy --label my upload\n1": "quotes",
    "%%gpustream my stream\n1": "Names of streams have no spaces",
    "%gpulab strat": "'start'",
    "%gpulab start --backend cuad": "'cuda'",
    "%gpulab use --as lba": "'lab'",
    "%gpulab use lab2": "%gpulab use --as lab2",
    "%gpulab start --as 1st": "--as takes a variable's name, not '1st'",
    "%gputimeline --save nowhere/at/all.html": "cannot be written",
    "%gputimeline --save run.htm": ".html",
    "%gpuexplain nowhere": "no stream, range or kernel 'nowhere'",
    "%gpucapture kernel": "invalid choice: 'kernel'. Did you mean 'kernels'?",
    "%gpucapture --no-host": "--no-host needs a tier",
    "%gpucapture --stacks": "--stacks needs a tier",
    "%gpucapture ranges --stacks": "stacks are sampled beside kernels only",
    "%gpucapture kernels --host": "there is no option or argument '--host'",
    "%%gpustream x --partition decoder\n1": "Did you mean 'decode'?",
    "%%gpustream x --partition\n1": "expected one argument",
    "%%gpustream x --partiton decode\n1": "Did you mean '--partition'?",
    "%%gpustream x --partition ''\n1": "no partition ''",
    "%%gpustream x --partition decode --whole-card\n1": "exclude each other",
}


@pytest.mark.parametrize(("cell", "words"), MISUSED.items(), ids=MISUSED)
def test_misuse_is_one_line_with_the_nearest_choice(shell, lab, cell, words):
    lab.partition(decode=32)
    lab.stream("copy")
    assert words in told(shell, cell)
    assert list(lab.streams) == ["copy"]
    assert names(lab) == []


@pytest.mark.parametrize(
    "magic",
    [
        "%gpulab -h",
        "%%gpustream -h\n",
        "%%gpustream copy --help\n1/0",
        "%gputimeline -h",
        "%gpuexplain -h",
        "%gpupartition -h",
        "%gpucapture -h",
    ],
)
def test_help(shell, lab, magic):
    result, printed = run(shell, magic)
    assert result.success
    assert "usage:" in printed


@pytest.mark.parametrize("cell", ["%%gpustream copy\n1", "%gpupartition a=96"])
def test_no_session_says_how_to_start_one(shell, cell):
    assert "%gpulab start" in told(shell, cell)


@pytest.mark.parametrize("end", ["close", "stop"])
def test_gpulab_starts_shows_and_closes(shell, end):
    result, _ = run(shell, "%gpulab start --backend sim --as mine")
    assert result.result is shell.user_ns["mine"] is run(shell, "%gpulab")[0].result
    assert "Closed: <Session: " in run(shell, f"%gpulab {end}")[1]
    assert shell.user_ns["mine"].state == "closed"


def test_a_session_made_in_python_is_found(shell):
    run(shell, "import gpustreamlab as gsl\nthis = gsl.Session('sim')")
    run(shell, "%%gpustream copy\n1")
    assert names(shell.user_ns["this"]) != []


def test_several_sessions_ask_for_one(shell):
    run(shell, "import gpustreamlab as gsl\none, two = (gsl.Session('sim', host=False) for _ in range(2))")
    _, printed = run(shell, "%%gpustream copy\n1")
    assert "one, two" in printed
    run(shell, "%gpulab use --as two")
    run(shell, "%%gpustream copy\n1")
    assert (len(names(shell.user_ns["one"])), len(names(shell.user_ns["two"]))) == (0, 1)


def test_the_timeline_is_shown_or_saved(shell, lab, tmp_path):
    run(shell, "%%gpustream copy\n1")
    lab.synchronize()
    result, _ = run(shell, "%gputimeline")
    assert "text/html" in result.result._repr_mimebundle_()
    _, printed = run(shell, f"%gputimeline --save '{tmp_path}/run.html'")
    assert (tmp_path / "run.html").read_text().startswith("<!DOCTYPE html>")
    assert "run.html" in printed


def test_the_timeline_is_drawn_with_signs_where_there_is_no_notebook(shell, lab, monkeypatch):
    monkeypatch.delattr("builtins._", raising=False)  # a doctest leaves one, and IPython then sets none of its own
    run(shell, "%%gpustream copy --label größer --sync\n1")
    result, printed = run(shell, "%gputimeline")
    assert result.result is shell.user_ns["_"]
    assert "1 span in 1 stream on H200 (SIMULATED)" in printed
    assert "A größer" in printed


def test_show_draws_the_ranges_of_that_cell_below_it(shell, lab):
    run(shell, "from gpustreamlab.workloads import spin")
    run(shell, "%%gpustream copy --label before --sync\nspin(lab, 1_000_000)")
    body = "with lab.range('part'):\n    spin(lab, 1_000_000)\n20 + 1"
    result, printed = run(shell, f"%%gpustream copy --label mine --show\n{body}")
    assert result.result == 21
    assert lab.streams["copy"].query()
    assert "2 spans in 1 stream" in printed
    assert printed.startswith("mine: timeline of 2 spans")
    assert "before" not in printed


def test_show_leaves_out_streams_that_did_nothing_in_that_cell(shell, lab):
    run(shell, "for name in ('idle', 'copy', 'other', 'unused'): lab.stream(name)")
    run(shell, "%%gpustream idle --sync\n1")
    number = shell.execution_count
    _, printed = run(shell, "%%gpustream other --show\nwith lab.on('copy', 'part'): pass\nlab.synchronize()")
    assert printed.startswith(f"In [{number}]: timeline of 2 spans in 2 streams")
    assert re.findall(r"^(\w+) +│", printed, re.MULTILINE) == ["copy", "other"]


def test_cells_that_recorded_are_marked_by_their_number(shell):
    first = shell.execution_count
    run(shell, "lab = __import__('gpustreamlab').Session('sim'); lab.stream('copy')\nwith lab.on('copy', 'a'): pass")
    run(shell, "%%gpustream copy\nsecret = 1")
    run(shell, "1 + 1")
    run(shell, "with lab.on('copy', 'a'): 1/0")
    for options in ({"store_history": False}, {"silent": True}):  # what tools run on the side
        shell.run_cell("with lab.on('copy', 'a'): pass", **options)
    lab = shell.user_ns["lab"]
    lab.synchronize()
    assert [marker.text for marker in lab.trace.markers] == [f"In [{first + turn}]" for turn in (0, 1, 3)]
    assert lab.trace.markers[0].kind == "cell"


def test_loading_twice_is_silent_and_marks_once_and_unloading_not_at_all(shell, lab):
    lab.stream("copy")
    assert run(shell, "%reload_ext gpustreamlab")[1] == ""
    shell.run_line_magic("load_ext", "gpustreamlab")
    assert run(shell, f"%%gpustream copy\n{AWAIT}3")[0].result == 3
    assert len(lab.trace.markers) == 1
    shell.run_line_magic("unload_ext", "gpustreamlab")
    run(shell, "with lab.on('copy', 'a'): pass")
    assert len(lab.trace.markers) == 1
    assert not [entry for entry in shell.events.callbacks["pre_run_cell"] if "CellMarks" in repr(entry)]
    shell.run_line_magic("load_ext", "gpustreamlab")


OPTIONS = {"--help", "--priority", "--partition", "--whole-card", "--device", "--on"}
OPTIONS |= {"--after", "--label", "--sync", "--kernels", "--counters", "--show"}
COMPLETED = {
    "%%gpustream co": {"copy", "compute"},
    "%%gpustream copy --pr": {"--priority"},
    "%gpulab cl": {"close"},
    "gpulab cl": {"close"},
    "%gpulab start --backend ": {"cuda", "sim"},
    "%gputimeline --s": {"--save", "--static"},
    "%gpupartition ": {"prefill=", "decode=", "--help", "--round", "--strict", "--off"},
    "%gpupartition pre": {"prefill="},
    "%gpupartition a=96 --": {"--help", "--round", "--strict", "--off"},
    "%gpupartition a=96 --round d": {"down"},
    "%%gpustream x --partition de": {"decode"},
    "%%gpustream x --partition=de": {"decode"},
    "%%gpustream x --partition ": {"decode", "prefill"},
    "%%gpustream x --part": {"--partition"},
    "%%gpustream x --sync --s": {"--show"},
    "%%gpustream ": {"copy", "compute", *OPTIONS},
    "%%gpustream x ": OPTIONS,
    "%%gpustream x --after copy,c": {"copy", "compute"},
    "%gpuexplain copy c": {"copy", "compute"},
    "%%gpuprogram --on ": {"copy", "compute"},
}


def test_names_and_options_are_completed(shell, lab):
    lab.partition(prefill=96, decode="rest")
    lab.stream("copy"), lab.stream("compute")
    assert {line: completed(shell, line) for line in COMPLETED} == COMPLETED  # and nothing of Python's
    assert "lab" in completed(shell, "la")
    run(shell, "%unload_ext gpustreamlab")
    assert "copy" not in completed(shell, "%%gpustream ")
    run(shell, "%load_ext gpustreamlab")


def test_starting_again_closes_the_session_it_replaces(shell, lab):
    run(shell, "%gpulab start --backend sim")
    assert lab.state != "open"
    run(shell, "%gpulab close")
    _, printed = run(shell, "%%gpustream copy\n1")
    assert "%gpulab start" in printed
    assert list(lab.streams) == []


def test_close_and_show_take_the_session_that_is_named(shell):
    run(shell, "%gpulab start --backend sim --as b")
    run(shell, "%gpulab start --backend sim --as c")
    result, _ = run(shell, "%gpulab show --as b")
    assert result.result is shell.user_ns["b"]
    run(shell, "%gpulab close --as b")
    assert (shell.user_ns["b"].state, shell.user_ns["c"].state) == ("closed", "open")


def test_gpupartition_shares_out_shows_and_goes_back(shell, lab):
    result, printed = run(shell, "%gpupartition prefill=96 decode=rest")
    assert result.success, printed
    assert {part.name: part.granted_sms for part in result.result} == {"prefill": 96, "decode": 36}
    assert result.result is lab.layout
    result, _ = run(shell, "%gpupartition")
    assert result.result is lab.layout
    result, _ = run(shell, "%gpupartition --off")
    assert (result.result, lab.layout) == (None, None)
    result, _ = run(shell, "%gpupartition")
    assert result.result is None


GRANTED = {
    "a=96 b=32": {"a": 100, "b": 32},
    "a=25% b=0.5": {"a": 36, "b": 72},
    "a=66 b=66 --round down": {"a": 64, "b": 60},
    "--round down a=66 b=66": {"a": 64, "b": 60},
    "a=66 --round down b=66": {"a": 64, "b": 60},
    "a=66 --round=down --strict b=rest": {"a": 64, "b": 68},
    "a=120 b=12 --round exact": {"a": 120, "b": 12},
    "'a=96' \"b=rest\"": {"a": 96, "b": 36},
    "round=96 strict=rest": {"round": 96, "strict": 36},
}


def test_gpupartition_takes_what_partition_takes(shell, lab):
    for line, granted in GRANTED.items():
        result, printed = run(shell, f"%gpupartition {line}")
        assert result.success, printed
        assert {part.name: part.granted_sms for part in lab.layout} == granted


MISUSED_SHARES = {
    "a": "'a' is not NAME=SMS",
    "a=": "'a=' is not NAME=SMS",
    "=96": "'=96' is not NAME=SMS",
    "a = 96": "is not NAME=SMS",
    "a=96 a=32": "'a' is given twice",
    "a=96,b=rest": "put a space between partitions",
    "off": "%gpupartition --off",
    "a=0": "nearest plan that works: a=8",
    "a=-8": "asks for -8 SMs",
    "a=133": "nearest plan that works: a=132",
    "a=66 b=66": "nearest plan that works: a=64, b=68",
    "a=half": "'half'",
    "a=96=1": "'96=1'",
    "a=1.5": "at most 1",
    "a,b=96": "'a_b'",
    "a=96 --round sideways": "'sideways'",
    "a=96 --round": "expected one argument",
    "a=96 --rund down": "Did you mean '--round'?",
    "a=96 --off": "takes no partitions",
    "'a=96": "close the quotes",
    "b=8": "'x'",
}


def test_misuse_of_gpupartition_is_one_line_and_changes_nothing(shell, lab):
    layout = lab.partition(kept=64, b="rest")
    lab.stream("x", partition="kept")
    for line, words in MISUSED_SHARES.items():
        printed = told(shell, f"%gpupartition {line}")
        assert words in printed
        assert "Rounding." not in printed
        assert lab.layout is layout


def test_gpupartition_warns_or_refuses_where_the_device_lacks_it(shell):
    run(shell, "import gpustreamlab as gsl\nfrom gpustreamlab.backends.sim import SimBackend")
    run(shell, "lab = gsl.Session(SimBackend('laptop'))")
    result, printed = run(shell, "import warnings\nwarnings.simplefilter('always')\n%gpupartition a=8 --strict")
    assert not result.success
    assert "strict=True" in printed
    with pytest.warns(gpustreamlab.PartitionWarning, match="plain streams") as told:
        result, printed = run(shell, "%gpupartition a=8")
    assert len(told) == 1
    assert not result.result.is_enforced


def test_a_cell_runs_in_a_partition(shell, lab):
    run(shell, "%gpupartition prefill=96 decode=rest")
    result, printed = run(shell, "%%gpustream x --partition decode\nlab.current.partition, lab.current.sm_count")
    assert result.result == ("decode", 36), printed
    result, _ = run(shell, "%%gpustream x\nlab.current.partition")
    assert result.result == "decode"
    result, _ = run(shell, "%%gpustream x --partition prefill --priority 0\nlab.current.sm_count")
    assert result.result == 96
    lab.synchronize()
    codes = lab.trace.partition
    assert [lab.trace.partitions[code].name for code in codes] == ["decode", "decode", "prefill"]


def test_the_sms_are_not_shared_out_anew_under_a_running_cell(shell, lab):
    run(shell, "%gpupartition a=64 b=rest")
    _, printed = run(shell, "%%gpustream x --partition a\n%gpupartition --off")
    assert "UsageError: Stream 'x' is selected by a thread" in printed
    assert "Traceback" not in printed
    assert lab.streams["x"].partition == "a"
    assert lab.current is None


# Kernels


def kernels(lab):
    lab.synchronize()
    trace = lab.trace
    return [trace.names[code] for code in trace.name[np.isin(trace.kind, (1, 2, 3))]]


def test_kernels_are_captured_while_a_cell_runs(shell, lab):
    run(shell, "%%gpustream copy\na = lab.xp.ones(8)")
    result, _ = run(shell, "%%gpustream copy --kernels\nb = lab.xp.zeros(8)\n7")
    run(shell, "%%gpustream copy\nc = lab.xp.ones(8)")
    assert result.result == 7
    assert lab.recording.tier == "ranges"
    assert kernels(lab) == ["memset"]


def test_the_kernels_of_a_cell_are_shown_below_it(shell, lab):
    lab.capture("kernels")
    run(shell, "%%gpustream other\na = lab.xp.ones(8)")
    result, printed = run(shell, "%%gpustream copy --kernels --show --label step\nb = lab.xp.zeros(8)")
    assert result.success
    assert "memset" in printed
    assert "ones" not in printed
    assert lab.recording.tier == "kernels"


def test_where_kernels_cannot_be_captured_the_cell_does_not_run(shell, lab, monkeypatch):
    def refuse():
        raise CaptureUnavailableError("no CUPTI here")

    monkeypatch.setattr(lab._backend, "activity_source", refuse)
    result, printed = run(shell, "%%gpustream copy --kernels\nran = True")
    assert "UsageError" in printed
    assert "no CUPTI here" in printed
    assert "ran" not in shell.user_ns
    assert not result.success


def test_what_is_captured_is_chosen_and_told(shell, lab):
    assert "Captured: ranges" in run(shell, "%gpucapture")[1]
    result, _ = run(shell, "%gpucapture kernels --no-host")
    assert repr(result.result) == "<Capture: kernels (simulated device)>"
    assert "Captured: kernels (simulated device)\n" in run(shell, "%gpucapture")[1]
    run(shell, "%%gpustream copy\na = lab.xp.ones(8)")
    assert kernels(lab) == ["ones"]
    assert not any(lane.name.startswith("host") for lane in lab.trace.lanes)
    assert "kernels (simulated device)" in run(shell, "%gpulab")[1]
    run(shell, "%gpucapture kernels --stacks --no-host")
    assert "Captured: kernels, stacks (simulated device)\n" in run(shell, "%gpucapture")[1]
    run(shell, "%gpucapture ranges")
    assert "Captured: ranges\n" in run(shell, "%gpucapture")[1]
    run(shell, "%gpucapture kernels")
    assert "Captured: kernels and host calls (simulated device)\n" in run(shell, "%gpucapture")[1]


def test_a_session_captures_calls_of_the_host_unless_it_is_started_without(shell):
    assert "kernels and host calls (simulated device)" in run(shell, "%gpulab start --backend sim")[1]
    run(shell, "%gpulab start --backend sim --no-host")
    assert "Captured: kernels (simulated device)\n" in run(shell, "%gpucapture")[1]


def test_gpuexplain_says_what_lab_explain_says_and_completes_streams(shell, lab):
    run(shell, "%gpucapture kernels")
    run(shell, "copy, compute = lab.stream('copy'), lab.stream('compute')\nfrom gpustreamlab.workloads import spin")
    run(shell, "spin(lab, 1_000_000, stream=copy)\ncopy.synchronize()\nspin(lab, 1_000_000, stream=compute)\nlab.synchronize()")
    result, _ = run(shell, "%gpuexplain copy compute")
    assert [finding.code for finding in result.result.findings] == ["HOST_SYNC_STREAM"]
    assert str(result.result) == str(lab.explain("copy", "compute"))
    assert {"copy", "compute"} <= completed(shell, "%gpuexplain co")


def test_right_behind_a_cell_gpuexplain_and_gputimeline_have_its_work_and_nothing_waited_for_it(shell, lab):
    run(shell, "%gpucapture kernels")
    for ask in ("%gpuexplain", "%gputimeline --static"):
        run(shell, "%%gpustream copy\nfor _ in range(20): lab.xp.ones((512, 512)) @ lab.xp.ones((512, 512))")
        assert lab.trace.metadata.pending_spans
        result, _ = run(shell, ask)
        assert "has not ended" not in str(result.result)
        assert not lab.trace.metadata.pending_spans
    assert len(lab.trace.where(name="matmul")) == 40
    assert "cudaDeviceSynchronize" not in lab.trace.names


def test_gpuexplain_takes_a_row_where_nothing_has_that_name(shell, lab):
    run(shell, "%gpucapture kernels")
    run(shell, "from gpustreamlab.workloads import spin\nlab.stream('a'), lab.stream('0')")
    run(shell, "spin(lab, 1_000_000, stream='a')\nlab.synchronize()\nspin(lab, 1_000_000, stream='0')\nlab.synchronize()")
    row = int(np.flatnonzero(lab.trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))[-1])
    for line, expected in ((f"%gpuexplain {row}", lab.explain(row)), ("%gpuexplain 0", lab.explain("0"))):
        assert run(shell, line)[0].result.findings == expected.findings != ()
    assert lab.explain(0).findings == ()
    assert "the trace has rows 0 to" in told(shell, "%gpuexplain 999")


@pytest.fixture
def node(shell):
    run(shell, "import gpustreamlab as gsl\nlab = gsl.Node(backend='sim')")
    yield shell.user_ns["lab"]
    shell.user_ns["lab"].close()


def test_a_cell_runs_on_the_gpu_of_a_node_that_it_names_and_waits_for_one_on_another(shell, node):
    assert run(shell, "%%gpustream prefill\na = lab[0].xp.ones((256, 256)) @ lab[0].xp.ones((256, 256))")[0].success
    assert run(shell, "%%gpustream decode --device 1 --after prefill\nb = lab[1].xp.ones((64, 64))")[0].success
    assert run(shell, "%%gpustream decode\nc = lab[1].xp.ones((64, 64))")[0].success
    node.synchronize()
    trace = node.trace.where(kind="kernel")
    found = {(trace.lanes[lane].name, trace.lanes[lane].device) for lane in trace.lane}
    assert found == {("decode", 1), ("prefill", 0)}
    decode, prefill = trace.where(stream="decode"), trace.where(stream="prefill")
    assert decode.start_ns.min() >= prefill.end_ns.max()
    assert run(shell, "%gputimeline --static")[0].result.trace.devices == node.trace.devices


def test_what_a_node_cannot_be_asked_says_what_to_type(shell, node):
    run(shell, "lab.stream('d', device=1)")
    assert "is on GPU 1" in run(shell, "%%gpustream d --device 0\npass")[1]
    assert "no device 7" in run(shell, "%%gpustream e --device 7\npass")[1]
    assert "node[0].partition(decode=32)" in told(shell, "%gpupartition decode=32")
    run(shell, "gpu0 = lab[0]\n%gpulab use --as gpu0")
    assert run(shell, "%gpupartition decode=32")[0].success
    assert node[0].layout is not None


def test_a_device_without_a_node_is_refused(shell, lab):
    assert "lab = gpustreamlab.Node()" in told(shell, "%%gpustream a --device 1\npass")
    run(shell, "import gpustreamlab\npair = gpustreamlab.Node(backend='sim')")
    assert "%gpulab use --as pair" in told(shell, "%%gpustream a --device 1\npass")
    run(shell, "%gpulab use --as pair")
    assert run(shell, "%%gpustream a --device 1\npass")[0].success
    assert run(shell, "%gpulab close")[1].startswith("Closed: <Node: ")
    assert run(shell, "%gpulab")[0].result is lab


def test_a_node_in_any_variable_is_what_magics_work_on(shell):
    run(shell, "import gpustreamlab as gsl\npair = gsl.Node(backend='sim')\nfirst = pair[0]")
    pair = shell.user_ns["pair"]
    assert run(shell, "%gpulab")[0].result is pair
    assert run(shell, "%%gpustream decode --device 1\npair[1].xp.ones(8)")[0].success
    assert list(pair[1].streams) == ["decode"]
    assert "decode" in completed(shell, "%%gpustream de")
    assert str(run(shell, "%gpuexplain")[0].result) == str(pair.explain())
    run(shell, "other = gsl.Session('sim')")
    assert "There are 2 open: other, pair. Choose one with: %gpulab use --as other" in told(shell, "%gpulab")
    run(shell, "%gpulab use --as pair\ndel pair")
    assert run(shell, "%gpulab")[0].result is pair
    run(shell, "%gpulab close\n%gpulab close")
    assert [lab.state for lab in (pair, shell.user_ns["other"])] == ["closed", "closed"]


def test_spaces_behind_the_commas_of_a_list_are_no_words_of_their_own(shell, lab):
    run(shell, "a, b = lab.stream('a'), lab.stream('b')")
    assert run(shell, "%%gpustream c --after a, b --label 'x, y'\npass")[0].success
    assert run(shell, "%%gpustream --after a , b c\npass")[0].success
    lab.synchronize()
    assert "x, y" in lab.trace.names


def test_where_the_only_session_is_closed_it_is_said_how_to_see_what_it_recorded(shell, lab):
    lab.close()
    assert "What 'lab' recorded until it was closed is still there: lab.timeline()" in told(shell, "%gputimeline")
    shell.user_ns.pop("lab")
    assert "lab.timeline()" not in told(shell, "%gputimeline")


def test_a_node_is_not_overwritten_and_can_be_gone_back_to(shell, node):
    assert "lab.close()" in told(shell, "%gpulab start --backend sim")
    assert shell.user_ns["lab"] is node
    run(shell, "gpu0 = lab[0]\n%gpulab use --as gpu0")
    run(shell, "%gpulab use --as lab")
    assert run(shell, "%%gpustream decode --device 1\npass")[0].success
    assert list(node[1].streams) == ["decode"]
