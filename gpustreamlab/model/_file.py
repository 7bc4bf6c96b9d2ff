"""Traces on disk, as Parquet."""

from __future__ import annotations

import io
import os.path
import textwrap
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpustreamlab._util.host import require_room
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.model._schema import make_trace, trace_to_table
from gpustreamlab.model._trace import COLUMN_DTYPES, Trace
from gpustreamlab.model._whole_file import write_file_whole

REASON_CHARACTERS = 240
"""How much is told of what pyarrow says; some versions say a paragraph."""


def write_trace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write the trace as one Parquet file."""
    write_file_whole(path, lambda partial: write_parquet(trace, partial))


def write_parquet(trace: Trace, file: Path | BinaryIO) -> None:
    """Write the trace as Parquet into an open file, or where nobody looks yet."""
    table = trace_to_table(trace)
    # Times and rows ascend: their differences take half the room.
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    encodings = dict.fromkeys(numbers, "DELTA_BINARY_PACKED")
    pq.write_table(table, file, compression="zstd", use_dictionary=texts, column_encoding=encodings, write_page_checksum=True)


def parquet_bytes(trace: Trace) -> bytes:
    """Return the trace as the bytes of a Parquet file, for a file of another format to hold."""
    file = io.BytesIO()
    write_parquet(trace, file)
    return file.getvalue()


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace that `write_trace` wrote; see `Trace.load`."""
    target = Path(path)
    if not os.path.isfile(target):  # noqa: PTH113 - which takes a name that is too long as none
        raise TraceFileError(f"There is no trace file at {str(target)!r}. Save one with lab.trace.save(path).")
    try:  # a file that is empty or of another kind has no damage, and nothing can be mended
        with target.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise TraceFileError(f"{str(target)!r} cannot be read: {error.strerror}. Check its owner and mode.") from error
    if not begins:
        raise TraceFileError(
            f"{str(target)!r} is empty: the run ended before anything was written to it. Record the run again; "
            "gpustreamlab.Session(spool='run.gsl') writes while it runs."
        )
    if begins != b"PAR1":
        raise TraceFileError(
            f"{str(target)!r} is no trace: it is no Parquet file of lab.trace.save('run.parquet'). gsl.load_trace(path) reads "
            "spools, pages with data, and what other tools record."
        )
    return parquet_trace(target, repr(str(target)))


def parquet_trace(file: Path | bytes | bytearray | memoryview, shown: str) -> Trace:
    """Read a Parquet file, or the bytes of one; what it is called in errors is given."""
    source = file if isinstance(file, Path) else pa.BufferReader(file)
    try:
        told = pq.read_metadata(source)
        texts = [name for name in COLUMN_DTYPES if name in told.schema.names]  # as codes: what is told once may take gigabytes
        with pq.ParquetFile(source, metadata=told, page_checksum_verification=True, read_dictionary=texts) as opened:
            groups = [told.row_group(place) for place in range(told.num_row_groups)]
            row_count = sum(group.num_rows for group in groups)
            if told.num_rows != row_count:  # no checksum covers how many rows a group of them has
                raise TraceError(f"It holds {row_count} rows and should hold {told.num_rows}. It is damaged; save it again.")
            row_bytes = sum(np.dtype(COLUMN_DTYPES.get(name, np.int64)).itemsize for name in opened.schema_arrow.names)
            require_room(max(row_count * row_bytes, sum(group.total_byte_size for group in groups)), shown)
            return make_trace(opened.schema_arrow, lambda name: opened.read([name]).column(name))
    except TraceFileError:
        raise
    except TraceError as error:
        raise TraceFileError(f"{shown} cannot be read as a trace. {error}") from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise TraceFileError(
            f"{shown} cannot be read as a trace: {textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=' …')} "
            "It is damaged or truncated; save it again."
        ) from error
