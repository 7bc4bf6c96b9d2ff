"""The sentence above a live picture: how much ran at once so far."""

from __future__ import annotations

import time

from gpustreamlab.analysis import Basis, basis_of, busy_edges, concurrency, finding_text, over_wall, used_stream_count
from gpustreamlab.model import Trace
from gpustreamlab.recorder import Recorder

EVERY_S = 1.0
"""How often it is found anew, at most."""
REST = 20.0
"""After a look, none follows for this many times as long as it took: of long sessions it is found less often."""


class FindingWatch:
    """Finds how much of a recorder's work ran at once, now and then.

    Parameters
    ----------
    recorder
        Whose spans.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen_count = 0
        self._next_s = 0.0
        self._clears = 0
        self.text = ""
        """What was found last; empty where fewer than two streams were busy."""
        self.basis: Basis | None = None
        """What the figures are of; None where that was not found yet."""

    def look(self, span_count: int, *, is_last: bool = False) -> None:
        """Find it anew where that is due and there are other spans than the last time.

        Parameters
        ----------
        span_count
            How many spans there are by now.
        is_last
            Whether it is due in any case.
        """
        began_s, clears = time.monotonic(), self._clears
        if span_count == self._seen_count or (began_s < self._next_s and not is_last):
            return
        trace = self._recorder.trace()
        basis, text = basis_of(trace), _finding(trace)
        ended_s = time.monotonic()
        self._next_s = max(began_s + EVERY_S, ended_s + REST * (ended_s - began_s))
        if clears == self._clears:
            self._seen_count, self.text, self.basis = span_count, text, basis

    def forget(self) -> None:
        """Take back what was found, as its spans are forgotten."""
        self._clears += 1
        self._seen_count, self.text, self.basis = 0, "", None


def _finding(trace: Trace) -> str:
    basis = basis_of(trace)
    edges_ns = busy_edges(trace, basis.counted)
    if sum(map(bool, map(len, edges_ns))) < 2:
        return ""
    result = over_wall(trace, concurrency(trace, edges_ns))
    return finding_text(result, lane_count=used_stream_count(trace), counted=basis.counted)
