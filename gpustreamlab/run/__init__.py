"""Record a program as it is: ``gpustreamlab run script.py``."""

from __future__ import annotations

from gpustreamlab.run._command import add_run_parser, run

__all__ = ["add_run_parser", "run"]
