"""A session's life: what it shows, how it closes, and what threads, generators and shutdown do to it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gpustreamlab
from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import (
    CloseError,
    OptionError,
    PartitionNotFoundError,
    SelectionError,
    StreamNotFoundError,
)
from gpustreamlab.typing import SessionState
from gpustreamlab.workloads import matrix_product, spin
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.selections import names_of, parents
from tests.helpers.threads import run_in_thread

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")


def names(lab):
    if lab.state == "open":
        lab.synchronize()
    return names_of(lab.trace)


# What it shows


def test_repr_names_device_kind_streams_spans_and_drops():
    with Session("sim", ring_size=1, capture="ranges") as lab:
        for number in range(3):
            with lab.on(lab.stream("copy"), f"n{number}"):
                spin(lab, 1_000)
        lab.synchronize()
        facts = (lab.device.name, "132 SMs", "simulated", "1 stream (copy)", "1 span", "2 dropped", "open")
        for shown in (repr(lab), lab._repr_html_()):
            assert [fact for fact in facts if fact not in shown] == []
    assert "closed" in repr(lab)
    assert "2 dropped" in repr(lab)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hazards", "lab.memory.hazards"),
        ("strays", "lab.trace.strays"),
        ("critical_path", "lab.trace.critical_path"),
        ("host_waits", "lab.trace.host_waits"),
        ("verify", "lab.partitions.verify"),
        ("save", "lab.trace.save"),
        ("tune", "lab.bench.tune"),
        ("sync", "lab.synchronize()"),
        ("show", "lab.timeline()"),
        ("races", "lab.memory.hazards()"),
        ("why_slow", "lab.explain()"),
        ("mark", "lab.recording.mark"),
        ("sms", "lab.device.sm_count"),
        ("cupy", "lab.xp"),
    ],
)
def test_a_name_that_is_elsewhere_says_where(name, line):
    with Session("sim", capture="ranges") as lab:
        with pytest.raises(AttributeError, match=re.escape(f"'Session' object has no attribute {name!r}. Use {line}") + "$"):
            getattr(lab, name)
        assert eval(line.removesuffix("()"), {"lab": lab}) is not None
        with pytest.raises(AttributeError, match="'Session' object has no attribute 'nothing'. It has bench, capture, .*xp$"):
            lab.nothing  # noqa: B018
        with pytest.raises(AttributeError, match=r"no attribute 'timelines'\. Did you mean timeline\?$"):
            lab.timelines  # noqa: B018


@pytest.mark.parametrize(
    ("held", "name", "line"),
    [
        ("lab.stream('a')", "sync", "stream.synchronize()"),
        ("lab.memory", "races", "lab.memory.hazards()"),
        ("lab.trace", "kernels", "trace.where(kind='kernel')"),
        ("lab.trace", "to_html", "trace.timeline().save('run.html')"),
        ("lab.timeline()", "open", "lab.timeline().save('run.html')"),
        ("lab.trace", "why", "trace.explain()"),
        ("lab.stream('a')", "ptr", "stream.handle"),
        ("lab.memory", "pinned", "lab.memory.pinned_empty(shape, dtype)"),
        ("gpustreamlab", "view", "gpustreamlab.load_trace"),
        ("gpustreamlab", "explain", "gpustreamlab.Session"),
    ],
)
def test_what_a_session_gives_says_so_too(held, name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Session("sim", capture="ranges") as lab:
        known = {"lab": lab, "trace": lab.trace, "stream": lab.stream("a"), "gpustreamlab": gpustreamlab}
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}. Use {line}")):
            getattr(eval(held, known), name)
        eval(line, known | {"shape": 1, "dtype": "float32"})


def test_a_guess_at_a_stream_says_what_to_type():
    with Session("sim", capture="ranges") as lab:
        with pytest.raises(StreamNotFoundError, match=r"no stream 'a'\. Make it first with lab\.stream\('a'\)"):
            lab.streams["a"]
        with pytest.raises(OptionError, match=r"no option 'prio'\. Use lab\.stream\('a', priority=-1"):
            lab.stream("a", prio=-1)
        with pytest.raises(SelectionError, match=r"Use: with lab\.on\('a'\)"), lab.stream("a"):
            pass
        with pytest.raises(OptionError, match=r"Use overlap\(\)\['copy', 'compute'\]"):
            lab.trace.overlap("a", "b")
        with pytest.raises(OptionError, match=r"no option 'prefill'\. Use lab\.bench\.tune\(\{'prefill': f"):
            lab.bench.tune(prefill=print)
        lab.partition(front=96, back="rest")
        with pytest.raises(StreamNotFoundError, match=r"It is a partition.*lab\.stream\('front', partition='front'\)"):
            lab.on("front")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("a",), {"partition": "left"}, OptionError, "Use lab.stream('a', partition='left'), and then with lab.on('a')"),
        (("a",), {"partition": None}, OptionError, "Use lab.stream('a', partition=None), and then with lab.on('a')"),
        (("a",), {"partition": "lef"}, PartitionNotFoundError, "Did you mean 'left'? Use lab.stream('a', partition=...)"),
        ((), {"partition": "lef"}, PartitionNotFoundError, "Did you mean 'left'? Use lab.stream('copy', partition=...)"),
        (("a",), {"partition": 3}, PartitionNotFoundError, "There is no partition '3'. Choose from 'left', 'right'."),
        (("a",), {"partition": ["left"]}, PartitionNotFoundError, "There is no partition \"['left']\""),
        (("a",), {"parts": "left"}, OptionError, "lab.on has no option 'parts'. Use with lab.on('a', 'label', request=7"),
        (("a", "label", 7), {}, OptionError, "by keyword. Use with lab.on('a', 'label', request=7, step=3)"),
        ((), {}, OptionError, "Use with lab.on('copy', 'label', request=7, step=3)"),
    ],
)
def test_what_a_selection_does_not_take_is_told_with_the_line_to_type(arguments, options, error, words):
    with Session("sim", capture="ranges") as lab:
        lab.partition(left=32, right="rest")
        lab.stream("a")
        with pytest.raises(error, match=re.escape(words)):
            lab.on(*arguments, **options)


def test_a_partition_for_a_selection_says_how_to_share_out_the_sms_where_they_are_not():
    with Session("sim", capture="ranges") as lab:
        with pytest.raises(
            PartitionNotFoundError, match=r"lab\.partition\(left=32, other='rest'\).*lab\.stream\('a', partition="
        ):
            lab.on("a", partition="left")


@pytest.mark.parametrize("arguments", [(0, "s"), ("s", 0), ("s", "left")])
def test_arguments_of_a_stream_without_their_keywords_are_told_with_the_line_to_type(arguments):
    words = re.escape("takes all but its name by keyword. Use lab.stream('s', priority=-1, partition=...)")
    with Session("sim", capture="ranges") as lab, pytest.raises(OptionError, match=words):
        lab.stream(*arguments)


def test_repr_of_a_real_device_does_not_say_simulated():
    with Session(InstantBackend()) as lab:
        assert "real, measured" in repr(lab)
        assert "simulated" not in lab._repr_html_()


def test_repr_lists_eight_streams_and_leaves_out_closed_ones(lab):
    for number in range(8):
        lab.stream(f"s{number}")
    lab.stream("s0").close()
    assert "9 streams (a, b, s1, s2, s3, s4, s5, s6, …)" in repr(lab)
    assert "s0" not in lab.streams


def test_html_is_escaped():
    backend = SimBackend()
    backend.device = type(backend.device)(name="<script>alert(1)</script>", sm_count=1, simulated=True)
    with Session(backend) as lab:
        shown = lab._repr_html_()
    assert "<script" not in shown
    assert "&lt;script" in shown


def test_the_reason_for_falling_back_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr("gpustreamlab.backends.cuda._probe.why_unavailable", lambda: ("no-driver", "No driver. Install it."))
    with Session() as lab:
        assert lab.device.simulated
        assert lab._fallback_reason == "No driver. Install it."
        assert caplog.text.count("No driver. Install it.") == 1
        assert "No driver" not in lab._repr_html_()
        assert "simulated" in repr(lab)
        Session().close()
        assert caplog.text.count("No driver. Install it.") == 1
    with Session("sim") as asked:
        assert asked._fallback_reason == ""


def test_in_a_notebook_it_is_one_quiet_line(monkeypatch, caplog, capsys):
    monkeypatch.setattr("gpustreamlab.backends.cuda._probe.why_unavailable", lambda: ("no-driver", "Nothing. Install it."))
    monkeypatch.setattr("gpustreamlab._util.shell.running_kernel_shell", object)
    for _ in range(3):
        Session().close()
    assert capsys.readouterr() == ("No usable GPU: the simulated device is used. Why: gpustreamlab doctor\n", "")
    assert caplog.text == ""


def test_title_goes_into_the_trace():
    for title, expected in {"first try": "first try", "\ud800": "?"}.items():
        with Session("sim", title=title) as lab:
            assert lab.trace.metadata.title == expected
    with pytest.raises(OptionError, match="title is 5"):
        Session("sim", title=5)


# Opening


def test_a_session_that_could_not_start_leaves_nothing_open(monkeypatch):
    closed = []
    monkeypatch.setattr(SimBackend, "close", lambda backend: closed.append(backend))
    with pytest.raises(OptionError):
        Session("sim", ring_size=0)
    assert len(closed) == 1
    with pytest.raises(OptionError):
        Session(SimBackend(), ring_size=0)
    assert len(closed) == 1


# Closing


def test_close_is_ordered_and_gives_every_event_back():
    backend = InstantBackend()
    lab = Session(backend)
    for name in "ab":
        with lab.on(lab.stream(name)), lab.range("x"):
            pass
    lab.close()
    assert backend.calls == ["synchronize 7", "close 7", "synchronize 8", "close 8"]
    assert backend.released_count == backend.made_count > 0
    assert backend.count_open_nvtx() == 0


def test_a_backend_object_stays_its_owners():
    backend = InstantBackend()
    Session(backend).close()
    assert "close backend" not in backend.calls
    simulated = SimBackend()
    Session(simulated).close()
    with Session(simulated) as again:
        assert names(again) == ["cudaDeviceSynchronize"]


def test_a_part_that_fails_to_close_does_not_stop_the_others(monkeypatch):
    backend = InstantBackend()
    lab = Session(backend)
    bad, good = lab.stream("bad"), lab.stream("good")
    with lab.on("good", "kept"):
        pass
    monkeypatch.setattr(bad, "close", lambda: 1 / 0)
    with pytest.raises(CloseError, match=r"1 of its parts[\s\S]*stream 'bad': ZeroDivisionError") as told:
        lab.close()
    assert [what for what, _ in told.value.failures] == ["stream 'bad'"]
    assert backend.calls[-1] == "close 8"
    assert (good.is_closed, lab.state, names(lab)) == (True, SessionState.CLOSED, ["kept"])
    lab.close()


def test_a_users_error_wins_over_a_failing_close(monkeypatch):
    with pytest.raises(KeyError) as told, Session("sim") as lab:
        monkeypatch.setattr(lab.stream("bad"), "close", lambda: 1 / 0)
        raise KeyError("mine")
    assert "stream 'bad': ZeroDivisionError" in told.value.__notes__[0]
    with pytest.raises(CloseError), Session("sim") as lab:
        monkeypatch.setattr(lab.stream("bad"), "close", lambda: 1 / 0)


def test_an_interrupted_close_goes_on_at_the_next_call(monkeypatch):
    backend = InstantBackend()
    lab = Session(backend)
    for name in "abc":
        lab.stream(name)
    interrupts = iter([KeyboardInterrupt])

    def interrupted():
        raise next(interrupts, ZeroDivisionError)

    monkeypatch.setattr(lab.stream("b"), "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.close()
    assert lab.state is SessionState.CLOSING
    with pytest.raises(CloseError, match="stream 'b': ZeroDivisionError"):
        lab.close()
    assert lab.state is SessionState.CLOSED
    assert [call for call in backend.calls if call.startswith("close")] == ["close 7", "close 9"]


def test_a_session_never_closed_warns_and_names_itself():
    lab = Session("sim")
    lab.stream("forgotten")
    with pytest.warns(ResourceWarning, match=r"forgotten.* was never closed. Call lab.close\(\)"):
        del lab
        gc.collect()


def test_the_trace_of_a_closed_session_can_be_read_drawn_and_saved(tmp_path):
    with Session("sim", title="late", capture="ranges") as lab, lab.on(lab.stream("a"), "x"):
        spin(lab, 1_000)
    assert names(lab) == ["x"]
    assert lab.trace.metadata.title == "late"
    lab.trace.save(tmp_path / "run.parquet")
    assert all(lab.timeline().save(tmp_path / name).exists() for name in ("run.html", "run.svg"))
    assert set(lab.timeline()._repr_mimebundle_()) == {"text/plain", "text/html", "image/svg+xml"}
    assert lab.trace.overlap().wall_ns >= 1_000
    assert lab.current is None


def test_a_closed_session_holds_what_was_recorded_once(lab):
    # GIVEN a session with many spans
    for _ in range(5_000):
        with lab.on("a", "short"):
            pass
    lab.synchronize()
    assert lab._recorder.changes().rows.nbytes > 5_000 * 100

    # WHEN it closes, THEN its last trace has everything, and the recorder nothing
    lab.close()
    assert len(lab.trace) == 5_000
    assert (lab._recorder.span_count, lab._recorder.changes().row_count) == (0, 0)
    assert "5,000" in repr(lab)


# The trace


def test_clear_forgets_what_ended_and_keeps_what_runs(lab):
    with lab.on("a", "warm-up"):
        spin(lab, 1_000)
    lab.synchronize()
    with lab.on("a", "running"):
        spin(lab, 50_000_000)
    lab.clear()
    assert len(lab.trace) == 0
    assert names(lab) == ["running"]
    assert lab.trace.metadata.dropped_spans == 0


def test_the_same_program_gives_the_same_trace_bit_for_bit():
    first, second = (run_program() for _ in range(2))
    for column in ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread"):
        np.testing.assert_array_equal(getattr(first, column), getattr(second, column))
    for column in ("source", "target", "kind"):
        np.testing.assert_array_equal(getattr(first.edges, column), getattr(second.edges, column))
    assert first.metadata == second.metadata
    assert (first.names, first.lanes, first.threads) == (second.names, second.lanes, second.threads)
    assert len(first) == 31
    assert len(first.edges.source) == 10


def run_program():
    with Session("sim", title="program", capture="ranges") as lab:
        copy, compute = lab.stream("copy"), lab.stream("compute", priority=-2)
        host = lab.memory.pinned_empty((64, 64), "float32")
        host[...] = 1.5
        handed = lab.recording.start_range("copy", "all copies")
        for number in range(10):
            with lab.on("copy", f"copy {number % 3}"):
                a = lab.xp.asarray(host)
            compute.wait(copy.record())
            with lab.on("compute", "gemm"), lab.range("product"):
                matrix_product(lab, a, a, a)
            if number == 5:
                assert copy.query() in (True, False)
        handed.end()
        lab.synchronize()
        return lab.trace


def test_handed_over_ranges_beyond_the_limit_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr("gpustreamlab.recorder._in_flight.PENDING_LIMIT", 5)
    with Session("sim", capture="ranges") as lab:
        with lab.on(lab.stream("a"), "long"):
            spin(lab, 100_000_000)
        for number in range(8):
            lab.recording.start_range("a", f"n{number}").end()
        assert lab.trace.metadata.pending_spans == 6
        assert sorted(names(lab)) == ["long", "n0", "n1", "n2", "n3", "n4"]
        assert lab.trace.metadata.dropped_spans == 3


def test_events_beyond_those_kept_go_back_to_the_pool(monkeypatch):
    monkeypatch.setattr("gpustreamlab.recorder._in_flight.IDLE_PAIRS", 2)
    backend = InstantBackend()
    with Session(backend) as lab:
        with lab.on(lab.stream("a")):
            for _ in range(4):
                with lab.range("x"):
                    pass
        assert len(lab.trace) == 5
        assert (backend.made_count, backend.released_count) == (10, 6)


# Streams that others own


def test_a_foreign_stream_gets_a_free_name():
    backend = SimBackend()
    with Session(backend) as lab:
        taken = lab.stream("gpustreamlab-1")
        with lab.on(backend.create_stream(), "x"):
            adopted = lab.current
        with lab.on(backend.create_stream()):
            another = lab.current
        assert (adopted.name, another.name) == ("gpustreamlab-2", "gpustreamlab-3")
        assert lab.stream("gpustreamlab-1") is taken
        assert list(lab.streams) == ["gpustreamlab-1", "gpustreamlab-2", "gpustreamlab-3"]


def test_sessions_of_one_backend_object_lend_each_other_streams():
    backend = SimBackend()
    with Session(backend) as owner, Session(backend, capture="ranges") as guest:
        stream = owner.stream("mine", priority=-1)
        with guest.on(stream, "theirs"):
            spin(guest, 1_000)
        guest.stream("own").wait(stream.record())
        assert names(guest) == ["theirs"]
        assert guest.stream("again", priority=-1, external=owner.stream("other", priority=-1)).priority == -1


# Threads and sessions side by side


def test_two_sessions_select_independently():
    with Session("sim", host=False) as one, Session("sim", host=False) as two:
        with one.on(one.stream("a"), "x"), two.on(two.stream("a"), "y"), one.range("z"):
            assert (one.current, two.current) == (one.stream("a"), two.stream("a"))
        assert (parents(one), parents(two)) == ({"x": None, "z": "x"}, {"y": None})


# Nesting


def test_a_selection_can_be_entered_again_but_not_twice(lab):
    selection = lab.on("a", "x")
    for _ in range(2):
        with selection:
            assert lab.current is lab.stream("a")
    with selection, pytest.raises(SelectionError, match=r"entered already.*lab\.on\('a'\)"), selection:
        raise AssertionError("a selection was entered inside itself")
    assert lab.current is None
    assert names(lab) == ["x", "x", "x"]


def test_a_selection_left_wrongly_says_how_and_changes_nothing(lab):
    with lab.on("a", "mine"):
        selection = lab.on("b", "inner")
        selection.__enter__()
        raised = run_in_thread(lambda: selection.__exit__(None, None, None))
        assert isinstance(raised, SelectionError)
        assert "in a thread that did not enter it" in str(raised)
        assert lab.current is lab.stream("b")
        selection.__exit__(None, None, None)
        with pytest.raises(SelectionError, match="left twice"):
            selection.__exit__(None, None, None)
        assert lab.current is lab.stream("a")
    assert parents(lab) == {"mine": None, "inner": "mine"}


def ranging(lab, label):
    with lab.range(label):
        yield
    yield


def test_a_range_left_out_of_turn_takes_only_itself_away(lab):
    with lab.on("a", "outer"):
        steps = ranging(lab, "load")
        next(steps)
        with lab.range("compute"):
            spin(lab, 10_000)
            next(steps)
            spin(lab, 1_000_000)
        steps.close()
    assert parents(lab) == {"outer": None, "load": "outer", "compute": "outer"}
    load, compute = names(lab).index("load"), names(lab).index("compute")
    assert 10_000 <= lab.trace.duration_ns[load] < 1_000_000
    assert lab.trace.duration_ns[compute] > 1_000_000
    assert lab.trace.metadata.dropped_spans == 0


def test_an_interrupt_ends_the_ranges_that_it_came_through(lab):

    with lab.on("a", "outer"):
        with pytest.raises(KeyboardInterrupt), lab.range("around"):
            stuck = lab.range("stuck")  # the variable counts as another block that may leave it
            stuck.__enter__()
            raise KeyboardInterrupt
        with lab.range("after"):
            pass
    assert stuck.name == "stuck"
    assert parents(lab) == {"outer": None, "around": "outer", "after": "outer"}


# The end of the interpreter

ENDINGS = {
    "open session": "lab.stream('a')",
    "open selection": "selection = lab.on('a'); selection.__enter__()",
    "open range": "selection = lab.on('a'); selection.__enter__(); r = lab.range('x'); r.__enter__()",
    "handed-over range": "opened = lab.recording.start_range('a', 'x')",
    "suspended generator": """
        def steps():
            with lab.on('a'), lab.range('x'):
                yield
        kept = steps(); next(kept)
        """,
    "suspended task and generator": """
        @lab.on('a')
        async def serve():
            with lab.range('inner'):
                await asyncio.sleep(0)
        @lab.on('a')
        def tokens():
            with lab.range('inner'):
                yield
        kept = serve(), tokens()
        kept[0].send(None), next(kept[1])
        """,
    "work in flight": """
        with lab.on('a'):
            spin(lab, 10**9)
        """,
    "exit inside": """
        with lab.on('a'), lab.range('x'):
            sys.exit(0)
        """,
    "session in a cycle": "lab.me = lab; loop = [lab]; loop.append(loop); del lab",
    "two sessions on one backend": "other = Session(lab._backend); other.stream('b'); other.on('b').__enter__()",
    "session left inside its block": "lab.__enter__(); other = lab",
} | {
    name: f"with lab.on('a'): spin(lab, 10**9)\n{ending}"
    for name, ending in {
        "held": "lab.stream('a').hold(Thing())",
        "used": "x = Thing(); lab.stream('a').use(x, after='a')",
        "used and dropped": "lab.stream('a').use(lab.xp.zeros(4), after='a')",
        "guard": "guard = lab.memory.guard(Thing(), 'g')\nwith guard.on('a'): spin(lab, 10**9)",
        "guard inside": "guard = lab.memory.guard(Thing(), 'g')\nuse = guard.on('a'); use.__enter__()",
        "guard waited for": "guard = lab.memory.guard(Thing(), 'g')\nwith guard.on('a'): sys.exit(0)",
        "held by itself": "lab.me = lab; lab.stream('a').hold(lab); del lab",
        "run": "lab.run_on('a', lambda lane, x: spin(lab, 10**9), Thing())",
    }.items()
}


def test_the_interpreter_ends_silently_whatever_is_open():
    # One process for all: it forks for each ending, since importing takes longest.
    program = f"""
    import asyncio, os, sys, warnings
    import numpy, pyarrow
    from gpustreamlab import Session
    from gpustreamlab.workloads import spin
    import textwrap
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    class Thing: pass
    for name, ending in {ENDINGS!r}.items():
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print("begin", name)
            lab = Session("sim")
            lab.stream("a")
            exec(textwrap.dedent(ending), globals())
            sys.exit(0)
        print("end", name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [line for name in ENDINGS for line in (f"begin {name}", f"end {name} 0")]


IN_A_CHILD = {
    "session": lambda lab, made: lab.event(),
    "record": lambda lab, made: made["stream"].record(),
    "wait": lambda lab, made: made["stream"].wait(made["event"]),
    "synchronize": lambda lab, made: made["stream"].synchronize(),
    "event": lambda lab, made: made["event"].record(made["stream"]),
    "hold": lambda lab, made: made["stream"].hold(object()),
    "scratch": lambda lab, made: made["stream"].scratch(10),
    "handle": lambda lab, made: made["stream"].handle,
    "selection": lambda lab, made: made["selection"].__enter__(),
    "guard": lambda lab, made: made["guard"].on("a").__enter__(),
    "arithmetic": lambda lab, made: made["array"] + 1,
    "new array": lambda lab, made: lab.xp.ones(3),
    "unwritten array": lambda lab, made: lab.xp.empty(3),
    "copy to the host": lambda lab, made: made["array"].get(),
    "query": lambda lab, made: made["event"].query(),
    "elapsed": lambda lab, made: made["event"].elapsed_ns(made["event"]),
    "its backend": lambda lab, made: Session(lab._backend).stream("b"),
}


def in_a_child(call):
    """Return what a forked child is told by the error of a call; empty without one."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
        except Exception as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as told:
        return told.read()


@pytest.mark.parametrize("what", IN_A_CHILD)
def test_a_forked_child_is_told_to_make_its_own(lab, what):
    stream = lab.stream("a")
    made = {
        "stream": stream,
        "event": stream.record(),
        "selection": lab.on("a", "x"),
        "guard": lab.memory.guard(object(), "g"),
        "array": lab.xp.ones(3),
        "scratch": stream.scratch(10),
    }
    assert "forked" in in_a_child(lambda: IN_A_CHILD[what](lab, made))
    assert lab.state == "open"
    assert not stream.is_closed


def test_a_forked_child_ends_what_is_the_parents_without_touching_it(lab, monkeypatch):
    stream, opened = lab.stream("a"), lab.recording.start_range("a", "open")
    for name in ("synchronize", "close", "record_raw"):
        monkeypatch.setattr(type(stream._backend_stream), name, lambda *_: 1 / 0)
    assert in_a_child(lambda: (stream.close(), lab.close())) == ""
    assert "division" not in in_a_child(opened.end)
    monkeypatch.undo()
    opened.end()


def test_a_closed_session_tells_what_it_has_captured():
    with Session("sim") as lab, lab.on(lab.stream("a")):
        spin(lab, 1_000)
    assert ", kernels, 5 spans" in repr(lab)  # the stream's making, the range, its kernel, the launch, the closing's wait


def test_the_kernels_that_were_waited_for_are_counted_at_once():
    with Session("sim", host=False) as lab:
        with lab.on(lab.stream("a")):
            for _ in range(30):
                spin(lab, 1_000)
        lab.synchronize()
        assert "31 spans" in repr(lab)


def test_an_explanation_says_what_has_not_ended(lab):
    for name in ("a", "b"):
        spin(lab, 1_000_000, stream=lab.stream(name))
    before_ns = lab.recording.backend.glance_ns()
    assert "Work on 'a', 'b' has not ended yet: lab.synchronize() waits for it." in lab.explain().notes
    assert "Work on 'a', 'b' has not ended yet" in str(lab.explain("a", "b"))
    assert lab.recording.backend.glance_ns() == before_ns  # asking takes no time
    lab.stream("c").synchronize()
    lab.synchronize()
    assert not any("not ended" in note for note in lab.explain().notes)
    spin(lab, 1_000_000, stream="b")
    lab.close()
    assert not any("not ended" in note for note in lab.explain().notes)


def test_a_range_without_a_stream_is_refused_in_one_error(lab):
    with pytest.raises(SelectionError, match="none is selected in this thread") as raised:
        lab.range("epoch")
    assert raised.value.__context__ is None
