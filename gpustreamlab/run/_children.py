"""Record the Python processes that a program starts, each into a file that is read when the program has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpustreamlab._util.defences import in_forked_child
from gpustreamlab.errors import TraceFileError
from gpustreamlab.run._recording import ProgramRecording, Wanted
from gpustreamlab.sinks.spool import read_spool
from gpustreamlab.trace import Trace, as_trace

VARIABLE = "GPUSTREAMLAB_CHILDREN"
"""What children find in their environment: what is to be recorded, as JSON."""
_SITE = Path(__file__).parent / "site"
_FIELDS = ("title", "backend", "has_stacks", "has_torch_ranges", "spool_limit_bytes")
_recordings: list[ProgramRecording] = []  # That of this process, if it is a child


class Children:
    """The children of a program, from `start` on.

    Parameters
    ----------
    wanted
        What of each is to be recorded.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # The number of this process, so that files of another run are not taken for theirs.
        self._stem = f"{wanted.stem.name}-{os.getpid()}-child"

    def start(self) -> None:
        """Record each Python process that is started, or forked, from now on."""
        told = {name: getattr(self._wanted, name) for name in _FIELDS}
        os.environ[VARIABLE] = json.dumps({**told, "stem": str(self._wanted.stem.with_name(self._stem))})
        paths = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        in_forked_child(begin_in_child)

    def traces(self) -> Iterator[Trace]:
        """Return what those recorded that used the GPU."""
        for path in self.paths():
            try:
                yield as_trace(read_spool(path))
            except TraceFileError:  # one that was killed before anything was in its file
                continue

    def paths(self) -> list[Path]:
        """Return their files."""
        folder = self._wanted.stem.parent
        return sorted(path for path in folder.iterdir() if path.name.startswith(self._stem) and path.suffix == ".gsl")


def begin_in_child() -> None:
    """Follow this process, which a recorded program has started or forked, if that is wanted; a forked one anew."""
    told = os.environ.get(VARIABLE)
    if told is None or (_recordings and not _recordings[-1].is_another_process):
        return
    facts = json.loads(told)
    stem = Path(facts.pop("stem"))
    wanted = Wanted(stem=stem.with_name(f"{stem.name}-{os.getpid()}"), device=int(os.environ.get("LOCAL_RANK") or 0), **facts)
    recording = ProgramRecording(replace(wanted, is_child=True), str, str)
    _recordings.append(recording)
    recording.start()
