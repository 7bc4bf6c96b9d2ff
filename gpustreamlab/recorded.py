"""Record a block of any library without a session."""

from __future__ import annotations

from gpustreamlab.backends import Backend
from gpustreamlab.groups import Recorded
from gpustreamlab.session import Session
from gpustreamlab.streams.life import open_sessions

__all__ = ["record"]


def record(backend: str | Backend | None = None, *, device: int = 0, stacks: bool = False, title: str = "") -> Recorded:
    """Record what runs in a ``with`` block, of any library as it is: no stream is selected.

    Every kernel, copy, fill and call of CUDA is recorded, of streams that others made too: each is a lane. Behind the block it
    waits for the device. The value shows itself as a timeline, and has the `trace` and what can be asked of that.

    Parameters
    ----------
    backend
        ``"cuda"``, ``"sim"``, or a backend object. None for the open session, where there is just one; else for the GPU if
        there is one, else the simulated device. A session that was made for the block is closed behind it.
    device, title
        The CUDA device number; a name for the trace. Of an open session they are its own.
    stacks
        Whether it is looked up to 200 times a second where the Python of each thread stands that launches work.

    Raises
    ------
    BackendNotFoundError, DeviceNotFoundError, BackendUnavailableError
        When the block begins: if there is no such backend or device; if ``"cuda"`` cannot run here.

    Examples
    --------
    >>> import gpustreamlab as gsl
    >>> with gsl.record("sim") as run:
    ...     x = run.session.xp.ones(1000) + 1
    >>> run
    <Recorded: Timeline of ... spans in 1 stream and 1 host thread on H200 (SIMULATED)>
    >>> sorted(lane.name for lane in run.trace.lanes)
    ['default stream', 'host: MainThread']
    """
    known = open_sessions()
    if backend is None and len(known) == 1:
        return known[0].record(stacks=stacks)
    return Recorded(lambda: Session(backend, device=device, title=title, capture="ranges"), stacks=stacks, is_owner=True)
