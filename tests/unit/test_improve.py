"""Programs are changed by machine where that gains and nothing else changes, and left alone where not."""

from __future__ import annotations

import ast
import inspect
import signal

import numpy as np
import pytest

from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.errors import OptionError, ProgramError
from gpustreamlab.workloads import spin
from tests.helpers.improve_programs import KEPT, MENDED

LONG = 300  # Seconds: none of these stops because its time is over


class _Uncopyable:
    def __deepcopy__(self, memo):
        raise AssertionError("all of another file would be copied")


@pytest.fixture(autouse=True)
def tracebacks_were_shown(monkeypatch):
    """Put onto the nodes that all syntax shares what leads to another file, as IPython does where it shows a traceback."""
    (statement,) = ast.parse("a = b").body
    for name in (statement.targets[0], statement.value):
        monkeypatch.setattr(name.ctx, "parent", _Uncopyable(), raising=False)


@pytest.mark.parametrize("name", MENDED)
def test_a_program_is_as_fast_as_a_good_engineer_would_make_it(lab, name):
    found = lab.improve(MENDED[name], lab, "bad", seconds=LONG)
    good = lab.improve(MENDED[name], lab, "good", seconds=0)

    assert found
    assert np.median(found.after_ns) <= 1.05 * np.median(good.before_ns)
    assert all(one.interval_ns[0] > 0 for one in found.kept)
    assert "Results, prints and exceptions are those of the program as it was" in str(found)


@pytest.mark.parametrize("name", KEPT)
def test_what_data_or_the_host_need_stays(lab, name):
    program, texts = KEPT[name]
    found = lab.improve(program, lab, seconds=LONG)

    assert all(text in found.source for text in texts)
    assert found or "left as it is: nothing that was tried" in " ".join(str(found).split())


def test_what_did_not_run_stops_what_its_data_concern_and_is_told_with_its_line(lab):
    found = lab.improve(KEPT["a_branch_that_is_seldom_taken_uses_what_is_loaded"][0], lab, seconds=LONG)
    told = {one.title: one.why for one in found.left}
    why = told["the host does not wait by load.synchronize()"]
    assert why == "line 16, total[...] = total + frames[n], did not run, and may need the wait"


def test_what_did_not_run_stops_nothing_that_its_data_do_not_concern(lab, text):
    seldom = "seen, other = [], lab.xp.ones(4)\n" + text.replace(
        "    lab.synchronize()\n", "    lab.synchronize()\n    if seen:\n        print(len(seen) + 1)\n        other += 1\n", 1
    )
    found = lab.improve(seldom, namespace={"lab": lab, "spin": spin}, seconds=LONG)
    assert found.speedup == pytest.approx(2, rel=0.05)
    assert not any("did not run" in one.why for one in found.left)


def waiting():
    """Use two streams in turns, and wait for each on the host."""
    for _ in range(4):
        spin(lab, 200_000, blocks=32, stream="a")  # noqa: F821 - the variable of whoever calls
        lab.synchronize()  # noqa: F821
        spin(lab, 200_000, blocks=32, stream="b")  # noqa: F821
        lab.synchronize()  # noqa: F821


def test_a_wait_for_all_becomes_one_of_streams_though_the_loop_goes_through_what_is_copied(lab):
    def program(lab):
        frames = np.random.default_rng(1).random((4, 128, 128), "float32")
        io, mm = lab.stream("io"), lab.stream("mm")

        def process():
            out = []
            for frame in frames:
                with lab.on(io):
                    x = lab.xp.asarray(frame)
                lab.synchronize()
                with lab.on(mm):
                    total = (x @ x).sum()
                lab.synchronize()
                out.append(float(total))
            return out

        return process

    found = lab.improve(program, lab, seconds=LONG)

    assert "mm.wait(io)" in found.source
    assert found.source.count("lab.synchronize()") == 1
    assert "frames = pinned" in found.source
    assert found.speedup > 1.25


class Net:
    """Looks up variables of its module, as classes of a notebook do."""

    def forward(self, n):
        with LAB.on("work"):  # noqa: F821 - set by the test
            (LAB.xp.asarray(BACK[n]) * 2).get(out=BACK[n], blocking=False)  # noqa: F821

    def top(self, n):
        return float(BACK[n].max())  # noqa: F821


