"""Hazards of planted and clean programs on the simulated device: each is found, and nothing else."""

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import NotSimulatedError, OptionError
from gpustreamlab.typing import HazardKind, HazardMode
from tests.helpers.hazard_cases import CASES, COMPUTE_WAITS, double, upload
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.threads import run_all

OPTIONS = {"capture": "ranges"}
STREAMS = ("copy", "compute")


def only_row(lab):
    (row,) = lab.memory.hazards().hazards
    return row


@pytest.mark.parametrize("name", CASES)
def test_a_program_has_the_hazards_that_were_planted_and_with_waits_put_in_none(name):
    case = CASES[name]
    with Session("sim") as lab:
        kept = case.run(lab)
        result = lab.memory.hazards()
    assert sorted(hazard.kind.value for hazard in result.hazards) == sorted(case.found), str(result)
    assert bool(result) == bool(case.found)
    assert case.missing in [hazard.fix for hazard in result.hazards] or not case.found
    assert case.found or str(result).startswith("Hazards: No hazard in ")
    with Session("sim", hazards="wait") as lab:
        kept = case.run(lab)
        result, held_count = lab.memory.hazards(), lab.memory.held_count
    assert [row.kind.value for row in result.hazards] == ([] if case.waits_help else list(case.found))
    # Memory that is still used elsewhere is kept instead, so it is not handed out again.
    assert bool(result.wait_count) == bool(case.found) or held_count or not case.waits_help
    del kept


def test_waits_that_are_put_in_are_in_the_trace():
    with Session("sim", hazards="wait", capture="ranges") as lab:
        lab.stream("copy"), lab.stream("compute")
        weights = upload(lab)
        double(lab, weights, label="gemm")
        with lab.select("compute"):
            weights * 3
        with lab.on("compute", "unrelated"):
            pass
        assert lab.memory.held_count == 1  # the array that crossed, for as long as it is used
        lab.synchronize()
        trace, result = lab.trace, lab.memory.hazards()
    edges = trace.edges.select("wait")
    assert result.wait_count == len(edges) == 1
    assert [trace.names[trace.name[row]] for row in (edges.source[0], edges.target[0])] == ["upload", "gemm"]


def test_the_report_names_what_conflicts_and_the_missing_wait(lab):
    weights = upload(lab)
    for _ in range(3):
        double(lab, weights, label="gemm")
    result = lab.memory.hazards()
    (row,) = result.hazards
    found = row.kind, row.array, row.dtype, row.shape, row.hazard_count
    assert found == ("read-after-write", "weights", "float64", (1_024,), 3)
    assert (row.first.stream, row.first.range, row.first.work, row.first.order) == ("copy", "upload", "ones", 1)
    assert (row.second.stream, row.second.range, row.second.work, row.second.order) == ("compute", "gemm", "multiply", 2)
    assert (row.fix, row.where) == (COMPUTE_WAITS, "before 'gemm' (multiply)")
    assert (len(result), result.hazard_count, result.array_count) == (1, 3, 4)
    for shown in (str(result), result._repr_html_().replace("&#x27;", "'").replace("<wbr>", "")):
        assert all(words in shown for words in (COMPUTE_WAITS, "before 'gemm'", "weights #1"))
    assert repr(result) == "<Hazards: 3 hazards (read-after-write) in 7 accesses of 4 arrays>"
    frame = result.to_pandas()
    assert frame.shape == (1, 17)
    cells = frame.loc[0, ["kind", "first_stream", "second_range", "hazard_count"]].tolist()
    assert cells == ["read-after-write", "copy", "gemm", 3]


def test_explain_says_that_there_are_hazards_and_nothing_of_them_where_there_are_none():
    for wait, told in ((False, True), (True, False)):
        with Session("sim") as lab:
            copy, compute = map(lab.stream, STREAMS)
            x = upload(lab)
            if wait:
                compute.wait(copy)
            double(lab, x)
            lab.synchronize()
            assert ("Hazards were found, so results may be wrong" in str(lab.explain())) is told


