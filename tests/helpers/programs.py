"""Programs in processes of their own."""

import subprocess
import sys
import textwrap


def run_alone(code):
    """Run a program in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
