"""Reports of Nsight Systems, written by its own library through ``nvtx.writer``.

Nsight Systems (2024.6 and later) ships a backend for the NVTX writer interface, ``libNvtxwBackend.so``, in its host folder.
Only where that is installed is anything written. Source: NVTX Python documentation, "Writing Pre-Collected Data".
"""

from __future__ import annotations

import importlib
import os
import shutil
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.exchange._sublanes import sublanes
from gpustreamlab.model import SPAN_KINDS, Trace

LIBRARY = "libNvtxwBackend.so"
VARIABLE = "NVTXW_BACKEND"
"""Environment variable with the library's path, as other writers name it."""


def write_nsight(trace: Trace, path: str | PathLike[str]) -> None:
    """Write ranges, kernels and calls as a report that Nsight Systems opens; each lane is a stream of its own.

    What a lane has at once goes to further streams, as ranges of one have to nest. Partitions, waits and counters are not
    written.

    Raises
    ------
    MissingExtraError
        If nvtx 0.2.16 or later, or the library of Nsight Systems, is not installed.
    TraceFileError
        If the library writes no report.
    """
    target = Path(path)
    writer, library = _find_writer(), find_library()
    stem = target.with_suffix("")
    try:
        with writer.Session(str(stem), backend=writer.load_backend(library)) as session:
            _write(trace, session)
    except (writer.WriterError, OSError, RuntimeError) as error:
        raise TraceFileError(f"{str(target)!r} was not written: {library} says: {error}") from error
    if not target.is_file():
        raise TraceFileError(f"{library} ended without an error, but there is no {str(target)!r}. Update Nsight Systems.")


def find_library() -> Path:
    """Return the path of Nsight Systems' library.

    Raises
    ------
    MissingExtraError
        If there is none.
    """
    told = os.environ.get(VARIABLE)
    if told:
        return Path(told)
    found = shutil.which("nsys")
    # .../nsight-systems/2026.1.1/target-linux-x64/nsys, and beside that folder host-linux-x64
    folders = [] if found is None else list(Path(found).resolve().parents[:2])
    libraries = [library for folder in folders for library in sorted(folder.glob(f"host-*/{LIBRARY}"))]
    if not libraries:
        raise MissingExtraError(
            f"Reports of Nsight Systems are written by its own library, {LIBRARY}, which is not installed here. Install Nsight "
            f"Systems 2024.6 or later with its host part, or set {VARIABLE} to the library's path. Perfetto needs nothing: "
            "trace.save('run.json.gz')."
        )
    return libraries[0]


def _find_writer() -> Any:
    """Return ``nvtx.writer``, which is loaded only here."""
    try:
        return importlib.import_module("nvtx.writer")
    except ImportError as error:
        raise MissingExtraError(
            "Reports of Nsight Systems are written through nvtx.writer, which nvtx 0.2.16 and later have. Install it with: "
            "pip install 'nvtx>=0.2.16'"
        ) from error


def _write(trace: Trace, session: Any) -> None:
    """Write each sub-lane of a lane as a stream, its spans in order of their starts, the longer one first."""
    domain = session.get_domain("gpustreamlab")
    number = sublanes(trace.start_ns, trace.end_ns, trace.lane)
    start_ns, end_ns = trace.start_ns + trace.metadata.epoch_unix_ns, trace.end_ns + trace.metadata.epoch_unix_ns
    for place, lane in enumerate(trace.lanes):
        for sub in range(int(number[trace.lane == place].max(initial=-1)) + 1):
            rows = np.flatnonzero((trace.lane == place) & (number == sub))
            rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
            name = lane.name + (f" ({sub + 1})" if sub else "")
            with session.create_stream(name, domain=domain) as stream:
                for row in rows.tolist():
                    text, kind = trace.names[trace.name[row]], SPAN_KINDS[trace.kind[row]].value
                    stream.write_pushpop(int(start_ns[row]), int(end_ns[row]), message=text, category=kind)