def test_a_clean_program_says_what_was_watched_and_what_was_not(lab):
    lab.xp.ones(4) + 1
    clean = lab.memory.hazards()
    assert clean.to_pandas().shape == (0, 17)
    assert str(clean).splitlines()[0] == "Hazards: No hazard in 3 accesses of 2 arrays"
    assert "arrays of other libraries are not" in str(clean)
    assert any("What the host reads and writes is not seen" in line for line in clean.unwatched)
    assert all(len(line) <= 110 for line in str(clean).splitlines())


def test_a_session_that_watches_nothing_says_why():
    with Session("sim", hazards="off") as lab:
        lab.xp.ones(8) + 1
        result = lab.memory.hazards()
    assert (result.mode, bool(result)) == (HazardMode.OFF, False)
    assert "nothing was watched" in repr(result)
    assert 'Session(hazards="report")' in str(result)
    with Session(InstantBackend(), hazards="report") as lab:
        assert "does not report memory accesses" in str(lab.memory.hazards())


def test_of_two_sessions_on_one_device_one_watches():
    with Session("sim") as first, Session(first._backend) as second:
        second.xp.ones(3)
        assert "Another session watches this device" in str(second.memory.hazards())
        assert first.memory.hazards().access_count == 1
        first._accesses.close()
        with Session(first._backend) as third:
            third.xp.ones(3)
            assert third.memory.hazards().access_count == 1


def test_what_was_found_can_be_read_after_closing_and_names_closed_lanes(lab):
    x = upload(lab)
    double(lab, x)
    lab.stream("compute").close()
    for _ in range(20):
        lab.stream("another").close()
    lab.close()
    row = only_row(lab)
    assert (row.first.stream, row.second.stream) == ("copy", "compute")
    x.sim_values[:] = 3  # no sink is left behind
    assert lab._backend.driver.accesses is None


def test_arrays_from_before_the_watch_are_watched_from_their_first_use():
    backend = SimBackend()
    x = backend.xp.ones(8)
    with Session(backend) as lab:
        lab.stream("copy"), lab.stream("compute")
        with lab.on("copy", "fill"):
            x.fill(1)
        double(lab, x)
        assert only_row(lab).kind is HazardKind.READ_AFTER_WRITE


def test_the_lanes_that_wrote_an_array_last_are_known(lab):
    copy, compute = lab.stream("copy"), lab.stream("compute")
    x = upload(lab)
    writers = lab._accesses.writers
    assert writers(x) == writers(x[3:]) == (copy,)
    with lab.on("compute", "half"):
        x[:512] = 0
    assert writers(x[600:]) == (copy,)
    assert writers(x) == (copy, compute)
    assert writers("no array") is None
    assert writers(lab.xp.ones(3)) is None  # CUDA's NULL stream is no stream of the session
    lab.synchronize()
    assert writers(x) == ()


def test_a_stream_that_others_lend_is_named(lab):
    lender = lab._backend.create_stream()
    double(lab, upload(lab), lender)
    row = only_row(lab)
    assert row.second.stream == lab.stream(row.second.stream).name


def test_looking_on_is_no_order_and_asking_is(lab):
    # GIVEN a tool that sees that an event was reached, which the program does not wait for
    copy, x = lab.stream("copy"), upload(lab)
    with copy.record() as event:
        lab._backend.driver.clock.advance(1_000_000_000)
        with lab._backend.observing():
            assert event.query()
    double(lab, x)
    assert len(lab.memory.hazards()) == 1
    # WHEN the program asks itself
    lab.clear()
    y = upload(lab)
    while not copy.query():
        pass
    double(lab, y)
    assert not lab.memory.hazards()


def test_work_that_is_refused_in_place_of_running_is_not_counted(lab):
    x = lab.xp.ones(8)
    before = lab.memory.hazards().access_count
    with pytest.raises(NotSimulatedError):
        x.astype("O")
    assert lab.memory.hazards().access_count == before


def test_the_how_to_lists_every_program():
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "find-a-race.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| ")]
    for case in CASES.values():
        only = ", on the simulated device" if case.only_simulated else ""
        assert f"| {case.does} | {', '.join(case.found) or 'nothing'}{only} |" in listed


