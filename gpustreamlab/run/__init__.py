"""Record a program as it is: ``gpustreamlab run script.py``."""

from __future__ import annotations

from gpustreamlab.run._children import begin_in_child
from gpustreamlab.run._command import add_run_parser, run

__all__ = ["add_run_parser", "begin_in_child", "run"]
