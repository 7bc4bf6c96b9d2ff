"""A device whose context is lost (illegal address): which ranges were at it, what is kept, and a quiet end."""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import CloseError, StickyDeviceError
from tests.helpers.lost_backend import LostBackend

NAMED = r"The first range that had not ended was 'bad write' on stream 'compute'"


@pytest.fixture
def backend():
    return LostBackend()


@pytest.fixture
def lab(backend):
    """A session in which two ranges have ended, one has not, and then the device is lost."""
    lab = gsl.Session(backend)
    lab.stream("compute")
    lab.stream("copy")
    for name in ("fine", "fine too"):
        with lab.on("compute", name):
            pass
    lab.synchronize()
    backend.is_held = True
    with lab.on("compute", "bad write"):
        pass
    yield lab
    try:
        lab.close()
    except CloseError:
        pass


def test_the_first_range_that_had_not_ended_and_open_ones_are_named(lab, backend):
    with pytest.raises(StickyDeviceError, match=NAMED + r"; open: 'outer' on stream 'copy', 'inner' on stream 'copy'\."):
        with lab.on("copy", "outer"), lab.range("inner"):
            backend.lose()
            lab.synchronize()
    with pytest.raises(StickyDeviceError, match=NAMED) as caught:
        lab.synchronize()

    message = str(caught.value)
    assert message.startswith("Waiting for CUDA device 0 failed: CUDA_ERROR_ILLEGAL_ADDRESS.")
    assert "Only a restart of this process brings the device back" in message
    assert caught.value.where in message


CALLS = {
    "synchronize a stream": lambda lab, event: lab.stream("compute").synchronize(),
    "query a stream": lambda lab, event: lab.stream("compute").query(),
    "record an event": lambda lab, event: lab.stream("compute").record(event),
    "synchronize an event": lambda lab, event: event.synchronize(),
    "query an event": lambda lab, event: event.query(),
    "make a stream": lambda lab, event: lab.stream("another"),
    "open a range": lambda lab, event: lab.on("compute", "next").__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_names_it(lab, backend, call):
    event = lab.stream("copy").record()
    backend.lose()

    with pytest.raises(StickyDeviceError, match=NAMED):
        CALLS[call](lab, event)


def test_an_error_of_the_user_passes_with_a_note_that_names_it_once(lab, backend):
    with pytest.raises(ZeroDivisionError) as caught:
        with lab.on("copy", "outer"), lab.range("inner"):
            backend.lose()
            raise ZeroDivisionError("as CuPy raises its own")

    (note,) = caught.value.__notes__
    assert "Recording range 'inner' on stream 'copy' failed" in note
    assert "The first range that had not ended was 'bad write'" in note


def test_the_timeline_is_kept(lab, backend):
    backend.lose()
    with pytest.raises(StickyDeviceError):
        lab.synchronize()

    assert [lab.trace.names[code] for code in lab.trace.name] == ["fine", "fine too"]
    assert lab.trace.metadata.pending_spans == 1
    lab.close()  # quietly: the user was told
    assert (len(lab.trace), lab.state != "open") == (2, True)
    assert "2 spans" in repr(lab.timeline())


def test_closing_tells_it_once_where_nothing_has_told_it_before(lab, backend):
    backend.lose()

    with pytest.raises(CloseError) as caught:
        lab.close()

    assert len(caught.value.failures) == 1
    assert "The first range that had not ended was 'bad write' on stream 'compute'" in str(caught.value)
    assert lab.state != "open"
    lab.close()


def test_a_spool_keeps_what_there_was_and_is_ended(tmp_path, backend):
    lab = gsl.Session(backend, spool=tmp_path / "run.gsl")
    lab.stream("compute")
    with lab.on("compute", "fine"):
        pass
    lab.synchronize()
    backend.lose()
    with pytest.raises(StickyDeviceError):
        lab.synchronize()
    lab.close()
    loaded = gsl.load_trace(tmp_path / "run.gsl")

    assert (len(loaded), loaded.metadata.recovery_note) == (1, "")
