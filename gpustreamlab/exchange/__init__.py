"""Traces that other tools recorded."""

from gpustreamlab.exchange._kineto import read_kineto
from gpustreamlab.exchange._kineto_json import is_json
from gpustreamlab.exchange._pftrace import write_pftrace
from gpustreamlab.exchange._pftrace_file import is_pftrace
from gpustreamlab.exchange._pftrace_read import read_pftrace

__all__ = ["is_json", "is_pftrace", "read_kineto", "read_pftrace", "write_pftrace"]