def test_a_loop_of_many_calls_keeps_no_more_than_it_needs(lab):
    copy, compute = lab.stream("copy"), lab.stream("compute")
    x = upload(lab)
    for number in range(400):
        with lab.on("copy", "write"):
            x[number % 7 :: 3] = number
            x += x[::-1]
        compute.wait(copy)
        with lab.on("compute", "read"):
            y = x[::2] * 2 + x[:8].sum()
            lab.xp.stack([y, y])
        copy.wait(compute)
    assert not lab.memory.hazards()
    (touch,) = lab._backend.driver.memory.find_touches([x.sim_values], None)
    assert max(len(touch[0].accesses), len(lab._accesses._search._freed)) <= 16
    assert not lab._accesses._search.let_go_count


def test_lanes_that_come_and_go_are_forgotten(lab):
    kept, clocks = lab.stream("copy"), lab._accesses._clocks
    for number in range(50):
        lane = lab.stream(f"lane-{number}")
        with lab.on(lane, "work"):
            x = lab.xp.ones(8)
        kept.wait(lane)
        with lab.on(kept, "use"):
            x + 1
        lane.close()
    assert len(clocks.lanes) <= 2
    assert all(len(lane.knows) <= 2 for lane in clocks.lanes.values())


def test_a_lane_that_has_gone_is_not_taken_for_the_one_that_has_its_handle_now(lab):
    watch, copy = lab._accesses, lab.stream("copy")
    x = upload(lab)
    assert watch.writers(x) == (copy,)
    watch.close_stream(copy.handle)
    upload(lab)
    assert watch.writers(x) is None


def test_threads_on_lanes_of_their_own_are_followed_at_once(lab):
    def work(number):
        for _ in range(50):
            with lab.on(lab.stream(f"lane{number}"), "own"):
                x = lab.xp.ones(64)
                x += 1
                x.sum()

    run_all(work, 8)
    result = lab.memory.hazards()
    assert not result, str(result)
    assert result.access_count == 8 * 50 * 5


def test_threads_with_waits_put_in_do_not_lock_each_other_out():
    with Session("sim", hazards="wait") as lab:
        lanes = [lab.stream(f"lane{number}") for number in range(4)]
        shared = upload(lab, "lane0")

        def work(number):
            for _ in range(25):
                with lab.on(lanes[number], "shared"):
                    lanes[number].hold(shared * 2)
                    shared.fill(1)
                lanes[number].synchronize()

        run_all(work, 4)
        assert not lab.memory.hazards()


def test_clearing_forgets_what_was_found_and_not_what_lanes_hold(lab):
    x = upload(lab)
    double(lab, x)
    assert lab.memory.hazards()
    lab.clear()
    assert not lab.memory.hazards()
    assert lab.memory.hazards().access_count == 0
    double(lab, x)
    assert len(lab.memory.hazards()) == 1


def test_a_mode_that_is_none_is_refused_and_leaves_nothing_behind(tmp_path):
    path, before = tmp_path / "run.gsl", threading.active_count()
    with pytest.raises(OptionError, match="'reports'. Did you mean 'report'"):
        Session("sim", spool=path, hazards="reports")
    assert (path.exists(), threading.active_count()) == (False, before)
    Session("sim", spool=path, hazards="report").close()


