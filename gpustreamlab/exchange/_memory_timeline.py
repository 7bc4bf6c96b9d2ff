"""Read memory timelines of PyTorch's profiler as counters: bytes of each category over time.

Source: ``torch/profiler/_memory_profiler.py``, ``export_memory_timeline``: ``[times, sizes]``, times in us, and in each row of
sizes a 0 before the categories.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import msgspec
import numpy as np

from gpustreamlab._util.host import require_room
from gpustreamlab.exchange._formats import unpacked
from gpustreamlab.exchange._frame import Frame, reading
from gpustreamlab.exchange._rows import LARGEST
from gpustreamlab.model import KINETO_BACKEND, Counters, Device, Lane, Trace
from gpustreamlab.typing import LaneKind

_WRONG = (ValueError, OverflowError, msgspec.MsgspecError)
_CATEGORIES: tuple[str, ...] = ("parameters", "optimizer state", "inputs", "temporaries", "activations", "gradients")
_CATEGORIES += ("autograd detail", "unknown")
_AGAIN = "Export it with: prof.export_memory_timeline('memory.json')"


def read_memory(path: str | PathLike[str]) -> Trace:
    """Read a memory timeline, packed by gzip or not."""
    with reading(path, "a memory timeline of PyTorch", f"A raw one is not read. {_AGAIN}", *_WRONG):
        require_room(Path(path).stat().st_size * 8, repr(str(path)))
        with Path(path).open("rb") as file:
            times, sizes = msgspec.json.decode(b"".join(unpacked(file)), type=tuple[list[int], list[list[int]]])
        time_ns, table = np.array(times, np.int64) * 1_000, np.array(sizes, np.float64)
        if not len(times) or table.shape != (len(times), len(_CATEGORIES) + 1) or max(map(abs, times)) * 1_000 >= LARGEST:
            raise ValueError(f"it holds {len(times):,} times and {len(sizes):,} rows of sizes")
    order = np.argsort(time_ns, kind="stable")
    count = len(_CATEGORIES)
    return Frame(
        backend=KINETO_BACKEND,
        source="PyTorch's memory profiler",
        path=str(path),
        lanes=[Lane(name="host: memory", kind=LaneKind.HOST)],
        names=[],
        parts=[dict.fromkeys(("start_ns", "end_ns", "lane", "name", "kind"), np.empty(0, np.int64))],
        counters=Counters(
            time_ns=np.repeat(time_ns[order], count),
            lane=np.zeros(len(times) * count, np.int32),
            name=np.tile(np.arange(count, dtype=np.int32), len(times)),
            value=table[order, 1:].ravel(),
            names=tuple(f"{name}_bytes" for name in _CATEGORIES),
        ),
        idle_device=Device(name="unknown device", ordinal=0, sm_count=0),
        imported=f"{len(times) * count:,} samples of {count} categories at {len(times):,} moments",
        missing=["A memory timeline holds no work of a GPU: read the profile beside it, of prof.export_chrome_trace()."],
        is_in_us=True,
    ).trace()
