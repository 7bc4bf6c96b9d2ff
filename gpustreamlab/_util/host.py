"""Identifiers of this machine and its clock, and its room for files."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from gpustreamlab.errors import TraceFileError


@cache
def host_id() -> str:
    """Return an identifier of this machine since its start, a hash from which its name cannot be read."""
    told = str(uuid.getnode())
    with suppress(OSError):  # Linux alone has it; containers of one host share it
        told = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def rank() -> int:
    """Return the number of this process among those of its job, as torchrun gives it, or -1 where it is alone."""
    told = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    return int(told[0]) if all(map(str.isdecimal, told)) and int(told[1]) > 1 else -1


@cache
def monotonic_clock_id() -> str:
    """Return an identifier of the clock of `time.monotonic_ns`, or nothing where that is not known.

    Processes of one Linux share it, but those in a time namespace of their own. Source: time_namespaces(7).
    """
    with suppress(OSError):
        return host_id() + str(Path("/proc/self/ns/time").readlink())
    return ""


LARGEST_UNPACKED_BYTES = 4 << 30
"""Most that a file may unpack to; half of the memory that is free, where that is less. What Arrow packs is not counted."""

_MEMORY, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def room_bytes() -> int:
    """Return how much a file may unpack to now."""
    free = [2 * LARGEST_UNPACKED_BYTES]
    with suppress(OSError, IndexError):  # Linux only
        free.append(int(_MEMORY.read_text(encoding="ascii").partition("MemAvailable:")[2].split()[0]) << 10)
    with suppress(OSError, ValueError, IndexError):  # in a container that has a limit; pages of files make room
        most, used = (int((_CONTAINER / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        kept = (_CONTAINER / "memory.stat").read_text(encoding="ascii").partition("\ninactive_file ")[2].split()[0]
        free.append(max(most - used + int(kept), 0))
    return min(free) // 2


def require_room(size_bytes: int, shown: str, most_bytes: int | None = None) -> None:
    """Raise `TraceFileError` where what a file unpacks to is too large."""
    most_bytes = room_bytes() if most_bytes is None else most_bytes
    if size_bytes > most_bytes:
        raise TraceFileError(
            f"{shown} is larger than {most_bytes:,} bytes, unpacked: no more is read than half of the memory that is free, or "
            f"{LARGEST_UNPACKED_BYTES:,} bytes. Load it where more is free, save less: trace.between(t0_ns, t1_ns).save(path), "
            "or unpack JSON first: gunzip."
        )
