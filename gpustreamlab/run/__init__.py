"""Record a program as it is: ``gpustreamlab run script.py``, ``gpustreamlab record -- ./program``."""

from __future__ import annotations

from gpustreamlab.run._children import begin_in_child
from gpustreamlab.run._command import add_run_parser, run
from gpustreamlab.run._record import add_record_parser, record
from gpustreamlab.run._running import add_running_parsers, attach, begin_attached, live, snap

__all__ = [
    "add_record_parser",
    "add_run_parser",
    "add_running_parsers",
    "attach",
    "begin_attached",
    "begin_in_child",
    "live",
    "record",
    "run",
    "snap",
]
