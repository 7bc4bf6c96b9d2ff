"""What a run was expected to do, and whether it did: as calls, and as expressions that a gate of CI checks."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.analysis._card_idle import card_idle
from gpustreamlab.analysis._compare import NAME_CHARACTERS, TraceComparison, change_of_ns, compare_traces, ratio_text
from gpustreamlab.analysis._explain import descendants, explain, name_hint, no_gain_text, work_of
from gpustreamlab.analysis._host_waits import host_waits
from gpustreamlab.analysis._overlap import concurrency
from gpustreamlab.analysis._report import Answer
from gpustreamlab.analysis._scale import count_text, format_ns, format_share
from gpustreamlab.analysis._steps import spans_named, steps
from gpustreamlab.analysis._strays import strays
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import Trace, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array

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


Check = Callable[[Trace], Missed]  # Takes what ran, and returns what was not as expected

NOTHING_TIMED = "Nothing ran, so no time can be compared: put the work into the with block, or before .check()."
_KERNELS = "Capture them: lab.capture('kernels', host=True), before the work."


def expect_overlap(first: str, second: str, at_least: float) -> Check:
    """Expect two streams, ranges or kernels to work at once for a share of the shorter one's time, above 0 and at most 1.

    Where it is known that they gain nothing by it, as kernels that share the SMs, that is as if they had not.
    """
    if not 0 < at_least <= 1:
        raise OptionError(f"at_least={at_least!r:.40} is no share of the shorter stream's time. Take one above 0 and up to 1.")

    def missed(trace: Trace) -> str:
        groups, common_ns, shorter_ns = _in_common(trace, first, second)
        names = " and ".join(display_name(name, 40) for name in (first, second))
        if trace.metadata.tier is not CaptureTier.KERNELS:
            return f"Whether {names} overlapped cannot be told: only ranges are known, and they contain waiting. {_KERNELS}"
        if not shorter_ns:
            idle = " and ".join(
                display_name(name, 40) for name, rows in zip((first, second), groups, strict=True) if not rows.any()
            )
            return f"{names} were expected to overlap, but nothing of {idle} ran."
        if common_ns >= at_least * shorter_ns:
            no_gain = no_gain_text(trace, groups[0] | groups[1], common_ns)
            return f"{names} {no_gain}." if no_gain else ""
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


# As expressions


LISTED_NAMES = 10  # How many names that changed most are listed
_EXPRESSION = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*(<=|>=|==|<|>)\s*([0-9.]+)\s*(ns|us|µs|ms|s|%)?\s*$")
_SIGNS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">": operator.gt, ">=": operator.ge}
)
_UNITS = MappingProxyType({"": 1.0, "%": 0.01, "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9})
_EXAMPLE = "--expect 'overlap(copy, compute) >= 0.6'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An expectation, and what the run did."""

    expression: str
    """As it was given."""
    value: float
    """What was found: a share, a number, or ns."""
    shown: str
    """The same as text."""
    holds: bool
    """Whether it was as expected."""


