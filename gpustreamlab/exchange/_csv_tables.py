"""Read tables of CSV: kernels, copies, calls and ranges of ``nsys stats`` and of rocprofv3, rows in any order.

Sources: ``cuda_gpu_trace``, ``cuda_api_trace`` and ``nvtx_pushpop_trace`` of Nsight Systems; ``generateCSV.cpp`` of
rocprofiler-sdk. Columns are found by their names, which differ between versions in blanks, signs and units.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from os import PathLike
from pathlib import Path

from gpustreamlab._util.host import require_room
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import BYTE_ORDER_MARK
from gpustreamlab.exchange._frame import ANNOTATION, COPY, HOST, KERNEL, reading
from gpustreamlab.exchange._nsys_tables import LETTERS, MEMORY, copy_name
from gpustreamlab.exchange._rocm import ROCM_BACKEND, name_streams
from gpustreamlab.exchange._rows import Rows, Shape, Stream, kind_of, sizes, whole
from gpustreamlab.model import NSYS_BACKEND, Trace

_UNITS = {"ns": 1, "us": 10**3, "\u03bcs": 10**3, "\u00b5s": 10**3, "ms": 10**6, "s": 10**9, "sec": 10**9}
_BYTES = {"b": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_HEAD = re.compile(
    rb'^[^\n]*"?(?:Start \([^)]+\)"?,"?(?:Duration|End) \([^)]+\)|Start_Timestamp"?,"?End_Timestamp|BeginNs"?,"?EndNs)',
    re.MULTILINE,
)
_CARD = re.compile(r"\((\d{1,7})\)$")
_LAST_NUMBER = re.compile(r"(\d{1,7})\D*$")
_COPY = re.compile(r"^\[CUDA (?:memcpy|Unified Memory memcpy) ([A-Za-z-]+)\]")
_AGAIN = "Read what the profiler recorded itself, which tells more: nsys export --type sqlite, rocprofv3 --output-format rocpd"
_MOST_HEAD_LINES = 64
_TIMES = ({"start", "duration"}, {"start", "dur"}, {"starttimestamp", "endtimestamp"})
_OF_ROCPROF = {"beginns": "starttimestamp", "endns": "endtimestamp", "gpuid": "agentid", "lds": "ldsblocksize"}
_OF_ROCPROF |= {"grd": "gridsizex", "wgr": "workgroupsizex"}  # products of three sizes

_Row = Mapping[str, str]


def is_table(head: bytes) -> bool:
    """Tell by its first bytes whether a file is such a table."""
    return _HEAD.search(head.removeprefix(BYTE_ORDER_MARK)[:4096]) is not None


def read_tables(path: str | PathLike[str]) -> Trace:
    """Read a table of ``nsys stats --format csv``, or of rocprofv3."""
    require_room(Path(path).stat().st_size * 2, repr(str(path)))
    rows, is_rocm = Rows(), False
    again = reading(path, "a table of nsys or rocprofv3", _AGAIN, csv.Error)
    with again, Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
        table = csv.reader(file)
        names = next((line for _, line in zip(range(_MOST_HEAD_LINES), table) if _is_head(line)), None)  # noqa: B905
        if names is None:
            raise TraceFileError(f"{str(path)!r} is no table of nsys or rocprofv3: it has no times. {_AGAIN}")
        keys = [_key(name) for name in names]
        is_rocm = "starttimestamp" in keys
        units = {_key(name): unit for name in names if (unit := re.search(r"\((\S+)\)$", name.strip()))}
        factors = {key: _UNITS.get(unit[1].lower(), _BYTES.get(unit[1].lower(), 1)) for key, unit in units.items()}
        line = keys
        for line in filter(None, table):
            one = dict(zip(keys, line, strict=False))
            _add_rocm(rows, one) if is_rocm else _add_nsys(rows, one, factors)
        rows.cut = "its last row has too few columns" if len(line) < len(keys) else ""
    if is_rocm:
        name_streams(rows)
    source, backend = ("AMD's rocprofv3", ROCM_BACKEND) if is_rocm else ("Nsight Systems", NSYS_BACKEND)
    missing = ["A table of CSV holds only kernels and copies, only calls, or only ranges: the report tells all."]
    return rows.trace(path, f"{source} (CSV)", _AGAIN, backend=backend, missing=missing)


def _add_nsys(rows: Rows, one: _Row, factors: Mapping[str, int]) -> None:
    start_ns = _scaled(one.get("start"), factors.get("start", 1))
    lasts_ns = _scaled(one.get("duration", one.get("dur")), factors.get("duration", factors.get("dur", 1)))
    end_ns = start_ns + lasts_ns if start_ns is not None and lasts_ns is not None else None
    name = one.get("name", "")
    if "strm" in one:
        found, device = _COPY.match(name), _CARD.search(one.get("device", ""))
        kind = kind_of(name) if name.startswith("[") else KERNEL
        told = _copy_name(found[1], one.get("srcmemkd", ""), one.get("dstmemkd", "")) if found else name
        grid, block = (sizes([one.get(f"{what}{axis}") for axis in "xyz"]) for what in ("grd", "blk"))
        shared = _scaled(one.get("stcsmem"), factors.get("stcsmem", 1)) or 0
        shape = Shape(told or "unknown kernel", grid, block, whole(one.get("regtrd")), shared)
        stream = Stream(int(device[1]) if device else 0, whole(one.get("strm")), f"stream {whole(one.get('strm'))}")
        size = _scaled(one.get("bytes"), factors.get("bytes", 1))
        rows.add_work(start_ns, end_ns, stream, shape, kind, size, one.get("corrid"))
    else:
        kind = HOST if "corrid" in one else ANNOTATION
        rows.add_on_host(start_ns, end_ns, f"thread {whole(one.get('tid'))}", name.lstrip(":"), kind, one.get("corrid"))


def _add_rocm(rows: Rows, one: _Row) -> None:
    start_ns, end_ns = (_scaled(one.get(f"{end}timestamp"), 1) for end in ("start", "end"))
    launch, stream = one.get("correlationid"), whole(one["streamid"]) if one.get("streamid") else -1
    if "kernelname" in one:
        threads, grid = ([one.get(f"{what}size{axis}", "1") for axis in "xyz"] for what in ("workgroup", "grid"))
        blocks = sizes([-(-whole(all_) // max(whole(each), 1)) for all_, each in zip(grid, threads, strict=True)])
        shared = whole(one.get("ldsblocksize", one.get("groupsegmentsize")))
        queue = whole(one.get("queueid"))
        shape = Shape(one["kernelname"] or "unknown kernel", blocks, sizes(threads), whole(one.get("vgprcount")), shared, queue)
        rows.add_work(start_ns, end_ns, Stream(_agent(one.get("agentid")), stream, "", queue), shape, launch=launch)
    elif "direction" in one:
        direction = one["direction"]
        agent = one.get("sourceagentid") if direction.upper().endswith("HOST") else one.get("destinationagentid")
        rows.add_work(start_ns, end_ns, Stream(_agent(agent), stream, ""), Shape(direction), COPY, 0, launch)
    else:
        kind = ANNOTATION if "MARKER" in one.get("domain", "") else HOST
        rows.add_on_host(start_ns, end_ns, f"thread {whole(one.get('threadid'))}", one.get("function", ""), kind, launch)


def _copy_name(way: str, source: str, target: str) -> str:
    """Return the name that the same copy has in a trace of our own, with the kinds of memory where they are told."""
    letters = way.replace("-to-", "to").replace("Host", "H").replace("Device", "D")
    kinds = [MEMORY.index(kind.lower()) if kind.lower() in MEMORY else -1 for kind in (source, target)]
    return copy_name(LETTERS.index(letters) + 1, *kinds) if letters in LETTERS else f"memcpy {letters}"


def _agent(told: str | None) -> int:
    """Return the number of an agent, which a table does not tell from that of a card."""
    found = _LAST_NUMBER.search(told or "")
    return int(found[1]) if found else 0


def _is_head(line: list[str]) -> bool:
    return any(times <= {*map(_key, line)} for times in _TIMES)


def _key(name: str) -> str:
    """Return the name of a column without its unit and signs, as rocprofv3 calls it."""
    found = re.sub(r"[^a-z]", "", re.sub(r"\(.*\)", "", name).lower())
    return _OF_ROCPROF.get(found, found)


def _scaled(text: str | None, factor: int) -> int | None:
    """Return a decimal in its smallest unit, or None."""
    try:
        number = Decimal((text or "").replace(",", ""))
        return int((number * factor).to_integral_value()) if abs(number) < 1 << 61 else None
    except (InvalidOperation, ValueError):
        return None
