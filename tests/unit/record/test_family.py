"""What encloses ranges that were drained, and has not ended itself."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.record import START


@pytest.fixture
def lab():
    with Session("sim") as session:
        session.stream("copy")
        session.stream("compute")
        yield session


def drain(lab, cursor=START, awaited=()):
    lab._backend.synchronize()
    drained = lab._recorder.changes(cursor, awaited=awaited)
    relatives = drained.unended
    return drained, {
        number: (parent, lane)
        for number, parent, lane in zip(
            relatives.number.tolist(), relatives.parent.tolist(), relatives.lane.tolist(), strict=True
        )
    }


def test_open_ranges_around_what_was_drained_are_told(lab):
    with lab.on("copy", "outer"):
        with lab.on("compute", "middle"):
            with lab.range("inner"):
                pass
            drained, relatives = drain(lab)
    (inner,) = drained.columns["parent"].tolist()
    outer = relatives[inner][0]

    assert relatives[inner] == (outer, 1)
    assert relatives[outer] == (-1, 0)


def test_what_is_drained_itself_is_not_told(lab):
    with lab.on("copy", "outer"), lab.range("inner"):
        pass
    drained, relatives = drain(lab)

    assert len(drained.columns["number"]) == 2
    assert relatives == {}


def test_ranges_that_wait_for_the_device_are_told(lab):
    with lab.on("copy", "outer"):
        with lab.range("inner"):
            pass
        lab._backend.synchronize()
        from gpustreamlab.workloads import spin

        spin(lab, 1_000_000)
    with lab._recorder.observing():
        drained = lab._recorder.changes(awaited=())
        relatives = drained.unended

    assert len(drained.columns["number"]) == 1
    assert drained.columns["parent"][0] in relatives.number.tolist()


def test_who_waits_for_a_range_learns_that_it_will_never_come(lab):
    with lab.on("copy", "outer"):
        _, relatives = drain(lab, awaited=[1, 999])
    assert list(relatives) == [1]

    lab.synchronize()
    drained, relatives = drain(lab, awaited=[1, 999])
    assert drained.columns["number"].tolist() == [1]
    assert 999 not in relatives


def test_spans_can_be_read_again_by_append_index(lab):
    for name in "abc":
        with lab.on("copy", name):
            pass
    whole, _ = drain(lab)
    again = lab._recorder.changes(START._replace(row=1), until=whole.cursor)

    assert (again.columns["number"].tolist(), again.first, again.names) == (
        whole.columns["number"][1:].tolist(),
        1,
        whole.names,
    )
    assert again.missed == 0
    lab.clear()
    assert lab._recorder.changes(START._replace(row=1), until=whole.cursor).row_count == 0
