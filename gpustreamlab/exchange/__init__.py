"""Traces that other tools recorded."""

from gpustreamlab.exchange._chrome import read_chrome
from gpustreamlab.exchange._chrome_json import guess_writer, read_head
from gpustreamlab.exchange._chrome_write import write_chrome
from gpustreamlab.exchange._flat_files import is_arrow, read_arrow, write_arrow, write_csv
from gpustreamlab.exchange._kineto import read_kineto
from gpustreamlab.exchange._kineto_json import is_json

__all__ = [
    "guess_writer",
    "is_arrow",
    "is_json",
    "read_arrow",
    "read_chrome",
    "read_head",
    "read_kineto",
    "write_arrow",
    "write_chrome",
    "write_csv",
]