def test_methods_and_functions_in_containers_get_copies_of_what_they_look_up(lab, monkeypatch):
    net, hooks = Net(), [lambda n: BACK.__setitem__(n, n)]  # noqa: F821
    work, back = lab.stream("work"), lab.memory.pinned_empty((3, 256, 256), "f4")
    back[...] = 5
    monkeypatch.setitem(globals(), "LAB", lab)
    monkeypatch.setitem(globals(), "BACK", back)

    def program():
        tops = []
        for n in range(3):
            hooks[0](n)
            net.forward(n)
            work.synchronize()
            tops.append(net.top(n))
        return tops

    found = lab.improve(program, seconds=LONG)

    assert "work.synchronize()\n        tops" in found.source
    assert "work" in {one.name for one in found.before.lanes}
    assert "KERNEL" not in lab.trace.totals().to_pandas().to_string().upper()
    assert (back == 5).all()
    assert globals()["LAB"] is lab
    assert globals()["BACK"] is back


def branches(lab):
    """Have texts of several lines, and a branch of three."""
    code = """
__global__ void f() {
}
"""
    source = lab.memory.pinned_empty((6, 320, 320), "f4")
    source[...] = 1
    frames = [lab.xp.empty((320, 320), "f4") for _ in source]
    load, work = lab.stream("load"), lab.stream("work")

    def process():
        out = [code]
        for n in range(6):
            if n % 3 == 0:
                print("""first
    of three""")
                load.synchronize()
            elif n % 3 == 1:  # second
                print(1)
            else:
                print(2)  # third
            with lab.on(load):
                frames[n].set(source[n])
            load.synchronize()
            with lab.on(work):
                out.append(frames[n] @ frames[n])
        return out

    return process


def test_branches_and_texts_of_several_lines_stay_as_they_were_written(lab):
    found = lab.improve(branches, lab, seconds=LONG)
    added, gone = ([line[1:] for line in found.diff.splitlines()[2:] if line[0] == sign] for sign in "+-")

    assert {one.strip() for one in gone} <= {"elif n % 3 == 1:  # second", "load.synchronize()"}
    assert "elif n % 3 == 1:" in found.source
    assert 'print("""first\n    of three""")' in found.source
    assert any("work.wait(load)" in line for line in added)
    compile(found.source, "source", "exec")


def test_the_last_wait_stands_in_front_of_a_value_that_is_given_back(lab):
    def program(lab):
        kernel, total = lab.xp.ones((320, 320), "f4"), lab.xp.zeros((320, 320), "f4")
        a, b = lab.stream("a"), lab.stream("b")

        def process():
            for _ in range(3):
                with lab.on(a):
                    total.__iadd__(kernel)
                a.synchronize()
                with lab.on(b):
                    total.__imul__(2)
                b.synchronize()
            return float(total.sum())

        return process

    found = lab.improve(program, lab, seconds=LONG)

    assert "b.wait(a)" in found.source
    assert "lab.synchronize()" in found.source.partition("return float")[0]
    assert "synchronize" not in found.source.partition("return float")[2]


@pytest.fixture
def text(lab):
    lab.stream("a"), lab.stream("b")
    return "\n".join(line[4:] for line in inspect.getsource(waiting).splitlines()[2:])


def test_of_text_the_host_waits_once_at_the_end(lab, text):
    found = lab.improve(text, namespace={"lab": lab, "spin": spin})

    assert found.speedup == pytest.approx(2, rel=0.05)
    assert found.source.count("lab.synchronize()") == 1
    assert found.kept[0].predicted_ns == pytest.approx(found.kept[0].measured_ns, rel=0.05)
    assert "+lab.synchronize()" in found.diff
    assert found.apply() == found.source
    ast.parse(found.source)


def test_nothing_of_the_users_is_changed(lab):
    values = lab.xp.zeros(4)
    with lab.on(lab.stream("mine"), "before"):
        values += 1
    lab.synchronize()
    spans, streams = len(lab.trace), set(lab.streams)

    def program(values):
        made = lab.stream("made-in-it")
        with lab.on(made):
            values += 1
        lab.synchronize()
        return values

    found = lab.improve(program, values)

    assert set(lab.streams) == streams
    assert len(lab.trace) == spans
    assert values.get().tolist() == [1.0] * 4
    assert found.before.metadata.simulated
    assert lab.memory.hazards().hazard_count == 1, "the session watches again: that copy did not wait for the stream"


