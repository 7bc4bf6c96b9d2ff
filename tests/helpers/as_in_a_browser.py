"""Runs the ten-minute tutorial as Python in a browser would: no thread starts, nothing forks, indices have 32 bits.

python -m tests.helpers.as_in_a_browser
"""

from __future__ import annotations

import os
import sys
import threading
import types

import numpy as np

from tests.helpers.shells import one_shell

QUESTIONS = ("explain", "overlap", "utilization", "strays", "idle", "critical_path", "totals", "host_waits", "quality")


class Numpy32(types.ModuleType):
    """NumPy as it is there: what counts and repeats takes no more than 32 bits."""

    intp = np.int32

    def __getattr__(self, name):
        return getattr(np, name)

    def bincount(self, codes, *more, **options):
        codes = np.asarray(codes)
        assert np.can_cast(codes.dtype, np.int32), f"bincount by {codes.dtype}"
        return np.bincount(codes, *more, **options)

    def repeat(self, values, counts, *more, **options):
        assert not isinstance(counts, np.ndarray) or np.can_cast(counts.dtype, np.int32), f"repeat by {counts.dtype}"
        return np.repeat(values, counts, *more, **options)


def refuse(_):
    raise RuntimeError("can't start new thread")


def use_32_bits():
    """Hand the other NumPy to what was imported by now. pandas keeps its own: it is built for the machine."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpustreamlab.") and getattr(module, "np", None) is np:
            module.np = Numpy32("numpy")


def main():
    with one_shell() as shell:
        threading.Thread.start = refuse
        for name in ("register_at_fork", "fork"):
            delattr(os, name)
        assert not any(name.startswith("gpustreamlab") for name in sys.modules)
        from tests.unit.test_docs import ROOT, cells_of, run_cell

        for block, printed in cells_of(ROOT / "docs/tutorials/ten-minutes.md"):
            use_32_bits()
            out = run_cell(shell, block)
            assert printed is None or out.split() == printed.split(), out
        for question in QUESTIONS:
            str(getattr(shell.ev("lab.trace"), question)())
        shell.kernel = "as in a notebook"
        with shell.ev("gsl.Session('sim')") as lab, lab.on(lab.stream("a"), "x"):
            timeline = lab.timeline()
        print("drawn:", type(timeline).__name__, sorted(timeline._repr_mimebundle_()))


if __name__ == "__main__":
    main()