class _Measure(NamedTuple):
    """Something that a trace can be asked for, by its name in an expression."""

    take: Callable[..., float]  # Takes the trace and names, and returns a number
    names: int  # How many names it takes
    form: str  # How it is written: time, share or count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """Two runs, whether the second is slower than it may be, and what was expected of it."""

    comparison: TraceComparison
    """The runs beside each other: a is the baseline, b the new one."""
    gate: float | None
    """How much longer the new one may take, in percent; None where that was not asked."""
    checked: tuple[Checked, ...]
    """What was expected of the new one."""

    @property
    def is_slower(self) -> bool:
        """Whether the new run took longer than the gate lets it."""
        wall_a, wall_b = self.comparison.a.wall_ns, self.comparison.b.wall_ns
        return self.gate is not None and wall_b > wall_a * (1 + self.gate / 100)

    @property
    def holds(self) -> bool:
        """Whether all is as it should be."""
        return not self.is_slower and all(one.holds for one in self.checked)

    def text(self) -> str:
        """Write it for a terminal."""
        return "\n".join([*(f"{mark:<4}  {what}: {found}" for mark, what, found in self._rows()), *self._notes()])

    def markdown(self) -> str:
        """Write it for a comment on a pull request."""
        lines = [f"### {'As expected' if self.holds else 'Not as expected'}", "", "| | expected | found |", "|---|---|---|"]
        lines += [f"| {'✅' if mark == 'ok' else '❌'} | `{what}` | {_cell(found)} |" for mark, what, found in self._rows()]
        lines += ["", "| name | base | new | new − base | new / base |", "|---|---:|---:|---:|---:|"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in self._changed()]
        return "\n".join([*lines, *(["", *(f"> {note}" for note in self._notes())] if self._notes() else [])])

    def json(self) -> str:
        """Write it as a JSON object; times are in ns."""
        result = self.comparison
        names = result.names
        facts = {
            "holds": self.holds,
            "wall_ns": {"base": result.a.wall_ns, "new": result.b.wall_ns},
            "gate_percent": self.gate,
            "is_slower": self.is_slower,
            "expectations": [{"expression": one.expression, "value": one.value, "holds": one.holds} for one in self.checked],
            "names": [
                {"name": name, "base_ns": base_ns, "new_ns": new_ns}
                for name, base_ns, new_ns in zip(
                    names.items[:LISTED_NAMES], names.a.busy_ns.tolist(), names.b.busy_ns.tolist(), strict=False
                )
            ],
            "notes": list(self._notes()),
        }
        return json.dumps(facts, indent=2, ensure_ascii=False)

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return for each thing that was asked whether it is so, what it is, and what was found."""
        wall_a, wall_b = self.comparison.a.wall_ns, self.comparison.b.wall_ns
        ratio = ratio_text(wall_b / wall_a) if wall_a else "-"
        allowed = "wall time" if self.gate is None else f"wall time at most {self.gate:g}% longer"
        rows = [("FAIL" if self.is_slower else "ok", allowed, f"{format_ns(wall_a)} → {format_ns(wall_b)} ({ratio})")]
        return rows + [("ok" if one.holds else "FAIL", one.expression, one.shown) for one in self.checked]

    def _changed(self) -> list[list[str]]:
        """Return the names that changed most, as rows of text."""
        names = self.comparison.names
        figures = zip(names.items, names.a.busy_ns.tolist(), names.b.busy_ns.tolist(), strict=True)
        return [
            [
                display_name(name, NAME_CHARACTERS),
                format_ns(base_ns),
                format_ns(new_ns),
                change_of_ns(new_ns - base_ns),
                ratio_text(new_ns / base_ns) if base_ns else "-",
            ]
            for name, base_ns, new_ns in [*figures][:LISTED_NAMES]
        ]

    def _notes(self) -> tuple[str, ...]:
        return self.comparison.notes


def judge(base: Trace, new: Trace, *, gate: float | None = None, expected: Sequence[str] = ()) -> Verdict:
    """Compare a run with its baseline, which it may exceed by `gate` percent, and check expressions that are expected of it."""
    if gate is not None and not 0 <= gate < float("inf"):
        raise OptionError(f"gate is {gate:g}; it is how much longer the run may take, in percent from 0 on: --gate 5")
    checked = tuple(check_expression(new, expression) for expression in expected)
    verdict = Verdict(comparison=compare_traces(base, new), gate=gate, checked=checked)
    if gate is not None and not (verdict.comparison.a.wall_ns and verdict.comparison.b.wall_ns):
        raise OptionError("Nothing ran in one of the traces, so that no time can be compared.")
    return verdict


def check_expression(trace: Trace, expression: str) -> Checked:
    """Check one expectation of a run.

    It is ``overlap(a, b)``, the share of the shorter one's time; ``wall``; ``idle``, the share of that in which nothing ran;
    ``total(name)``, ``p50(name)`` and ``p95(name)``, times of a stream, range or kernel, or of each ``step`` or ``request``;
    ``count(name)``; ``host_waits``; ``strays``. Then a comparison, and a number: ``20 ms``, ``60%``, ``0.6``.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 40], end_ns=[100, 90], stream=["copy", "compute"], kind="kernel", name=["h2d", "gemm"]
    ... )
    >>> check_expression(trace, "overlap(copy, compute) >= 60%").holds, check_expression(trace, "wall < 0.09 us").shown
    (True, '100 ns')
    """
    found = _EXPRESSION.match(expression)
    if found is None:
        raise OptionError(f"The expectation {expression!r:.80} cannot be read. Use for example {_EXAMPLE}")
    what, listed, sign, number, unit = found.groups()
    measure = _MEASURES.get(what)
    if measure is None:
        raise OptionError(f"Nothing is called {what!r} in {expression!r:.80}. {nearest_hint(what, _MEASURES)}")
    names = [name.strip().strip("'\"") for name in (listed or "").split(",") if name.strip()]
    if len(names) != measure.names:
        raise OptionError(f"{what} takes {measure.names} names, not {len(names)}, in {expression!r:.80}.")
    if (unit or "") not in _FORM_UNITS[measure.form]:
        allowed = ", ".join(one or "no unit" for one in _FORM_UNITS[measure.form])
        raise OptionError(f"{what} is a {measure.form}, and takes {allowed} behind the number in {expression!r:.80}.")
    try:
        wanted = float(number) * _UNITS[unit or ""]
    except ValueError as error:
        raise OptionError(f"{number!r} in {expression!r:.80} is no number.") from error
    value = float(measure.take(trace, *names))
    shown = {"time": lambda: format_ns(value), "share": lambda: format_share(value), "count": lambda: f"{value:,.0f}"}
    return Checked(expression=expression.strip(), value=value, shown=shown[measure.form](), holds=_SIGNS[sign](value, wanted))


_FORM_UNITS = MappingProxyType({"time": ("ns", "us", "µs", "ms", "s"), "share": ("", "%"), "count": ("",)})


def _rows_of(trace: Trace, name: str) -> BoolArray:
    """Return the work of a stream, or of ranges or kernels of a name; shape (n_spans,), bool."""
    found = work_of(trace, counted_rows(trace), name)
    if found is None:
        raise StreamNotFoundError(f"No stream, range or kernel {name!r:.60} in what ran. {name_hint(trace, name)}")
    return found


def _in_common(trace: Trace, first: str, second: str) -> tuple[list[BoolArray], int, int]:
    """Return the work of two names, for how long both were at work, and for how long the shorter one, in ns."""
    groups = [_rows_of(trace, name) for name in (first, second)]
    if (groups[0] & groups[1]).any():
        raise OptionError(f"{first!r:.60} and {second!r:.60} are the same work, in part. Name two that are apart.")
    one, two, either = (
        interval_sum_ns(union_edges(trace.start_ns[rows], trace.end_ns[rows])) for rows in (*groups, groups[0] | groups[1])
    )
    return groups, one + two - either, min(one, two)


def _overlap(trace: Trace, first: str, second: str) -> float:
    """Return the share of the shorter one's time in which both were at work."""
    _require_kernels(trace, "What overlapped")
    _, common_ns, shorter_ns = _in_common(trace, first, second)
    return common_ns / shorter_ns if shorter_ns else 0.0


