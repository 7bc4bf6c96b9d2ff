"""Traces that other tools recorded."""

from gpustreamlab.exchange._kineto import read_kineto
from gpustreamlab.exchange._kineto_json import is_json
from gpustreamlab.exchange._nsys import read_nsys
from gpustreamlab.exchange._nsys_file import is_nsys_report, is_sqlite

__all__ = ["is_json", "is_nsys_report", "is_sqlite", "read_kineto", "read_nsys"]
