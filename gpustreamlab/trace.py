"""The trace as users hold it: what ran where and when, with all that can be asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from gpustreamlab import analysis, model
from gpustreamlab._util.words import StandsElsewhere
from gpustreamlab.errors import OptionError
from gpustreamlab.exchange import save_trace, table_with_needs
from gpustreamlab.model import Ahead, ClockOffset, Layout
from gpustreamlab.sinks.spool import read_any
from gpustreamlab.timeline import Comparison, Timeline
from gpustreamlab.tuning import Prediction, Sweep, what_if
from gpustreamlab.typing import Cause, Change

if TYPE_CHECKING:
    import pandas as pd

    from gpustreamlab.analysis import Finding, Share

__all__ = ["SupportsTrace", "Trace", "as_trace", "compare", "load_trace", "merge"]


class Trace(model.Trace, StandsElsewhere):
    """Spans as columns of equal length, with what can be asked of them. Nothing in it can be changed.

    What it holds, and how parts are cut out of it, is told by `gpustreamlab.model.Trace`. Sessions, nodes, clusters and
    `gpustreamlab.load_trace` give one; a part of one and several merged are one, too.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
    >>> trace.between(80, 120).overlap()["copy", "compute"].common_ns
    20
    """

    __slots__ = ()
    _guesses: ClassVar = {
        "trace.timeline()": "show view plot draw gantt summary stats",
        "trace.timeline().save('run.html')": "to_html save_html",
        "trace.save('run.parquet')": "write export to_parquet to_csv",
        "trace.save('run.json')": "to_json to_chrome export_chrome_trace",
        "trace.to_pandas()": "spans events df dataframe to_df to_dataframe to_polars",
        "trace.where(kind='kernel')": "kernels",
        "trace.explain()": "why why_slow slow advise advice suggest diagnose analyze bottleneck bottlenecks report",
        "trace.overlap()": "concurrency concurrent overlaps",
        "trace.idle()": "gaps",
        "gpustreamlab.compare(a, b)": "compare diff",
        "lab.memory.hazards() of the session; a trace has what it found in trace.notes": "hazards race races",
    }

    # What is asked of a trace is told where it is answered, once.
    overlap = analysis.overlap
    utilization = analysis.utilization
    strays = analysis.strays
    stragglers = analysis.stragglers
    host_waits = analysis.host_waits
    explain = analysis.explain
    critical_path = analysis.critical_path
    idle = analysis.idle
    quality = analysis.quality
    totals = analysis.totals
    steps = analysis.steps

    def timeline(self) -> Timeline:
        """Return a picture of the trace, which shows itself and can be saved.

        Examples
        --------
        >>> Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], device="demo").timeline()
        <Timeline of 1 span in 1 stream on demo (from columns)>
        """
        return Timeline(self)

    def what_if(
        self,
        layout: Layout | Mapping[str, Share] | EllipsisType | None = ...,
        *,
        sweep: Sweep | Mapping[str, Sweep] | Iterable[Sweep] = (),
        change: Change | str | Iterable[Change | str] = (),
        without: Finding | Cause | str | Iterable[Finding | Cause | str] = (),
        priority: Mapping[str, int] | None = None,
    ) -> Prediction:
        """Predict what this run would take with something changed: alone, or several changes together.

        The recorded work is scheduled anew by the rules of the simulated device. The host issues its calls one by one and
        stands still in waits, so its launches move with what it waits for; streams keep their order, and wait as they did; what
        is changed keeps the order of what work is known to read and to write. Copies take as long as they did, kernels as long
        as lets the run as it was last as it did, or what their sweeps say.

        Parameters
        ----------
        layout
            Partitions with what each gets, as `gpustreamlab.plan_partitions` takes it, a layout, or None for the whole card.
            Streams go to the partition of their own one's name, else of their own name, else to the whole card. Left out: as it
            was.
        sweep
            For another layout: what ranges or kernels take alone by SMs, by their names: ``{"gemm": lab.bench.sweep(f)}``. A
            kernel's time comes from the innermost range around it that has one. A sweep tells sizes that it has, and others
            where a model fits it.
        change
            Of `gpustreamlab.typing.Change`, or its text, one or several: ``"pinned"``, ``"no host waits"``, ``"fine waits"``,
            ``"second buffer"``, ``"more streams"``, ``"one stream"``, ``"graph"``, ``"threads"`` and others.
        without
            Findings of `explain`, or their codes: what it would be with these mended.
        priority
            Of streams, by their names: ``{"decode": -1}``. Lower numbers go first; running blocks are never pushed out.

        Returns
        -------
        Prediction
            The run as a trace that says it is predicted, its makespan in ns, and the stated error. Nothing in it is measured.

        Raises
        ------
        MeasureError
            If the trace has no kernels; if for another layout kernels with more than 2% of the busy time have no sweep, or one
            that does not tell a size that is used.
        OptionError
            If nothing is to be changed, a change changes nothing here, no stream would run in a partition, or a sweep is of
            nothing in the trace.
        PartitionError
            If the SMs cannot be shared out like this.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     layout = lab.partition(a=32, b=64)
        ...     work = lambda: spin(lab, 100_000, blocks=132 * 32)
        ...     for name in layout.names:
        ...         with lab.on(lab.stream(name, partition=name), "work"):
        ...             work()
        ...     swept = {"work": lab.bench.sweep(work, [16, 32, 64, 132])}
        ...     print(repr(lab.trace.what_if({"a": 64, "b": "rest"}, sweep=swept)))
        <Prediction: 300 µs predicted (±3.0%) with a 64, b 68 SMs; 500 µs recorded>
        >>> with Session("sim") as lab:
        ...     for name in "ab":
        ...         spin(lab, 100_000, stream=lab.stream(name))
        ...         lab.synchronize()
        ...     print(repr(lab.trace.what_if(change="no host waits")))
        <Prediction: 112 µs predicted (±3.0%) with no host waits; 214 µs recorded>
        """
        return what_if(self, layout, sweep, change, without, priority)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Lend the spans to any Arrow reader, with all else in the schema's metadata. Source: the Arrow PyCapsule interface."""
        return table_with_needs(self).__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return the spans as a `pandas.DataFrame`, one row a span, with a ``duration_ns`` column.

        Where streams waited, ``wait_need`` says whether data need that (needed, not needed, not known; missing for work that
        waited for nothing), and ``wait_buffers`` for which buffers; of several waits of one span the strongest counts.
        ``pyarrow.table(trace)`` and ``polars.from_dataframe`` of other libraries that read Arrow take the trace itself.
        """
        frame = table_with_needs(self).to_pandas()
        frame.insert(2, "duration_ns", self.duration_ns)
        return frame

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace as one file, in the format that its suffix says.

        Parameters
        ----------
        path
            Where. ``.parquet``, or no suffix, keeps everything exactly.
            ``.pftrace`` is for Perfetto, ``.json`` (Chrome's) for other viewers, both with ``.gz`` too; ``.csv`` is a table.

        Raises
        ------
        OptionError
            If the suffix is another one.
        MissingExtraError
            If a package that the format needs is not installed: Perfetto's own for ``.pftrace``.
        TraceFileError
            If the file cannot be written; a file that was there before is then left as it was.

        Examples
        --------
        >>> path = getfixture("tmp_path") / "run.parquet"
        >>> Trace.from_columns(start_ns=[0, 5], end_ns=[9, 10], stream=["copy", "compute"]).save(path)
        >>> load_trace(path)
        <Trace: 2 spans in 2 streams on unknown device>
        """
        save_trace(self, path)


