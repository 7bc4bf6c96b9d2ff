"""Import Numba-CUDA, also an older one beside a newer NumPy."""

from __future__ import annotations

import importlib
from typing import Any

RENAMED = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}
"""Names that NumPy 2.5 has not any more and older Numba-CUDA asks for as it is imported, with what they were."""


def import_numba_cuda() -> Any:
    """Return the module ``numba.cuda``."""
    import numpy as np

    for gone, stays in RENAMED.items():
        if gone not in vars(np):
            setattr(np, gone, getattr(np, stays))
    return importlib.import_module("numba.cuda")
