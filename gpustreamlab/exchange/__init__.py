"""Traces that other tools recorded, and files for their viewers."""

from gpustreamlab.exchange._formats import (
    AUTO,
    FORMATS,
    WRITERS,
    are_ours,
    check_format,
    find_format,
    find_writer,
    read_as,
    read_ranks,
    save_trace,
    table_with_needs,
)

__all__ = [
    "AUTO",
    "FORMATS",
    "WRITERS",
    "are_ours",
    "check_format",
    "find_format",
    "find_writer",
    "read_as",
    "read_ranks",
    "save_trace",
    "table_with_needs",
]
