"""Spans as plain tables in files: CSV for spreadsheets, Arrow IPC for everything else."""

from __future__ import annotations

import textwrap
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.exchange._formats import require_suffix
from gpustreamlab.model import Trace, table_to_trace, trace_to_table, write_file_whole

if TYPE_CHECKING:
    import pyarrow as pa

CSV_SUFFIXES = (".csv",)
ARROW_SUFFIXES = (".arrow", ".feather")
_REASON_CHARACTERS = 240
_FORMULA = "^[=+\\-@\\t\\r\\n＝＋－＠]"
"""How a text begins that a spreadsheet takes for a formula. Source: OWASP, "CSV Injection"."""


def write_csv(trace: Trace, path: str | PathLike[str]) -> None:
    """Write one row a span, with the columns of `Trace.to_pandas`, then the partition's name, and the device and stream.

    It is for spreadsheets and scripts: tables and metadata are not in it, and it is not read back. A text that a spreadsheet
    would take for a formula, as it begins with ``=``, ``+``, ``-`` or ``@``, has an apostrophe in front.
    Source: OWASP, "CSV Injection".

    Parameters
    ----------
    trace
        What to write.
    path
        Where; the suffix is ``.csv``.

    Raises
    ------
    OptionError
        If the suffix is another one.
    TraceFileError
        If the file cannot be written; a file that was there before is then left as it was.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0], end_ns=[100], stream=["copy"], name=["=1+1"])
    >>> path = getfixture("tmp_path") / "run.csv"
    >>> write_csv(trace, path)
    >>> print(path.read_text().splitlines()[1])
    0,100,100,0,"copy","'=1+1","range",-1,,-1,,0,"1"
    """
    from pyarrow import csv

    require_suffix(path, CSV_SUFFIXES, "CSV")
    table = _csv_table(trace)
    write_file_whole(
        path, lambda partial: csv.write_csv(table, partial, csv.WriteOptions(quoting_style="needed", quoting_header="needed"))
    )


def write_arrow(trace: Trace, path: str | PathLike[str]) -> None:
    """Write the trace as an Arrow IPC file (Feather, version 2), which any Arrow tool maps into memory.

    Parameters
    ----------
    trace
        What to write.
    path
        Where; the suffix is ``.arrow`` or ``.feather``.

    Raises
    ------
    OptionError
        If the suffix is another one.
    TraceFileError
        If the file cannot be written; a file that was there before is then left as it was.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
    >>> path = getfixture("tmp_path") / "run.arrow"
    >>> write_arrow(trace, path)
    >>> read_arrow(path).end_ns.tolist()
    [100, 250]
    """
    import pyarrow as pa

    require_suffix(path, ARROW_SUFFIXES, "Arrow IPC")
    table = trace_to_table(trace)

    def write(partial: Path) -> None:
        with pa.ipc.new_file(str(partial), table.schema) as writer:
            writer.write_table(table)

    write_file_whole(path, write)


def read_arrow(path: str | PathLike[str]) -> Trace:
    """Read a trace that `write_arrow` wrote; it is as it was.

    Raises
    ------
    TraceFileError
        If the file is missing, damaged, no trace, or from a newer version of gpustreamlab.
    """
    import pyarrow as pa

    name = str(path)
    try:
        with pa.OSFile(name) as file:
            return table_to_trace(pa.ipc.open_file(file).read_all())
    except TraceError as error:
        raise TraceFileError(f"{name!r} cannot be read as a trace. {error}") from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise TraceFileError(
            f"{name!r} cannot be read as a trace: {textwrap.shorten(str(error), _REASON_CHARACTERS, placeholder=' …')} It is "
            "missing, damaged or truncated; save it again with trace.save('run.arrow')."
        ) from error


def _csv_table(trace: Trace) -> pa.Table:
    """Return the table of a CSV file, of which no text is a formula."""
    import pyarrow as pa

    table = trace_to_table(trace)
    table = table.add_column(2, "duration_ns", pa.array(trace.duration_ns))
    partitions = [one.name for one in trace.partitions]
    added = {
        "partition_name": pa.array([*partitions, None], pa.string()).take(pa.array(trace.partition % (len(partitions) + 1))),
        "device": pa.array([lane.device for lane in trace.lanes], pa.int64()).take(pa.array(trace.lane)),
        "stream": pa.array([str(lane.stream) for lane in trace.lanes], pa.string()).take(pa.array(trace.lane)),
    }
    columns = {name: _plain(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    return pa.table(
        {_safe(name): column for name, column in (columns | {name: _plain(one) for name, one in added.items()}).items()}
    )


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return a column as CSV holds it: texts are spelled out, and those that a spreadsheet would run are not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        return column.cast(pa.float64()) if pa.types.is_float16(column.type) else column
    is_formula = pc.match_substring_regex(column, _FORMULA)
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", column, ""), column)


def _safe(name: str) -> str:
    return f"'{name}" if name[:1] and name[0] in "=+-@\t\r\n＝＋－＠" else name