def test_ctrl_c_leaves_all_as_it_was(lab, text, monkeypatch):
    synchronize, calls = type(lab).synchronize, []

    def interrupted(session):
        calls.append(session)
        if session is not lab and len(calls) > 30:
            raise KeyboardInterrupt
        synchronize(session)

    spans = len(lab.trace)
    monkeypatch.setattr(type(lab), "synchronize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.improve(text, namespace={"lab": lab, "spin": spin})
    assert len(lab.trace) == spans
    assert lab._accesses.is_watching


def test_ctrl_c_while_a_run_begins_leaves_the_session_watching(lab, text, monkeypatch):
    watch = type(lab._backend).watch_accesses

    def interrupted(backend, sink):
        found = watch(backend, sink)
        if sink is not lab._accesses:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(type(lab._backend), "watch_accesses", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.improve(text, namespace={"lab": lab, "spin": spin})
    assert lab._accesses.is_watching


def test_runs_take_the_same_however_far_the_thread_that_captures_has_come(lab):
    array = lab.xp.ones(8)
    lab.stream("a"), lab.stream("b")
    taken = set()
    for collects in (True, False):
        begun_ns = lab._backend.glance_ns()
        for name in ("a", "b"):
            with lab.on(name):
                array += 1
        lab._backend.driver.rest()
        if collects:
            lab._captures.take()
        lab.synchronize()
        taken.add(lab._backend.glance_ns() - begun_ns)
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("open('data.bin')", "open"),
        ("input()", "input()"),
        ("import subprocess\nsubprocess.run(['true'])", "run"),
        ("x = np.random.rand(3)", "rand()"),
        ("import random\nx = random.random()", "random()"),
        ("import time\nx = time.perf_counter()", "x differs"),
        ("def f():\n    global seen\n    seen = 1\nf()", "'seen' global"),
        ("def f():\n    yield 1\nlist(f())", "Define the generator outside of it"),
        ("x = next(numbers)", "'numbers', a builtins.generator"),
    ],
)
def test_what_cannot_run_again_is_refused_by_name(lab, program, named):
    names = {"lab": lab, "np": np, "numbers": (one for one in "ab")}
    with pytest.raises(ProgramError) as refused:
        lab.improve(program, namespace=names)
    assert named in str(refused.value)


def test_a_generator_that_is_given_is_copied_and_draws_on_where_it_was(lab):
    chance = np.random.default_rng(0)
    found = lab.improve("x = chance.random(3)", namespace={"lab": lab, "chance": chance})
    assert not found
    assert chance.random() == np.random.default_rng(0).random()


def test_an_exception_of_the_program_passes_unchanged(lab):
    with pytest.raises(ZeroDivisionError):
        lab.improve("1 / 0", namespace={"lab": lab})


@pytest.mark.parametrize("options", [{"seconds": -1}, {"memory": 0.5}, {"tolerance": -1.0}, {"seconds": "30"}])
def test_options_that_are_no_such_numbers_are_refused(lab, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        lab.improve("x = 1", namespace={}, **options)


def test_more_memory_than_allowed_is_not_kept(lab):
    found = lab.improve(MENDED["one_array_for_all"], lab, "bad", seconds=LONG, memory=1.0)
    assert not found
    assert any("as much memory" in one.why for one in found.left)


def test_the_time_that_it_has_is_kept(lab):
    found = lab.improve(MENDED["three_loops"], lab, "bad", seconds=0)
    assert not found
    assert "Not all was tried in 0 s: give it more, lab.improve(..., seconds=60)." in found.notes


def test_comments_and_lines_that_did_not_change_stay_as_they_were(lab):
    text = (
        "x = 1  # one\n\n# two\nfor n in range(3):  # three\n    spin(lab, 9_000, stream='a')  # four\n    lab.synchronize()\n"
    )
    lab.stream("a")
    found = lab.improve(text, namespace={"lab": lab, "spin": spin})
    assert "x = 1  # one\n\n# two\nfor n in range(3):  # three\n    spin(lab, 9_000, stream='a')  # four" in found.source


def test_a_page_has_both_runs(lab, text, tmp_path):
    found = lab.improve(text, namespace={"lab": lab, "spin": spin})
    page = found.page(tmp_path / "both.html").read_text(encoding="utf-8")
    before, after = found.before_ns[-1], found.after_ns[-1]
    assert f"wall time {format_ns(before)} → {format_ns(after)} ({found.speedup:.2f}× faster)" in page