def test_text_has_the_line_to_type_first_and_stays_narrow(lab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    names = "copy-" + "x" * 50, "compute-" + "y" * 50
    for name in names:
        lab.stream(name)
    x = upload(lab)
    z = upload(lab, names[0])
    double(lab, x)
    double(lab, z, names[1], "a range whose name is rather long as well, and longer")
    lines = str(lab.memory.hazards()).splitlines()
    assert lines[2:4] == ["read-after-write: put this line before 'double' (multiply)", f"    {COMPUTE_WAITS}"]
    assert lines[4].startswith("    x #1, 1 time: first copy: 'upload' (ones); then, unordered, compute:")
    rows = lines[2 : lines.index("", 2)]
    assert all(len(line) <= 100 for line in rows if "lab.stream" not in line)
    assert f"    lab.stream('{names[1]}').wait(lab.stream('{names[0]}'))" in rows


def test_an_array_keeps_the_last_name_that_was_seen(lab):
    frame = upload(lab)
    lab.stream("compute").wait(lab.stream("copy"))
    kept = double(lab, frame)
    exec("assert not lab.memory.hazards()", {"lab": lab, "frame": frame})  # a cell, where the name is seen
    del frame
    again = upload(lab)
    row = only_row(lab)
    assert (row.kind, row.array, row.maker) == (HazardKind.USE_AFTER_FREE, "frame", "upload")
    assert (row.fix, row.where) == ("lab.stream('compute').hold(frame)", "after 'double' (multiply), before the array goes")
    del kept, again


def test_an_array_that_never_had_a_name_is_told_by_where_it_is_from_with_a_line_that_can_be_typed(lab):
    kept = CASES["use_after_free"].run(lab)
    row, told = only_row(lab), str(lab.memory.hazards())
    assert (row.fix, row.where) == ("lab.stream('copy').wait(lab.stream('compute'))", "before 'next' (zeros)")
    assert "the array of float64 (1024) #1 from 'upload'" in told
    assert "stream.hold(array) after its last use is better than the wait" in " ".join(told.split())
    exec(row.fix, {"lab": lab})
    del kept


def test_scratch_that_was_given_back_is_told_of_on_its_own_lane(lab):
    lane = lab.stream("copy")
    with lab.on(lane, "first"), lane.scratch(64) as work:
        array = work.array(8, "f8")
        array.fill(1)
        array[2:].sum()
    assert not lab.memory.hazards()
    with lab.on(lane, "late"):
        view = array[2:4]
        view.sum()
        view.sum()
    row = only_row(lab)
    assert (row.kind, row.array) == (HazardKind.USE_AFTER_FREE, "64 bytes of scratch")
    assert (row.scratch_bytes, row.hazard_count, row.is_certain) == (64, 2, True)
    assert (row.first.stream, row.first.work, row.first.order) == ("copy", "given back", 0)
    assert (row.second.stream, row.second.range, row.second.work) == ("copy", "late", "sum")
    assert row.fix == "work = lab.stream('copy').scratch(64)"
    assert repr(row) == f"<Hazard: use-after-free, 64 bytes of scratch, 'copy' and 'copy', 2x; {row.fix}>"
    assert "first copy: given back; then copy: 'late' (sum)" in " ".join(str(lab.memory.hazards()).split())


def test_scratch_of_a_closed_lane_is_told_of_at_its_first_use_too(lab):
    lane = lab.stream("copy")
    array = lane.scratch(64).array(8, "f8")  # nobody has used it before
    lane.close()
    float(array.sum())
    row = only_row(lab)
    assert (row.first.stream, row.first.work, row.second.stream) == ("copy", "stream closed", "no stream")
    assert (row.fix, row.where) == ("lab.stream('copy').close()", "after sum (no stream selected), not before it")


def test_asking_keeps_no_array_alive_and_takes_nothing_from_the_callers_locals(lab):
    cell = {"lab": lab, "x": lab.xp.ones(8)}
    seen = weakref.ref(cell["x"].sim_values)
    exec("lab.memory.hazards()\ndel x", cell)
    assert seen() is None
    y = lab.xp.ones(8)
    mine = locals()
    lab.memory.hazards()
    assert mine["y"] is y


@pytest.mark.parametrize("mode", [HazardMode.REPORT, HazardMode.WAIT])
@pytest.mark.parametrize("is_view", [False, True], ids=["array", "view"])
def test_a_host_array_is_not_taken_for_a_dropped_result_whose_address_it_got(mode, is_view):
    # GIVEN two lanes that share no array; host arrays are made right behind a result that was dropped
    with Session("sim", hazards=mode) as lab:
        a, b = lab.stream("a"), lab.stream("b")
        x, y = upload(lab, a), upload(lab, b, 4)
        for _ in range(20):
            with lab.select(a):
                x.mean()
            with lab.select(b):
                y.set(np.arange(8.0)[::2] if is_view else np.full(4, 1.0))
            with lab.select(a):
                x.sum()
            with lab.select(b):
                y.get()
        result = lab.memory.hazards()
    assert (len(result.hazards), result.wait_count) == (0, 0), str(result)