def as_trace(held: model.Trace) -> Trace:
    """Return what a trace holds as one that can be asked; nothing is copied or checked again."""
    if isinstance(held, Trace):
        return held
    trace = object.__new__(Trace)
    for one in fields(held):
        object.__setattr__(trace, one.name, getattr(held, one.name))
    return trace


def load_trace(path: str | PathLike[str] | Iterable[str | PathLike[str]], format: str = "auto") -> Trace:  # noqa: A002
    """Read a trace: one of our own, or what another tool recorded.

    Our own are Parquet files of `Trace.save`, what ``Session(spool=...)`` has written so far, and pages of
    ``timeline().save("run.html", with_data=True)``. Of others: JSON of PyTorch's profiler, JSON in Chrome's format (JAX, ...),
    SQLite files and Parquet folders of Nsight Systems (reports where nsys is installed), and Perfetto's ``.pftrace``. Each
    but a report and a folder may be packed by gzip.

    What a file does not tell, and what of it was not read, ``trace.metadata.missing`` and ``trace.metadata.imported`` say. What
    a killed process has spooled is read up to the last whole piece; ``trace.metadata.recovery_note`` says what may be missing.

    Parameters
    ----------
    path
        The file, or the files of several ranks of one job, by PyTorch's profiler or by gpustreamlab, which become one trace:
        process N of it is rank N, or else the N-th file. Of our own `merge` says how their clocks are put together.
    format
        ``"auto"`` tells by the first bytes, whatever the suffix. Else ``"parquet"``, ``"spool"``, ``"record"``, ``"html"``,
        ``"kineto"``, ``"chrome"``, ``"nsys"``, ``"perfetto"``, ``"rocm"``, ``"csv"``, ``"xplane"`` or ``"memory"``.

    Raises
    ------
    TraceFileError
        If the file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    OptionError
        If there is no such format, the path is a URL, or there are several files that are no ranks.
    TraceError
        If it is not known how far the clocks of several files are apart.
    MissingExtraError
        If a package that this format needs is not installed.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "run.json"
    >>> row = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.25, "dur": 3, "args": {"device": 0, "stream": 7}}
    >>> import json
    >>> _ = path.write_text(json.dumps({"traceEvents": [row]}))
    >>> load_trace(path).start_ns.tolist(), load_trace(path).lanes[0].name
    ([1250], 'stream 7')
    """
    return as_trace(read_any(path, format))


