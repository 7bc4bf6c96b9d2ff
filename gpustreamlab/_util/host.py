"""Which machine this is."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def host_id() -> str:
    """Return what tells this machine, since it was started, from every other; its name cannot be read from it."""
    told = str(uuid.getnode())
    with suppress(OSError):  # Linux alone has it; containers of one host share it
        told = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(told.encode()).hexdigest()[:12]


@cache
def monotonic_clock_id() -> str:
    """Return what tells the clock of `time.monotonic_ns` from every other, or nothing where that is not known.

    Processes of one Linux share it, but those in a time namespace of their own. Source: time_namespaces(7).
    """
    with suppress(OSError):
        return host_id() + str(Path("/proc/self/ns/time").readlink())
    return ""
