"""Programs in processes of their own, and a kernel that says when it ran."""

import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

PATHS = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH", "")])])
"""Where Python looks for modules in a program that runs elsewhere: here first."""
SPIN = r"""
extern "C" __global__ void spin(long long duration_ns, unsigned long long* began_ended) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while ((long long)(now - began) < duration_ns);
    if (began_ended && blockIdx.x == 0 && threadIdx.x == 0) {
        began_ended[0] = began;
        began_ended[1] = now;
    }
}
"""


@cache
def spin_kernel():
    """Return ``spin(int64 duration_ns, uint64* began_ended)`` for the current card; the pointer may be 0."""
    import cupy

    return cupy.RawModule(code=SPIN).get_function("spin")


def run_alone(code, *arguments, timeout=120):
    """Run a program in a process of its own and return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
