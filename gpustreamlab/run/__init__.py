"""Record a program as it is: ``gpustreamlab run script.py``."""

from __future__ import annotations

from gpustreamlab.run._children import begin_in_child
from gpustreamlab.run._command import add_run_parser, run
from gpustreamlab.run._running import add_running_parsers, attach, begin_attached, live, snap

__all__ = ["add_run_parser", "add_running_parsers", "attach", "begin_attached", "begin_in_child", "live", "run", "snap"]
