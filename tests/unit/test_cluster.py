"""A cluster: calls and cells on all engines, their records, and what becomes of engines that fail or die."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from IPython.utils.capture import capture_output

import gpustreamlab as gsl
from gpustreamlab import Cluster, Session, magics
from gpustreamlab._util.host import monotonic_clock_id
from gpustreamlab.analysis import format_ns
from gpustreamlab.cluster import ByEngine, Outcomes, _mirror, _worker
from gpustreamlab.cluster import cluster as _cluster
from gpustreamlab.cluster._engines import start_workers
from gpustreamlab.cluster._mirror import Mirror
from gpustreamlab.cluster._outcomes import show_printed
from gpustreamlab.cluster._worker import Outcome
from gpustreamlab.draw import plan_groups
from gpustreamlab.errors import ClusterError, MissingExtraError, OptionError, SessionClosedError, StreamNotFoundError
from gpustreamlab.recorder import Recorder
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.workloads import spin
from tests.helpers.fake_engines import FakeEngines
from tests.helpers.shells import one_shell

STEPS = 200


def steps(lab, count=STEPS):
    lab.stream("compute")
    for _ in range(count):
        with lab.on("compute", "step"):
            lab.xp.ones(4)
    return lab.device.simulated


def done_steps(lab, count):
    steps(lab, count)
    lab.synchronize()


@pytest.fixture
def home(monkeypatch):
    """An engine in this process."""
    fresh = _worker._Home()
    monkeypatch.setattr(_worker, "_home", fresh)
    _worker.begin("me", "sim", {"host": False}, 0)
    yield fresh
    _worker.end("me")


@pytest.fixture
def mirror(home):
    return Mirror("0", _worker.look(), ring_size=100_000)


def follow(mirror):
    """Read until nothing is new."""
    while (changes := _worker.read(mirror.arrived)).data:
        mirror.take(changes.data, changes.place)


def test_a_mirror_has_what_the_session_recorded(home, mirror):
    lab = home.session
    lab.partition(left=32, right="rest")
    steps(lab, 50)
    follow(mirror)
    lab.stream("late", partition="left").wait(lab.stream("compute").record())
    with lab.on("late", "last"):
        lab.xp.ones(4)
    lab.recording.mark("done")
    lab.synchronize()
    follow(mirror)
    told, own = mirror.trace(), lab.trace
    for column in ("start_ns", "end_ns", "queued_ns", "name", "kind", "parent", "partition", "lane"):
        assert getattr(told, column).tolist() == getattr(own, column).tolist(), column
    assert told.names == own.names
    assert [lane.name for lane in told.lanes] == [f"0:{lane.name}" for lane in own.lanes]
    assert told.edges.source.tolist() == own.edges.source.tolist()
    assert told.markers == own.markers
    assert told.layouts == own.layouts


def test_an_answer_that_was_lost_is_told_again_and_nothing_twice(home, mirror):
    lab = home.session
    steps(lab, 30)
    lab.synchronize()
    _worker.read(mirror.arrived)  # this answer never arrives
    steps(lab, 30)
    lab.synchronize()
    follow(mirror)
    _worker.read(mirror.arrived)
    steps(lab, 30)
    lab.synchronize()
    follow(mirror)
    assert len(mirror.trace().where(name="step")) == 90
    assert mirror.dropped_count == 0


def test_a_later_client_finds_everything_and_is_the_one_that_closes_the_session(home, mirror):
    lab = home.session
    done_steps(lab, 20)
    follow(mirror)
    done_steps(lab, 20)
    assert _worker.begin("other", None, {}, 0).device == "H200"
    again = Mirror("0", _worker.look(), ring_size=100_000)
    for one in (again, mirror):
        follow(one)
        assert len(one.trace().where(name="step")) == 40
    _worker.end("me")
    assert home.session is lab
    _worker.end("other")
    assert (home.session, lab.state) == (None, "closed")


def test_a_mirror_is_read_by_places_as_a_recorder_is(home, mirror):
    steps(home.session, 20)
    home.session.synchronize()
    follow(mirror)
    first = mirror.changes()
    steps(home.session, 5)
    home.session.synchronize()
    follow(mirror)
    second = mirror.changes(first.place)
    assert (first.row_count, second.row_count) == (40, 10)
    assert mirror.changes(second.place).row_count == 0
    assert mirror.changes(until=first.place).row_count == 40
    home.session.clear()
    steps(home.session, 3)
    home.session.synchronize()
    follow(mirror)
    assert second.is_capturing
    assert mirror.trace().metadata.capture_windows[-1][1] >= mirror.trace().end_ns.max()
    third = mirror.changes(second.place)
    assert third.is_anew
    assert len(mirror.trace().where(name="step")) == 3


def test_what_makes_room_before_it_is_read_is_counted(home):
    small = Mirror("0", _worker.look(), ring_size=30)
    steps(home.session, 20)
    home.session.synchronize()
    follow(small)
    assert len(small.trace()) == 30
    assert small.trace().metadata.dropped_spans == small.dropped_count == 10


def test_what_an_engine_has_no_room_for_while_nobody_reads_is_counted_and_nothing_else(engines, monkeypatch):
    monkeypatch.setattr(_worker, "Session", partial(Session, ring_size=50))
    with Cluster(engines, backend="sim", capture="ranges") as lab:
        for _ in range(4):  # the rings are full again and again, and nothing is lost
            lab.run(done_steps, 50, on="0,1")
            lab.synchronize()
        traces = lab.trace, lab._joined.trace()
        assert [(len(trace), trace.metadata.dropped_spans) for trace in traces] == [(400, 0)] * 2
        lab._follower.stop()
        lab.run(done_steps, 130, on="0")
        lab.synchronize()
        assert [status.missed_count for status in lab.engines] == [80, 0, 0, 0]
        traces = lab.trace, lab._joined.trace()
        assert [(len(trace), trace.metadata.dropped_spans) for trace in traces] == [(450, 80)] * 2


@pytest.fixture
def shell():
    with one_shell() as made:
        yield made


def cell(source, *, lines_above=0, **options):
    return _worker.unpack(_worker.call("1", _worker.run_cell, source, "compute", "cell", options, lines_above))


def test_a_cell_prints_returns_its_last_expression_and_keeps_its_variables(home, shell):
    first = cell("x = 20\nprint('hello')\nx + 1")
    assert (first.value, first.text, first.error) == ("21", "hello\n", "")
    assert cell("x * 2", sync=True).value == "40"
    assert cell("x * 2;").value is None
    failed = cell("y = 1\ny / 0", lines_above=1)
    assert failed.error == "ZeroDivisionError: division by zero"
    assert failed.traceback.splitlines()[1:3] == ['  File "<cell>", line 3, in <module>', "    y / 0"]
    assert cell("x = = 1").error == "SyntaxError: invalid syntax (<cell>, line 1)"
    assert [home.session.trace.names[code] for code in home.session.trace.where(kind="range").name].count("cell") == 4


def test_what_a_cell_displays_and_returns_is_shown_as_in_a_notebook(home, shell, capsys):
    class Drawn:
        def _repr_html_(self):
            return "<b>drawn</b>"

    shell.user_ns["drawn"] = Drawn()
    found = cell("print('10%\\r20%\\nbefore')\ndisplay(drawn)\nprint('behind')\nlist('ab')")
    assert [data["text/html"] for data in found.shown] == ["<b>drawn</b>"]
    show_printed("0", found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["[0] 20%", "[0] before", "[0] behind"]
    assert "Drawn at 0x" in lines[3]
    outcomes = Outcomes({"0": found, "1": Outcome("a < b", "printed"), "2": Outcome(None, "printed")})
    assert repr(outcomes) == "[0] ['a', 'b']\n[1] a < b"
    assert outcomes.texts == {"0": "10%\r20%\nbefore\nbehind\n", "1": "printed", "2": "printed"}
    with capture_output() as shown:
        assert shell.display_formatter.format(Outcomes({"2": Outcome()})) == ({}, {})
    assert shown.stdout + shown.stderr == ""


def test_what_a_cell_prints_is_bounded(home, shell, monkeypatch):
    monkeypatch.setattr(_worker, "MOST_PRINTED", 100)
    found = cell("for _ in range(1000): print('12345678')")
    assert found.text.startswith("12345678\n" * 11 + "1\n… it has printed more than 100 characters")
    assert len(found.text) < 250


def test_what_cannot_be_sent_is_an_error_of_the_call_alone(home):
    failed = _worker.call("1", lambda lab: lab.stream("compute"))
    assert failed.error.startswith("ClusterError: What it returned, of type Stream, cannot be sent to the client.")
    assert failed.traceback == ""
    assert _worker.unpack(_worker.call("2", lambda lab: lab.device.sm_count)).value == 132
    broken = _worker.unpack(Outcome(b"no pickle"))
    assert broken.error.startswith("What it returned cannot be read here: UnpicklingError")


def test_a_call_that_was_taken_back_before_it_began_does_nothing(home):
    done = []
    _worker.interrupt("7")
    assert _worker.call("7", lambda _: done.append(7)).error == "KeyboardInterrupt: it was taken back before it began"
    assert _worker.unpack(_worker.call("8", lambda _: done.append(8))).error == ""
    assert done == [8]


def test_an_interrupt_is_over_when_its_call_ends(home):
    def work(_):
        try:
            _worker.interrupt("9")
            threading.Event().wait(100)
        except KeyboardInterrupt:
            return "caught"

    found = []
    thread = threading.Thread(target=lambda: found.extend([_worker.call("9", work), _worker.call("10", lambda _: 8)]))
    thread.start()
    thread.join()
    assert [(outcome.value, outcome.error) for outcome in map(_worker.unpack, found)] == [("caught", ""), (8, "")]


def print_slowly(text):
    for _ in range(10):
        print(text)
        time.sleep(0.01)


def test_calls_of_two_threads_run_one_after_the_other_and_print_apart(home):
    found = {}
    both = threading.Barrier(2)

    def work(number):
        both.wait()
        found[number] = _worker.call(number, lambda _: print_slowly(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in "12"]
    before = sys.stdout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: outcome.text for number, outcome in found.items()} == {"1": "1\n" * 10, "2": "2\n" * 10}
    assert sys.stdout is before


def test_results_of_engines_show_a_line_each_and_printed_all_of_it(home):
    lab = home.session
    layout = lab.partition(left=32, right="rest")
    steps(lab, 3)
    lab.synchronize()
    shown = ByEngine({"0": layout, "1": lab.trace.overlap(), "2": lab.trace, "3": lab.memory.hazards()})
    lines = repr(shown).splitlines()
    assert [line[:6] for line in lines] == ["[0] La", "[1] Ov", "[2] Tr", "[3] Ha"]
    assert lines[0] == "[0] Layout: left 32 SMs (asked for 32), right 100 SMs (asked for 100)"
    assert shown[2] is shown["2"]
    same = ByEngine({"0": lab.memory.hazards(), "1": lab.memory.hazards(), "2": lab.trace.overlap()})
    assert str(same) == f"[0, 1] {lab.memory.hazards()}\n\n[2] {lab.trace.overlap()}"
    assert str(ByEngine({"0": 1, "1": 1})) == "[0] 1\n[1] 1"


def test_a_wire_span_takes_few_bytes(home, mirror):
    steps(home.session, 4_000)
    home.session.synchronize()
    follow(mirror)
    assert mirror.span_count == 8_000
    assert mirror.received_bytes / mirror.span_count < 16


@pytest.mark.parametrize(
    ("arguments", "words"), [((), "a client, or a number"), ((3,), "no client of a cluster"), ((None, 0), "1 or more")]
)
def test_what_is_no_cluster_is_refused(arguments, words):
    with pytest.raises(OptionError, match=words):
        Cluster(*arguments[:1], workers=arguments[1] if len(arguments) > 1 else None)


def test_workers_that_are_started_here_take_orders_and_code_of_no_other_user(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / "dask-scratch-space"  # another user makes Dask's folder first
    taken.mkdir()
    without_key = ssl.create_default_context()
    without_key.check_hostname = False
    without_key.verify_mode = ssl.CERT_NONE
    workers = start_workers(1)
    try:
        for address in (workers._client.scheduler.address, *workers.engines()):
            plain = socket.create_connection((urlsplit(address).hostname, urlsplit(address).port))
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"), plain, without_key.wrap_socket(plain) as secret:
                secret.recv(1)
        (theirs,) = workers._client.run(lambda: sys.path).values()
        assert not [path for path in [*sys.path, *theirs] if path.startswith(str(taken))]
    finally:
        workers.close()
    assert [*tmp_path.iterdir()] == [taken]


def test_without_cryptography_no_worker_is_started_and_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtraError, match=r"workers=1.*cryptography.*pip install .*\[dask\]"):
        Cluster(workers=1)


@pytest.fixture
def engines(monkeypatch):
    for name, seconds in {"LOOK_EVERY_S": 0.05, "READ_EVERY_S": 0.05, "TOLD_LATELY_S": 0.1}.items():
        monkeypatch.setattr(_mirror, name, seconds)
    made = FakeEngines(4)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fake: fake.facts.update({"2": {"version": "0.0.1"}}), r"2: it has gpustreamlab 0\.0\.1"),
        (
            lambda fake: fake.raises.update({"2": ModuleNotFoundError("No module named 'gpustreamlab.cluster'")}),
            "2: gpustreamlab is not installed there",
        ),
        (lambda fake: fake.facts.update({name: {"simulated": False} for name in "013"}), "2: it has no usable GPU"),
        (lambda fake: fake.deaf.add("2"), "2: TimeoutError: no answer"),
        (lambda fake: fake.there.clear(), "no engine"),
        (
            lambda fake: fake.facts.update({name: {"process": "one"} for name in "13"}),
            "Engines 1, 3 are threads of one process",
        ),
        (
            lambda fake: fake.raises.update({name: OSError("far") for name in "023"}),
            r"3 of 4 engines .*\n  0, 2, 3: OSError: far",
        ),
        (lambda fake: setattr(fake, "engines", lambda: 1 / 0), "does not say which engines there are"),
    ],
)
def test_engines_that_cannot_be_used_are_named(engines, change, words, monkeypatch):
    monkeypatch.setattr(_mirror, "BEGIN_S", 0.3)
    change(engines)
    with pytest.raises(ClusterError, match=words):
        Cluster(engines, backend="sim")


def test_engines_that_are_refused_keep_no_session(engines):
    engines.facts["1"] = {"simulated": False}
    with pytest.raises(ClusterError, match="it has no usable GPU, and others have one"):
        Cluster(engines)
    assert [engines.home(name).session for name in "0123"] == [None] * 4


def test_a_session_of_another_client_on_another_device_is_no_silent_fallback(engines, monkeypatch):
    monkeypatch.setattr(engines, "close", lambda: None)  # the client stays its owner's
    with Cluster(engines, backend="sim") as lab:
        with pytest.raises(ClusterError, match=r"0, 1, 2, 3: another client has a session there, on H200 \(simulated\)"):
            Cluster(engines, backend="cuda")
        assert lab.run(steps, 1)["0"]


def test_a_session_that_cannot_be_opened_says_why_once(engines):
    with pytest.raises(ClusterError, match=r"\n  0, 1, 2, 3: There is no backend 'simm'\. Did you mean 'sim'\?"):
        Cluster(engines, backend="simm")
    with pytest.raises(OptionError, match="no option 'captur'. Did you mean 'capture'"):
        Cluster(engines, captur="kernels")


def test_calls_that_make_no_sense_are_refused_before_they_are_sent(engines):
    with Cluster(engines, backend="sim") as lab:
        with pytest.raises(OptionError, match="takes a function"):
            lab.run("step")
        with pytest.raises(OptionError, match="takes the text of a cell"):
            lab.run_cell(steps, "compute")
        with pytest.raises(OptionError, match=r"no engine '7\.5'"):
            lab.run(steps, on=7.5)
        with pytest.raises(OptionError, match="Did you mean 'all'"):
            lab.run(steps, on="al")
        with pytest.raises(OptionError, match="No engine is named"):
            lab.run(steps, on=[])
        uses_it = eval("lambda session: the_lab.names", {"the_lab": lab})
        with pytest.raises(OptionError, match="uses 'the_lab', which is this cluster"):
            lab.run(uses_it)
        with pytest.raises(
            OptionError, match=r"calls function\(session, \*args\), and this one is .*\(session, rank\): missing"
        ):
            lab.run(lambda session, rank: rank)
    assert repr(lab).startswith("<Cluster: 4 engines, closed>")
    assert len(lab.timeline().trace.where(kind="range")) == 0
    with pytest.raises(SessionClosedError, match="This cluster is closed"):
        lab.run(steps)


def test_an_engine_that_never_answers_beside_its_work_is_named(engines, monkeypatch):
    monkeypatch.setattr(_cluster, "ANSWER_S", 0.1)
    engines.lost_answers = 1_000
    with pytest.raises(ClusterError, match="Engine 0, 1, 2, 3 does not answer beside its work"):
        Cluster(engines, backend="sim")


def test_an_engine_that_goes_as_it_is_asked_is_its_answer(engines, monkeypatch):
    with Cluster(engines, backend="sim") as lab:
        asked = engines.run

        def run(key, function, *args):
            if key == "key2" and function is _worker.call:
                del engines.there[key]
                raise KeyError(key)
            return asked(key, function, *args)

        monkeypatch.setattr(engines, "run", run)
        monkeypatch.setattr(_mirror, "TOLD_LATELY_S", 0)
        with pytest.raises(ClusterError, match="1 of 4 engines") as caught:
            lab.run(steps, 3)
        assert caught.value.failures == {"2": "KeyError: 'key2'"}
        assert list(caught.value.results) == ["0", "1", "3"]


def test_equal_failures_are_told_once(engines):
    with Cluster(engines, backend="sim") as lab:
        lab.run(raise_on, "never")
        with pytest.raises(ClusterError) as caught:
            lab.run(raise_on, "H200")
    head, *lines = str(caught.value).splitlines()
    assert head == "It failed on all 4 engines."
    assert [lines[0], lines[-1]] == ["[0, 1, 2, 3] Traceback (most recent call last):", "ValueError: on H200"]
    assert not any("gpustreamlab/cluster" in line for line in lines)
    assert list(caught.value.failures) == ["0", "1", "2", "3"]


def raise_on(lab, name):
    if lab.device.name == name:
        raise ValueError(f"on {name}")


def test_a_cell_of_the_notebook_on_engines_awaits_and_shows_what_came_back(engines, shell):
    magics.load_ipython_extension(shell)
    shell.user_ns["cluster"] = lab = Cluster(engines, backend="sim")
    try:
        with capture_output() as shown:
            found = shell.run_cell("%%gpustream c --on 0, 2\nimport asyncio\nawait asyncio.sleep(0, 5)", store_history=True)
        assert dict(found.result or {}) == {"0": "5", "2": "5"}, shown.stdout + shown.stderr
        with capture_output():
            assert not any(shell.run_cell("%%gpustream compute --on all\npass", store_history=True).result.values())
        with capture_output() as shown:
            shell.run_cell("%%gpustream compute --on 3\nprint('quiet')\n1;", store_history=True)
        assert (shown.stdout, shown.outputs) == ("[3] quiet\n", [])
        with capture_output() as shown:
            failed = shell.run_cell("%%gpustream compute --on 1\nprint('till here')\nnothing", store_history=True)
        assert isinstance(failed.error_in_exec, ClusterError)
        told = shown.stdout + shown.stderr
        assert "line 3, in <module>" in told
        assert "NameError: name 'nothing' is not defined" in told
        assert told.count("till here") == 1
        assert "_run_all" not in told  # frames of this process tell nothing of what failed there
    finally:
        lab.close()
        magics.unload_ipython_extension(shell)
        loop = _worker._loop()
        loop.call_soon_threadsafe(loop.stop)
        _worker._loop.cache_clear()


def test_answers_that_are_lost_are_asked_for_again(engines, monkeypatch):
    monkeypatch.setattr(_mirror, "SILENT_S", 0.05)
    with Cluster(engines, backend="sim") as lab:
        engines.lost_answers = 12
        lab.run(steps, 40)
        until(lambda: engines.lost_answers == 0)
        lab.synchronize()
        assert [len(trace.where(name="step")) for trace in lab.traces.values()] == [40] * 4
        assert [status.missed_count for status in lab.engines] == [0] * 4


def test_an_engine_that_does_not_answer_is_silent_and_the_others_go_on(engines, monkeypatch):
    monkeypatch.setattr(_mirror, "SILENT_S", 0.5)
    with Cluster(engines, backend="sim", host=False) as lab:
        engines.deaf.add("1")
        lab.run(done_steps, 5, on="0,2,3")
        until(lambda: lab.engines[3].span_count == 10)
        until(lambda: [status.name for status in lab.engines if status.state == "silent"] == ["1"])
        engines.deaf.clear()
        lab.run(done_steps, 5, on="1")
        until(lambda: lab.engines[1].span_count == 10)
        assert lab.lost == ()


def test_a_cluster_whose_client_was_closed_first_ends_at_once(engines, monkeypatch):
    with Cluster(engines, backend="sim") as lab:
        lab.run(done_steps, 3)
        lab.synchronize()
        with monkeypatch.context() as closed:
            closed.setattr(engines, "engines", lambda: 1 / 0)
            closed.setattr(lab._follower, "drain", lambda _: pytest.fail("it was waited for"))
            lab.close()
        assert len(lab.trace.where(name="step")) == 12


def test_an_engine_that_is_silent_is_told_too_that_its_client_is_gone(engines):
    with Cluster(engines, backend="sim") as lab:
        lab._follower.stop()
        for mirror in lab._mirrors:
            mirror.silent_s = 2 * _mirror.SILENT_S
    assert [engines.session(name) for name in "0123"] == [None] * 4


def test_two_clusters_on_the_same_engines_both_have_all_and_the_later_one_closes_the_sessions(engines, monkeypatch):
    monkeypatch.setattr(engines, "close", lambda: None)  # the client stays its owner's
    with Cluster(engines, backend="sim") as first:
        first.run(steps, 10)
        with Cluster(engines, backend="sim") as second:
            second.run(steps, 10)
            second.synchronize()
            first.synchronize()
            counts = [[len(trace.where(name="step")) for trace in lab.traces.values()] for lab in (first, second)]
            assert counts == [[20] * 4] * 2
            first.close()
            assert engines.session("0").state == "open"
    assert engines.session("0") is None


def test_real_clocks_put_engines_on_one_time_with_a_bound(engines):
    engines.facts = {name: {"simulated": False} for name in "0123"}
    ahead_ns = {"0": 0, "1": 5_000_000, "2": -7_000_000, "3": 0}
    begin_ns = time.monotonic_ns()
    engines.clock_ns = lambda name: time.monotonic_ns() - begin_ns - ahead_ns[name]
    with Cluster(engines, backend="sim") as lab:
        lab.run(steps, 3)
        lab.synchronize()
        starts = {name: int(trace.start_ns[0]) for name, trace in lab.traces.items()}
        trace = lab.trace
        placed = {name: int(trace.where(stream=f"{name}:compute").start_ns[0]) for name in starts}
        for name, before in starts.items():
            assert abs(placed[name] - placed["0"] - (before - starts["0"]) - ahead_ns[name]) < trace.metadata.clock_error_ns
        again = gsl.merge([*lab.traces.values()])  # as if they had been saved, and read later
        assert again.start_ns.tolist() == gsl.merge([*lab.traces.values()], clocks=lab._offsets()).start_ns.tolist()
        assert len(lab._joined.trace()) == len(trace)
        assert 0 < trace.metadata.clock_error_ns < 100_000_000


LATE_S = 0.2
"""How late an answer is: longer than a machine under load may keep a thread from going on."""


def test_an_engine_of_this_machine_says_when_it_told_its_time_however_long_the_answer_takes(engines, monkeypatch):
    engines.facts = {"0": {"simulated": False, "clock": monotonic_clock_id()}}
    del engines.there["key1"], engines.there["key2"], engines.there["key3"]
    engines.clock_ns = lambda _name: pytest.fail("a ping was sent")
    begin_ns = time.monotonic_ns()
    monkeypatch.setattr(_worker, "told_ns", lambda: time.monotonic_ns() - begin_ns)
    answered = engines.aside

    def slow(key, function, *args):
        answer = answered(key, function, *args)
        if function is _worker.told_between:
            time.sleep(LATE_S)
        return answer

    monkeypatch.setattr(engines, "aside", slow)
    with Cluster(engines, backend="sim") as lab:
        (offset,) = lab._offsets()
        assert 0 < offset.error_at(np.array([0]))[0] < LATE_S * 1e9 / 2
        now_ns = time.monotonic_ns()
        assert abs(int(offset.shift(np.array([now_ns - begin_ns]))[0]) - now_ns) < LATE_S * 1e9 / 2


def test_ctrl_c_interrupts_the_engines_that_still_work_and_says_which_go_on(engines, monkeypatch, capsys):
    real = _cluster._awaited
    with Cluster(engines, backend="sim") as lab, monkeypatch.context() as patched:
        patched.setattr(_cluster, "_awaited", interrupt_once(real))
        with pytest.raises(KeyboardInterrupt, match=r"Stopped here and on the engines\."):
            lab.run(lambda _: print_slowly("on"), on=[0, 2])
        assert engines.interrupted == []
        lines = capsys.readouterr().out.splitlines()
        assert {name: lines.count(f"[{name}] on") for name in "0123"} == {"0": 10, "1": 0, "2": 10, "3": 0}
        patched.setattr(_cluster, "_awaited", interrupt_once(real))
        engines.deaf.add("2")
        patched.setattr(_cluster, "STOP_S", 0.1)
        with pytest.raises(KeyboardInterrupt, match="Engine 2 goes on"):
            lab.run(steps, 3, on=[0, 2])
        assert engines.interrupted == ["2"]
        engines.deaf.clear()


def interrupt_once(real):
    turns = iter([KeyboardInterrupt])

    def awaited(answers):
        for error in turns:
            raise error
        return real(answers)

    return awaited


def test_stragglers_and_hazards_are_told_by_engine(engines):
    with Cluster(engines, backend="sim") as lab:
        lab.run(spins, 1_000_000, on="0,1,3")
        lab.run(spins, 3_000_000, on="2")
        lab.synchronize()
        found = lab.trace.stragglers()
        assert found.groups == ("0", "1", "2", "3")
        assert {found.groups[place] for place in found.names[0].last} == {"2"}
        assert [len(found.hazards) for found in lab.hazards().values()] == [0, 0, 0, 0]


def race(lab):
    lab.stream("first"), lab.stream("last")
    with lab.on("first", "produce"):
        x = lab.xp.ones(1 << 20)
    with lab.on("last", "take"):
        x + 1
    lab.synchronize()


def test_hazards_and_reasons_of_engines_say_what_to_type_there(engines):
    with Cluster(engines, backend="sim") as lab:
        lab.run(race)
        lab.synchronize()
        text = str(lab.hazards())
        assert text.startswith("[0, 1, 2, 3] Hazards: 1 hazard (read-after-write)")
        assert "lab.stream('last').wait(lab.stream('first'))" in text
        assert lab._newest_hazard_ns() > 0
        notes = {note.stream: note for note in lab.trace.notes}
        assert list(notes) == ["0:last", "1:last", "2:last", "3:last"]
        (take,) = lab.trace.where(stream="2:last", name="take").start_ns
        assert notes["2:last"].time_ns == take
        assert notes["2:last"].fix == "Put lab.stream('last').wait(lab.stream('first')) before 'take' (add)."
        lab.run(spins, 1_000_000, on=3)
        lab.synchronize()
        assert list(lab.explain()) == ["0", "1", "2", "3"]
        assert list(lab.explain("first", "last")["1"].streams) == ["first", "last"]
        assert list(lab.explain("2:first", "2:last")) == ["2"]
        assert list(lab.explain("compute")) == ["3"]
        with pytest.raises(StreamNotFoundError, match="no stream, range or kernel 'nothing'"):
            lab.explain("nothing")
        lab.clear()
        assert lab.trace.notes == ()


def test_simulated_engines_overlap_within_each_and_no_time_of_two_is_compared(engines):
    with Cluster(engines, backend="sim") as lab:
        lab.run(race)
        lab.synchronize()
        with pytest.raises(OptionError, match=r"one of lab\.traces of the cluster, or trace\.where\(device=0\)\.overlap\(\)"):
            lab.trace.overlap()
        alone = lab.trace.where(device=2)
        assert alone.overlap().common_ns.tolist() == lab.traces["2"].overlap().common_ns.tolist()
        apart = "times of two engines cannot be compared"
        assert [apart in str(trace.metadata.missing) for trace in (lab.trace, alone)] == [True, False]
        shown = [LiveFeed(journal).snapshot().facts["tables"]["header"] for journal in (lab._joined, lab._mirrors[2])]
        assert [header["has_common_time"] for header in shown] == [False, True]


def test_what_only_sessions_of_engines_have_says_how_to_ask_there(engines):
    with Cluster(engines, backend="sim") as lab:
        with pytest.raises(
            AttributeError, match=r"Use the session of an engine: in a cell of %%gpustream NAME --on all, lab\.capture"
        ):
            lab.capture("kernels")
        with pytest.raises(AttributeError, match="'Cluster' object has no attribute 'nothing'"):
            lab.nothing  # noqa: B018


def spins(lab, duration_ns):
    lab.stream("compute")
    with lab.on("compute", "spin"):
        spin(lab, duration_ns)


@pytest.mark.parametrize("is_simulated", [True, False], ids=["no common time", "one time"])
def test_a_lost_engine_is_marked_where_its_spans_end_and_told_of_in_live_and_saved_timelines(engines, is_simulated):
    if not is_simulated:
        engines.facts = {name: {"simulated": False} for name in "0123"}
    with Cluster(engines, backend="sim") as lab:
        lab.run(done_steps, 5)
        lab.synchronize()
        del engines.there["key2"]
        (lost,) = until(lambda: lab.lost)
        end_ns = int(lab.traces["2"].end_ns.max())
        whole, live = lab.trace, lab._joined.trace()
        for trace in (whole, live):
            (mark,) = trace.markers
            assert re.fullmatch(r"engine 2 lost [\d:]{8} UTC", mark.text)
            assert mark.time_ns == trace.where(stream=["2:compute", "2:host: MainThread"]).end_ns.max()
            text = trace.metadata.missing[-1]
            into = "" if is_simulated else r", [\d.,]+ \w+ into the trace"  # as long as this machine is up
            told = rf"Engine 2 was lost at [\d:]{{8}} UTC{into}: its process is gone\. Its spans up to [\d.]+ \w+ are shown\."
            assert re.fullmatch(told, text)
        if is_simulated:
            assert (mark.time_ns, f"up to {format_ns(end_ns - whole.start_ns.min())} are" in text) == (end_ns, True)
        assert lost.name == "2"
        lab.clear()
        lab.run(done_steps, 7)
        lab.synchronize()
        for trace in (lab.trace, lab._joined.trace()):
            assert len(trace.where(name="step")) == 21
            assert trace.markers == ()
            assert trace.metadata.missing[-1].endswith("its process is gone. There is no span of it.")
        assert lab.trace.stragglers().groups == ("0", "1", "3")


def test_engines_of_several_hosts_are_grouped_by_host_in_live_and_saved_timelines(engines):
    engines.facts = {name: {"host": host} for name, host in zip("0123", ["near", "far", "near", "far"], strict=True)}
    with Cluster(engines, backend="sim", host=False) as lab:
        lab.run(done_steps, 2)
        lab.synchronize()
        feed = LiveFeed(lab._joined)
        feed.refresh()
        live = [group["label"] for group in feed.snapshot().facts["tables"]["groups"]]
        assert live == [group.label for group in plan_groups(lab.trace)]
        assert [label.partition(" · ")[0] for label in live] == ["near / GPU 0", "near / GPU 2", "far / GPU 1", "far / GPU 3"]


def test_right_behind_a_run_the_trace_has_what_it_did(engines):
    with Cluster(engines, backend="sim") as lab:
        for told in (1, 2):
            lab.run(steps)
            assert len(lab.trace.where(name="step")) == 4 * STEPS * told
            assert lab.trace.metadata.pending_spans == 0
        with pytest.raises(ClusterError):
            lab.run(failing)
        assert len(lab.trace.where(name="step")) == 4 * (2 * STEPS + 1)
        lab.run_cell("x = lab.xp.ones(4)", "compute", label="cell", sync=True)
        assert len(lab.traces["0"].where(name="cell")) == 1


def failing(lab):
    steps(lab, 1)
    raise ValueError("on purpose")


def test_ranges_that_have_not_ended_are_told_of_until_their_engine_is_lost(engines, monkeypatch):
    monkeypatch.setattr(Recorder, "rest", bool)  # as work of a GPU, which may end long behind the call
    with Cluster(engines, backend="sim") as lab:
        lab.run(steps, 3)
        lab.synchronize()  # else a step may be the one that is told as open
        lab.run(spins, 10**9)
        lab.run(opened, on="1")
        feed = LiveFeed(lab._joined)
        until(lambda: [[count for *_, count in mirror.unended()] for mirror in lab._mirrors] == [[1], [2], [1], [1]])
        feed.refresh()
        facts = feed.snapshot().facts
        names, lanes = facts["tables"]["names"], [lane["name"] for lane in facts["tables"]["lanes"]]
        told = [(lanes[lane], names[name], count) for lane, name, _, count in facts["open"]]
        assert told == [("0:compute", "spin", 1), ("1:compute", "spin", 2), ("2:compute", "spin", 1), ("3:compute", "spin", 1)]
        assert all(0 <= since < facts["now_ns"] for _, _, since, _ in facts["open"])
        del engines.there["key3"]
        until(lambda: lab.lost)
        assert [lanes[lane] for lane, *_ in feed.refresh().facts["open"]] == ["0:compute", "1:compute", "2:compute"]
        lab.run(closed, on="1")
        lab.synchronize()
        assert feed.refresh().facts["open"] == []


selections = []


def opened(lab):
    selections.append(lab.on("compute", "long"))
    selections[0].__enter__()


def closed(lab):
    selections.pop().__exit__(None, None, None)


def until(told, limit_s=100):
    """Wait until something holds."""
    end_s = time.monotonic() + limit_s
    while not (found := told()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return found


@contextmanager
def on_dask(_patch):
    with Cluster(workers=2, backend="sim") as lab:
        yield lab


@contextmanager
def on_ipyparallel(patch):
    import ipyparallel
    from jupyter_client.session import Session as Messages

    def late_number(messages):
        """Let another thread in between reading the number and counting it up, as happens now and then."""
        number = messages.message_count
        time.sleep(0.003)
        messages.message_count = number + 1
        return f"{messages.session}_{number}"

    patch.setattr(Messages, "msg_id", property(late_number))
    cluster = ipyparallel.Cluster(n=2, log_level=50)
    with cluster.start_and_connect_sync() as client:
        client.wait_for_engines(2, timeout=60)
        with Cluster(client, backend="sim") as lab:
            yield lab
    with pytest.raises(RuntimeError, match="The client is closed"):
        lab._engines.engines()
    cluster.stop_cluster_sync()


def wait_for(flag):
    while not Path(flag).exists():
        time.sleep(0.02)


def sleepy(lab, flag):
    Path(flag).with_name(f"asleep-{os.getpid()}").touch()
    wait_for(flag)
    return "awake"


def arrive_while_a_cell_works(lab, flag):
    source = f"""from tests.unit.test_cluster import done_steps, wait_for