@runtime_checkable
class SupportsTrace(Protocol):
    """Anything with a trace: a session, a timeline."""

    @property
    def trace(self) -> Trace:
        """The spans."""


def compare(a: Trace | SupportsTrace | str | PathLike[str], b: Trace | SupportsTrace | str | PathLike[str]) -> Comparison:
    """Compare two traces: before and after, one layout and another, simulated and measured.

    Parameters
    ----------
    a, b
        Traces, files that `Trace.save` wrote, or what has a trace: a session, a timeline. Lanes and names are matched by what
        they are called.

    Returns
    -------
    Comparison
        Differences are b - a, ratios b / a.

    Raises
    ------
    TraceFileError
        If a file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    OptionError
        If one of both is none of these.

    Examples
    --------
    >>> before, after = (Trace.from_columns(start_ns=[0], end_ns=[end], stream=["a"]) for end in (400, 300))
    >>> compare(before, after)
    <Comparison: wall time 400 ns → 300 ns (1.33× faster)>
    """
    return Comparison(_trace_of(a, "compare(a=...)"), _trace_of(b, "compare(b=...)"))


def merge(
    traces: Iterable[Trace | SupportsTrace | str | PathLike[str]],
    *,
    clocks: Mapping[Any, ClockOffset] | Sequence[ClockOffset] | None = None,
    ahead_ns: Sequence[Ahead] | None = None,
    error_ns: int | None = None,
    processes: Sequence[int] | None = None,
) -> Trace:
    """Return several traces as one, with the zero of the first.

    How far their clocks are apart tells the first of these that is known: `ahead_ns`; `clocks`; each trace's own
    ``metadata.clock_offset``, which is saved with it; the wall clock, if one machine recorded all of them.

    Parameters
    ----------
    traces
        One or more, as `compare` takes them; those of one device and process share its streams' lanes.
    clocks
        How the clock of each was compared with one reference: a `Clocks`, or a `ClockOffset` for each.
    ahead_ns
        What to add to the times of each so that they are on the clock of the first, in ns; where that changed in time, a pair
        of arrays of shape (n,) tells what it was when, by the trace's own clock.
    error_ns
        Bound on the error of that, in ns; None where it is not known.
    processes
        Which process recorded each: 0, 1, 2, ... None for what their lanes say, which is 0 for what a session of its own saved.

    Raises
    ------
    TraceError
        If it is not known how far their clocks are apart, as of simulated runs that were not one, or two of them have work of
        one stream at once.
    TraceFileError
        If a file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    OptionError
        If there is none, or not one number, or offset, for each, or one of them is no trace.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "one.parquet"
    >>> one, two = (Trace.from_columns(start_ns=[0], end_ns=[9], stream=[name]) for name in ("a", "b"))
    >>> one.save(path)
    >>> merge([path, two], ahead_ns=[0, 5]).start_ns.tolist()
    [0, 5]
    """
    if isinstance(traces, (str, PathLike)):
        raise OptionError("merge takes several traces: gsl.merge(['first.parquet', 'second.parquet']).")
    given = [_trace_of(one, "merge([...])") for one in traces]
    merged = model.merge(given, clocks=clocks, ahead_ns=ahead_ns, error_ns=error_ns, processes=processes)
    return analysis.with_waits_for_ranks(merged)


def _trace_of(source: object, which: str) -> Trace:
    if isinstance(source, model.Trace):
        return as_trace(source)
    if isinstance(source, (str, PathLike)):
        return load_trace(source)
    if isinstance(source, SupportsTrace):
        return source.trace
    raise OptionError(
        f"{which} got a {type(source).__name__}; it takes a Trace, a file that Trace.save wrote, or an object with a trace. "
        "Use for example compare('before.parquet', lab.trace)."
    )
