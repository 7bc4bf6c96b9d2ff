"""What a run was expected to do, and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.analysis._explain import descendants, explain, gained_ns, name_hint, work_of
from gpustreamlab.analysis._host_waits import host_waits
from gpustreamlab.analysis._overlap import concurrency
from gpustreamlab.analysis._report import Answer
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.analysis._strays import strays
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import Trace, display_name
from gpustreamlab.typing import BoolArray, CaptureTier

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Missed(Answer):
    """What a run did in place of what was expected of it, and why. False where all was as expected."""

    text: str
    """The first line is what it did, the others are why; empty where all was as expected."""

    _columns: ClassVar = ()
    _title: ClassVar = "Expected:"

    def __len__(self) -> int:
        return int(bool(self.text))

    def to_pandas(self) -> pd.DataFrame:
        """Return one row with the text as ``missed``, or none, as a `pandas.DataFrame`."""
        import pandas as pd

        return pd.DataFrame({"missed": [self.text] if self.text else []}, dtype=object)

    def _line(self) -> str:
        return self.text.partition("\n")[0] or "all was as expected"

    def _notes(self) -> list[str]:
        return self.text.splitlines()[1:]


Check = Callable[[Trace], Missed]
"""Takes what ran, and returns what was not as expected."""

LEAST_GAIN = 0.1
"""Streams that gain less than this share of the time for which they overlap gain nothing by it."""
NOTHING_TIMED = "Nothing ran, so no time can be compared: put the work into the with block, or before .check()."
_KERNELS = "Capture them: lab.capture('kernels', host=True), before the work."


def expect_overlap(first: str, second: str, at_least: float) -> Check:
    """Expect two streams, ranges or kernels to work at once for a share of the shorter one's time, above 0 and at most 1.

    Where it is known that they gain nothing by it, as kernels that share the SMs, that is as if they had not.
    """
    if not 0 < at_least <= 1:
        raise OptionError(f"at_least={at_least!r:.40} is no share of the shorter stream's time. Take one above 0 and up to 1.")

    def missed(trace: Trace) -> str:
        groups = [_work_of(trace, name) for name in (first, second)]
        if (groups[0] & groups[1]).any():
            raise OptionError(f"{first!r:.60} and {second!r:.60} are the same work, in part. Name two that are apart.")
        first_ns, second_ns, either_ns = (
            interval_sum_ns(union_edges(trace.start_ns[rows], trace.end_ns[rows])) for rows in (*groups, groups[0] | groups[1])
        )
        common_ns, shorter_ns = first_ns + second_ns - either_ns, min(first_ns, second_ns)
        names = " and ".join(display_name(name, 40) for name in (first, second))
        if trace.metadata.tier is not CaptureTier.KERNELS:
            return f"Whether {names} overlapped cannot be told: only ranges are known, and they contain waiting. {_KERNELS}"
        if not shorter_ns:
            idle = " and ".join(
                display_name(name, 40) for name, rows in zip((first, second), groups, strict=True) if not rows.any()
            )
            return f"{names} were expected to overlap, but nothing of {idle} ran."
        if common_ns >= at_least * shorter_ns:
            gain_ns = gained_ns(trace, groups[0] | groups[1])
            if gain_ns is None or gain_ns >= LEAST_GAIN * common_ns:
                return ""
            return (
                f"{names} overlapped for {format_ns(common_ns)}, and that gained {format_ns(max(0, gain_ns))}: scheduled anew "
                "one after the other they take about as long, as they share the SMs."
            )
        share = f"{format_share(common_ns / shorter_ns)} of the shorter one"
        told = f"{names} overlapped for {format_ns(common_ns)}, {share}; expected were {format_share(at_least)} or more."
        return f"{told}\n{_why(trace, first, second)}"

    return _answered(missed)


def _answered(missed: Callable[[Trace], str]) -> Check:
    return lambda trace: Missed(trace=trace, text=missed(trace))


def _why(trace: Trace, *names: str) -> str:
    """Explain it, or say what to type where that is asked of each rank."""
    try:
        return str(explain(trace, *names))
    except OptionError as error:
        return str(error)


def _work_of(trace: Trace, name: str) -> BoolArray:
    """Return the work of a stream, or of ranges or kernels of a name, as `explain` does; shape (n_spans,), bool."""
    found = work_of(trace, counted_rows(trace), name)
    if found is None:
        raise StreamNotFoundError(f"No stream, range or kernel {name!r:.60} in what ran. {name_hint(trace, name)}")
    return found


def expect_no_strays(trace: Trace) -> Missed:
    """Expect all work in ranges to run on the stream that was selected."""
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return Missed(trace=trace, text=f"Where work ran cannot be told: kernels were not captured. {_KERNELS}")
    return expect_none(strays(trace))


def expect_none(found: Answer) -> Missed:
    """Expect an answer to have found nothing."""
    return Missed(trace=found.trace, text=str(found) if len(found) else "")


def expect_no_host_waits(during: str | None) -> Check:
    """Expect the host not to wait for the device, anywhere or in ranges of one name."""

    def missed(trace: Trace) -> str:
        waits = host_waits(trace)
        if not waits.call_count:
            return f"Whether the host waited cannot be told: its calls were not captured. {_KERNELS}"
        calls = waits.row
        if during is not None:
            if during not in trace.names:
                raise OptionError(f"No range {during!r:.60} ran. {nearest_hint(during[:60], trace.names)}")
            calls = calls[descendants(trace, trace.name == trace.names.index(during))[calls]]
        if not len(calls):
            return ""
        longest = calls[np.argmax(trace.duration_ns[calls])]
        where = f" during {display_name(during, 40)}" if during else ""
        return (
            f"The host waited for the device in {count_text(len(calls), 'call')}{where}, "
            f"{format_ns(int(trace.duration_ns[calls].sum()))} in all; the longest was "
            f"{display_name(trace.names[int(trace.name[longest])], 40)}, {format_ns(int(trace.duration_ns[longest]))}."
        )

    return _answered(missed)


def expect_faster(baseline_ns: float, by: float) -> Check:
    """Expect a run to take at most `baseline_ns` divided by `by`, from its first start to its last end."""
    if not 0 < baseline_ns < float("inf"):
        raise OptionError(f"The baseline is {baseline_ns!r:.40} ns, and nothing is faster. Take a run in which work ended.")
    if not by > 0:
        raise OptionError(f"by={by!r:.40} is no ratio; by=1.2 expects at most 1 / 1.2 of the baseline's time.")

    def missed(trace: Trace) -> str:
        wall_ns = concurrency(trace).wall_ns
        if not wall_ns:
            return NOTHING_TIMED
        if wall_ns * by <= baseline_ns:
            return ""
        return (
            f"The run took {format_ns(wall_ns)}, the baseline {format_ns(int(baseline_ns))}: {baseline_ns / wall_ns:.2f} times "
            f"as fast; expected were {by:.2f} times or more.\n{_why(trace)}"
        )

    return _answered(missed)