done_steps(lab, 200)
wait_for({str(flag)!r})
print("over", end="")
20 + 1"""
    with ThreadPoolExecutor(1) as aside:
        found = aside.submit(lab.run_cell, source, "compute")
        until(lambda: all(status.span_count >= 400 for status in lab.engines))
        assert not found.done()
        flag.touch()
    assert dict(found.result()) == {"0": "21", "1": "21"}
    assert found.result().texts == {"0": "over", "1": "over"}


def stop_by_ctrl_c(lab, folder):
    for source in ("n = 0\nwhile True:\n    n += 1\n    if n == 101: tell()", "tell()\nawait asyncio.sleep(1000)"):
        begun = [folder / f"begun-{status.pid}" for status in lab.engines]
        tell = f"import asyncio, os\ndef tell(): open({str(folder)!r} + f'/begun-{{os.getpid()}}', 'w').close()\n"
        with ThreadPoolExecutor(1) as aside:
            aside.submit(ring_once_begun, begun)
            with pytest.raises(KeyboardInterrupt, match=r"Stopped here and on the engines\."):
                lab.run_cell(tell + source, "compute")
        for file in begun:
            file.unlink()
    assert dict(lab.run_cell("n > 100", "compute")) == {"0": "True", "1": "True"}


def ring_once_begun(begun):
    until(lambda: all(file.exists() for file in begun))
    os.kill(os.getpid(), signal.SIGINT)


def die(lab, flag):
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(lab.run, sleepy, str(flag))
        until(lambda: len([*flag.parent.glob("asleep-*")]) == 2)
        killed_unix_ns = time.time_ns()
        os.kill(lab.engines[1].pid, signal.SIGKILL)
        until(lambda: lab.lost)
        flag.touch()
    error = waiting.exception()
    assert isinstance(error, ClusterError)
    assert ([*error.failures], dict(error.results)) == (["1"], {"0": "awake"})
    (lost,) = lab.lost
    assert lost.name == "1"
    assert killed_unix_ns < lost.lost_unix_ns < time.time_ns()
    trace = lab.trace
    assert len(trace.where(stream="1:compute"))
    assert "Engine 1 was lost at" in trace.metadata.missing[-1]
    assert "engine 1 lost " in trace.markers[-1].text


@pytest.mark.parametrize("start", [on_dask, on_ipyparallel])
def test_two_engines(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())  # noqa: PTH109
    monkeypatch.setattr(_cluster, "STOP_S", 60)  # on a slow machine it takes long until a cell has stopped
    with start(monkeypatch) as lab:
        assert lab.names == ("0", "1")
        lab.partition(left=32, right="rest")
        assert dict(lab.run(steps, on="1")) == {"1": True}
        lab.synchronize()
        counts = [[len(trace.where(kind=kind)) for trace in lab.traces.values()] for kind in ("range", "kernel")]
        assert counts == [[0, STEPS], [0, STEPS]]
        calls = [[trace.names[name] for name in trace.where(kind="host").name.tolist()] for trace in lab.traces.values()]
        # Of each the contexts and the wait; a stream. How often memory is allocated depends on how soon some comes back.
        assert [len(one) - one.count("cudaMalloc") for one in calls] == [3, STEPS + 4]
        lab.clear()
        arrive_while_a_cell_works(lab, tmp_path / "first")
        lab.synchronize()
        assert len(lab.trace.devices) == 2
        assert [lane.name for lane in lab.trace.lanes if lane.kind == "stream"] == ["0:compute", "1:compute"]
        assert [overlap.wall_ns > 0 for overlap in (trace.overlap() for trace in lab.traces.values())] == [True] * 2
        with pytest.raises(ClusterError, match="AssertionError: not me") as caught:
            lab.run_cell(f"import os\nassert os.getpid() != {lab.engines[1].pid}, 'not me'\n'fine'", "compute")
        assert ([*caught.value.failures], dict(caught.value.results)) == (["1"], {"0": "'fine'"})
        assert lab.run_cell("!echo there", "compute", on=1).texts["1"].split() == ["there"]
        lab.run_cell("import asyncio\ntask = asyncio.ensure_future(asyncio.sleep(0.01, 7))\nawait asyncio.sleep(0)", "compute")
        assert dict(lab.run_cell("await task", "compute")) == {"0": "7", "1": "7"}
        capsys.readouterr()
        lab.run_cell("from IPython.display import HTML\ndisplay(HTML('<b>drawn</b>'))", "compute", on=1)
        assert capsys.readouterr().out == "[1] <IPython.core.display.HTML object>\n"
        stop_by_ctrl_c(lab, tmp_path)
        die(lab, tmp_path / "second")
        assert lab.names == ("0",)
    assert len(lab.trace.where(stream="0:compute", name="step")) == 200
