"""Whether there is a GPU, asked in a child: the answer makes CUDA begin, and the program may not have chosen its GPU yet."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress

from gpustreamlab.backends.cuda._probe import why_unavailable


def why_no_gpu() -> str:
    """Say why no GPU can be used; empty where one can. CUDA stays as it is in this process."""
    if not hasattr(os, "fork"):
        return _answer()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of NumPy's libraries: the child uses none of them
        child = os.fork()
    if child == 0:
        try:
            os.write(write, _answer().encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        found = b""
        while part := os.read(read, 65_536):
            found += part
        return found.decode(errors="replace")
    finally:
        os.close(read)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _answer() -> str:
    problem = why_unavailable()
    return "" if problem is None else problem[1]