def _require_kernels(trace: Trace, what: str) -> None:
    """Raise `OptionError` where only ranges are known."""
    if trace.metadata.tier is not CaptureTier.KERNELS:
        raise OptionError(f"{what} cannot be told: kernels are not in the trace, and ranges contain waiting.")


def _host_waits(trace: Trace) -> float:
    waits = host_waits(trace)
    if not waits.call_count:
        raise OptionError("Whether the host waited cannot be told: its calls are not in the trace.")
    return len(waits.row)


def _strays(trace: Trace) -> float:
    _require_kernels(trace, "Where work ran")
    return len(strays(trace))


def _idle(trace: Trace) -> float:
    _require_kernels(trace, "How long nothing ran")
    found = card_idle(trace)
    return found.idle_ns / found.wall_ns if found.wall_ns else 0.0


def _durations_ns(trace: Trace, name: str) -> Int64Array:
    """Return how long each span of a name took; of a stream's name, each piece of its work."""
    own = spans_named(trace, name)
    if not own.any() and (name == "step" or name == "request"):
        lasted_ns = steps(trace, "step" if name == "step" else "request").duration_ns
        if not len(lasted_ns):
            raise StreamNotFoundError(f"No range says of which {name} it is: lab.range('decode', {name}=3)")
        return lasted_ns
    own = own if own.any() else _rows_of(trace, name)
    if not own.any():
        raise StreamNotFoundError(f"Nothing called {name!r:.60} ran. {name_hint(trace, name)}")
    durations_ns: Int64Array = trace.duration_ns[own]
    return durations_ns


def _total(trace: Trace, name: str) -> float:
    rows = _rows_of(trace, name)
    return interval_sum_ns(union_edges(trace.start_ns[rows], trace.end_ns[rows]))


_MEASURES: Mapping[str, _Measure] = MappingProxyType(
    {
        "overlap": _Measure(take=_overlap, names=2, form="share"),
        "wall": _Measure(take=lambda trace: concurrency(trace).wall_ns, names=0, form="time"),
        "idle": _Measure(take=_idle, names=0, form="share"),
        "total": _Measure(take=_total, names=1, form="time"),
        "p50": _Measure(take=lambda trace, name: np.quantile(_durations_ns(trace, name), 0.5), names=1, form="time"),
        "p95": _Measure(take=lambda trace, name: np.quantile(_durations_ns(trace, name), 0.95), names=1, form="time"),
        "count": _Measure(take=lambda trace, name: len(_durations_ns(trace, name)), names=1, form="count"),
        "host_waits": _Measure(take=_host_waits, names=0, form="count"),
        "strays": _Measure(take=_strays, names=0, form="count"),
    }
)


def _cell(text: str) -> str:
    """Write text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
