"""Which format a file has, told by its first bytes, and what reads and writes each format."""

from __future__ import annotations

import codecs
import gzip
import importlib
import os.path
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab.analysis import NEEDS, tag_columns, wait_needs
from gpustreamlab.errors import OptionError, TraceFileError, nearest_hint
from gpustreamlab.exchange._archives import GZIP, is_archive, is_packed, opened
from gpustreamlab.model import Trace, trace_to_table, write_file_whole, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

AUTO = "auto"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEAD_BYTES = 1 << 20  # How much of a file is looked at, unpacked, to tell what it is


FORMATS: Mapping[str, str] = {
    "parquet": "gpustreamlab.model:read_trace",
    "spool": "",  # read by a room above this one
    "record": "gpustreamlab.exchange._stored:read_record",
    "html": "gpustreamlab.model:read_page",
    "kineto": "gpustreamlab.exchange._kineto:read_kineto",
    "chrome": "gpustreamlab.exchange._chrome:read_chrome",
    "nsys": "gpustreamlab.exchange._nsys:read_nsys",
    "perfetto": "gpustreamlab.exchange._pftrace:read_pftrace",
    "rocm": "gpustreamlab.exchange._rocm:read_rocm",
    "csv": "gpustreamlab.exchange._csv_tables:read_tables",
    "xplane": "gpustreamlab.exchange._xplane:read_xplane",
    "memory": "gpustreamlab.exchange._memory_timeline:read_memory",
}
"""What reads each format, imported when a file has to be read, by the names that ``format=`` takes."""
_OURS = {"parquet", "spool", "record", "html"}
_UNPACKING = {"kineto", "chrome", "perfetto", "xplane", "memory"}  # Formats whose readers take files packed by gzip as they are

READABLE = (
    "gsl.load_trace() reads Parquet files of trace.save(), spools of Session(spool=...), pages of "
    "timeline().save('run.html', with_data=True), JSON of PyTorch's profiler and of others in Chrome's format, reports "
    "of Nsight Systems and exports (SQLite, Parquet, JSON lines, CSV), Perfetto's .pftrace, rocpd, JSON and CSV of rocprofv3, "
    ".xplane.pb of XLA, profiles of ONNX Runtime, Intel's unitrace, Ascend and TensorFlow, and memory timelines of PyTorch. "
    "Each but a report may be packed by gzip, zstd, ZIP or tar."
)
"""What can be read, in words."""

WRITERS: Mapping[str, str] = {
    ".parquet": "gpustreamlab.exchange._formats:write_parquet_file",
    ".pftrace": "gpustreamlab.exchange._pftrace_write:write_pftrace",
    ".pftrace.gz": "gpustreamlab.exchange._pftrace_write:write_pftrace",
    ".json": "gpustreamlab.exchange._chrome_write:write_chrome",
    ".json.gz": "gpustreamlab.exchange._chrome_write:write_chrome",
    ".csv": "gpustreamlab.exchange._formats:write_csv",
}
"""What can be written, by suffix."""

_FRAME = re.compile(rb"\n([\x80-\xff]{0,9}[\0-\x7f])")  # Tag and size of a packet of Perfetto's
_LOOK_BYTES = 1 << 16
_LONGEST_FRAME = 11

# A plane of XLA's, with its number and name; a packet of Perfetto's begins alike.
_XPLANE = re.compile(rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12./(?:host|device):", re.DOTALL)
_ROCPD = re.compile(rb"create (?:table|view)[^(]{0,20}rocpd_", re.IGNORECASE)
_BEGINS = {b"PAR1": "parquet", b"\xff\xff\xff\xff": "spool", b"GSLSTORE": "record", b"SQLite format 3\0": "nsys"}
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")

_TABLE = "a table (CSV), of which Trace.from_columns() makes a trace. Save as .parquet to read it back exactly"
_SUMS = (
    "a table of sums of nsys or rocprofv3, which has no time axis. Read the report, or export: nsys stats --report "
    "cuda_gpu_trace --format csv, rocprofv3 --kernel-trace --output-format csv"
)
_FOREIGN = {
    GZIP: "packed by gzip twice. Unpack it once: gunzip",
    b"ARROW1": "an Arrow file. pyarrow reads it, and Trace.from_columns() makes a trace of columns",
    b"PK\x03\x04": "a ZIP archive. Read it alone, or unpack it: unzip",
    b"PK\x05\x06": "a ZIP archive with nothing in it",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "a text in UTF-16, as PowerShell's > writes it. Save it as UTF-8"),
    b"\x28\xb5\x2f\xfd": "packed by zstd. Read it alone, or unpack it: zstd -d",
    b"\xfd7zXZ\0": "packed by xz. Unpack it: xz -d",
    b"BZh": "packed by bzip2. Unpack it: bunzip2",
    b"\x80": "a pickle, which is not opened, as it may run code. Save the trace with trace.save('run.parquet')",
    b"version https://git-lfs": "a pointer of Git LFS to the file. Fetch it: git lfs pull",
    b"\x89PNG": "a picture. Pictures hold no data",
    b"<svg": "a picture. Pictures hold no data",
    b"<?xml": "a picture or other XML, which holds no trace",
    b"NVR\0": "a report of Nsight Compute (.ncu-rep): it measures one kernel after the other and has no time axis. Record with "
    "Nsight Systems: nsys profile --trace=cuda,nvtx",
    b"Time (%),": _SUMS,
    b'"Name","Calls","TotalDurationNs"': _SUMS,
    b'"Index","KernelName"': "a table of rocprof without times. Record with: rocprof --timestamp on, or "
    "rocprofv3 --kernel-trace --output-format csv",
    b"start_ns,": _TABLE,
    b'"start_ns",': _TABLE,
}
"""What is known and not read, and what to do."""
_PROFILE = "Export the profile beside it: prof.export_chrome_trace('run.json.gz')"
_EXECUTION = f"an ExecutionTrace of PyTorch (Chakra), which has no times of devices. {_PROFILE}"
_FOREIGN_JSON = {
    rb'^\s*\{\s*"schema"\s*:\s*"[\d.]+(?:-chakra[^"]*)?"\s*,\s*"pid"': _EXECUTION,
    rb'"\$schema"\s*:\s*"https?://(?:www\.)?speedscope': "a profile of speedscope, which has stacks of the host and no "
    "devices. Record with PyTorch's profiler or Nsight Systems",
    rb'^\s*\[\s*\{\s*"(?:children|frame)"\s*:\s*[\[{]': "a tree of Triton's proton (hatchet), which has sums and no "
    'time axis. Record with proton.start("run", data="trace"), which writes .chrome_trace',
    rb'^\s*\[\s*\{\s*"count"\s*:\s*\d+\s*\}': "a profile of trtexec (--exportProfile), which has times of layers and no "
    "time axis. Record with: nsys profile --trace=cuda,nvtx trtexec ...",
    rb'^\s*\[\s*\{\s*"start(?:Enq|H2d|In|Compute)Ms"': "times of trtexec (--exportTimes), which has no kernels. Record with: "
    "nsys profile --trace=cuda,nvtx trtexec ...",
}
"""Likewise JSON, by what is in its beginning."""


def find_format(path: str | PathLike[str]) -> str:
    """Return the name of a file's format, by its first bytes; they are unpacked if they are packed by gzip."""
    if is_nsys_folder(path):
        return "nsys"
    head, name = _read_head(path), Path(path).name.lower()
    found = next((known for begin, known in _BEGINS.items() if head.startswith(begin)), None) or _find_text_format(head)
    if found == "nsys" and _ROCPD.search(head):
        return "rocm"
    if found is not None:
        return found
    looks = _EXECUTION if name.endswith(".et") else _looks_like(head)
    if ".xplane.pb" in name or _XPLANE.match(head):
        return "xplane"
    if _load("gpustreamlab.exchange._csv_tables:is_table")(head):
        return "csv"
    if is_pftrace(head):
        return "perfetto"
    if name.endswith(REPORT_SUFFIXES):  # what is in one only nsys knows
        return "nsys"
    raise TraceFileError(f"{str(path)!r} is no trace: it looks like {looks}. {READABLE}")


def is_nsys_folder(path: str | PathLike[str]) -> bool:
    """Tell whether it is what ``nsys export --type=parquetdir`` writes."""
    tables = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL")
    return any(os.path.isfile(os.path.join(path, f"{one}.parquet")) for one in tables)  # noqa: PTH113, PTH118 - take any name


def check_format(name: object) -> None:
    """Raise `OptionError` where there is no such format."""
    if not isinstance(name, str) or name not in (AUTO, *FORMATS):
        raise OptionError(f"format is {name!r}, which is none. {nearest_hint(str(name), [AUTO, *FORMATS])}")


def read_as(name: str, path: Path, readers: Mapping[str, Callable[[Path], Trace]]) -> Trace:
    """Read a file as one format; of an archive the trace that is in it."""
    if _is_archive(path):
        with opened(path) as inner:
            return read_as(name, inner, readers)
    if name == AUTO:
        name = find_format(path)
    elif not is_nsys_folder(path):
        _read_head(path)  # tells whether there is anything to read
    read = readers.get(name) or _load(FORMATS[name])
    if name in _UNPACKING or not is_packed(path):
        return read(path)
    with opened(path) as inner:
        return read(inner)


def are_ours(paths: Sequence[str | PathLike[str]], name: str = AUTO) -> bool:
    """Return whether gpustreamlab itself recorded each of these files."""
    return all((find_format(path) if name == AUTO else name) in _OURS for path in paths)


def read_ranks(paths: Sequence[str | PathLike[str]], name: str = AUTO) -> Trace:
    """Read the files of several ranks of one job of PyTorch as one trace; see `gpustreamlab.load_trace`."""
    for path in paths:
        found = find_format(path) if name == AUTO else name
        if found != "kineto":
            raise OptionError(
                "Of several files one trace is made where gpustreamlab recorded each, or PyTorch's profiler each of a rank of "
                f"one job; {str(path)!r} is read as {found!r}. Load it alone, and compare two with gsl.compare('a.parquet', "
                "'b.parquet')."
            )
    trace: Trace = _load(FORMATS["kineto"])(list(paths))
    return trace


def find_writer(path: str | PathLike[str]) -> str:
    """Return what writes a file, by its suffix, as module and function."""
    name = Path(str(path)).name
    suffix = next((suffix for suffix in WRITERS if name.lower().endswith(suffix) and len(name) > len(suffix)), None)
    if suffix is None and Path(name).suffix:
        told = ", ".join(repr(suffix) for suffix in WRITERS)
        raise OptionError(
            f"A trace cannot be saved as {name!r}: choose from {told}, for example lab.trace.save('run.parquet'). "
            "lab.timeline().save() writes '.html', '.svg' and '.png', and lab.trace.to_pandas() gives a table for the rest."
        )
    return WRITERS[suffix or ".parquet"]


def require_suffix(path: str | PathLike[str], suffixes: tuple[str, ...], what: str) -> str:
    """Return the name of a file in small letters; raise `OptionError` where it ends in none of the suffixes."""
    name = Path(str(path)).name
    if not name.lower().endswith(suffixes):
        raise OptionError(
            f"{name!r} is no name for {what}: it ends in {' or '.join(suffixes)}. Use for example {'run' + suffixes[0]!r}."
        )
    return name.lower()


def save_trace(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace in the format that the suffix says; see `gpustreamlab.Trace.save`."""
    _load(find_writer(path))(trace, path)


def _load(name: str) -> Callable[..., Any]:
    """Return a function of a module that is loaded only now."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _read_head(path: str | PathLike[str]) -> bytes:
    """Return the first bytes of a file, unpacked."""
    shown = repr(str(path))
    _require_file(path, shown)
    head = b""
    try:
        with Path(path).open("rb") as file:
            for part in unpacked(file):
                head += part
                if len(head) >= HEAD_BYTES:
                    break
    except TraceFileError:
        raise
    except (EOFError, zlib.error) as error:
        if not head:  # what is lost further on is told by who reads it
            raise TraceFileError(
                f"{shown} cannot be unpacked: {error}. It was cut off or is damaged; copy it again."
            ) from error
    except OSError as error:
        raise TraceFileError(f"{shown} cannot be read: {error.strerror}. Check its owner and mode.") from error
    if not head:
        raise TraceFileError(
            f"{shown} is empty: the run ended before anything was written to it. Record the run again; "
            "gpustreamlab.Session(spool='run.gsl') writes while it runs."
        )
    return head[:HEAD_BYTES]


def _require_file(path: str | PathLike[str], shown: str) -> None:
    if os.path.isdir(path):  # noqa: PTH112 - which takes a name that is too long as none
        raise TraceFileError(
            f"{shown} is a folder. Give a file in it, or the files of all ranks of one job: "
            f"gsl.load_trace(sorted(pathlib.Path({shown}).glob('*.json*')))."
        )
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        if os.path.exists(path):  # noqa: PTH110 - as above
            raise TraceFileError(f"{shown} is no file that can be read twice. Save what a pipe gives, then give that file.")
        raise TraceFileError(f"There is no trace file at {shown}. Save one with lab.trace.save(path).")


def _find_text_format(head: bytes) -> str | None:
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text[:1] in {b"{", b"["} and not any(re.search(told, text[:65_536]) for told in _FOREIGN_JSON):
        found: str = _load("gpustreamlab.exchange._json_events:guess_writer")(head)
        return found
    return "html" if text[:14].lower().startswith((b"<!doctype html", b"<html")) else None


def _looks_like(head: bytes) -> str:
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    for begin, words in _FOREIGN.items():
        if head.startswith(begin) or text.startswith(begin):
            return words
    for told, words in _FOREIGN_JSON.items():
        if re.search(told, head[:65_536]):
            return words
    if not head.strip(b"\0"):
        return "nothing but zeros, as after a copy that was cut off"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last sign may be cut in two
    except UnicodeDecodeError:
        return f"nothing that is known here (it begins with {head[:8].hex(' ')})"
    return f"a text ({text[:24].decode(errors='ignore')!r} ...)"


def is_pftrace(head: bytes) -> bool:
    """Tell by its first bytes, unpacked, whether a file is a trace of Perfetto's."""
    start = head[:_LOOK_BYTES]
    found = list(frames(start))
    if not found or start.isspace():
        return False
    (_, first_end), (_, last_end) = found[0], found[-1]
    is_first_seen = first_end <= len(start) or len(start) == _LOOK_BYTES
    return is_first_seen and len(start) - last_end <= _LONGEST_FRAME and last_end > 2 * len(found)  # not all are empty


def frames(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each packet begins and ends; the last one may end behind the bytes."""
    end = 0
    while found := _FRAME.match(content, end):
        begin, varint = found.end(), found[1]
        end = begin + (varint[0] if len(varint) == 1 else varint_size(varint))
        yield begin, end


def varint_size(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


def _is_archive(path: Path) -> bool:
    if is_nsys_folder(path):
        return False
    unpacked_head = _read_head(path)
    with path.open("rb") as file:
        return is_archive(file.read(4), unpacked_head)


def unpacked(file: BinaryIO, part_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Yield what a file holds, in parts, unpacked where it is packed by gzip, and as far as it can be."""
    is_packed = file.read(2) == GZIP
    file.seek(0)
    read = gzip.GzipFile(fileobj=file).read1 if is_packed else file.read
    done_bytes, most_bytes = 0, room_bytes()
    try:
        while part := read(part_bytes):
            done_bytes += len(part)
            if is_packed:
                require_room(done_bytes, repr(str(file.name)), most_bytes)
            yield part
    except (EOFError, gzip.BadGzipFile) as error:
        raise EOFError("it ends early" if isinstance(error, EOFError) else str(error)) from error


def table_with_needs(trace: Trace) -> pa.Table:
    """Return the table of a trace, with its steps, requests, and whether data need its waits, where it has any."""
    import pyarrow as pa

    table, needs, tags = trace_to_table(trace), wait_needs(trace), tag_columns(trace)
    if (tags.step >= 0).any():
        table = table.append_column("step", pa.array(tags.step, mask=tags.step < 0))
    if tags.requests:
        texts = pa.array(["/".join(one) for one in tags.requests])
        codes = pa.array(tags.request.astype("int32"), mask=tags.request < 0)
        table = table.append_column("request", pa.DictionaryArray.from_arrays(codes, texts))
    if not (needs.need >= 0).any():
        return table
    need, buffers = needs.by_row(trace)
    words = pa.DictionaryArray.from_arrays(pa.array(need.astype("int32"), mask=need < 0), pa.array([*map(str, NEEDS)]))
    return table.append_column("wait_need", words).append_column("wait_buffers", pa.array(buffers, mask=need < 0))


def write_parquet_file(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a trace as one Parquet file, with whether data need its waits beside what is read back."""
    write_file_whole(path, lambda partial: write_parquet(trace, partial, table_with_needs(trace)))


def write_csv(trace: Trace, path: str | PathLike[str]) -> None:
    """Write what `Trace.to_pandas` returns, one row a span; tables and metadata are not in it, and it is not read back."""
    require_suffix(path, (".csv",), "CSV")
    frame = table_with_needs(trace).to_pandas()
    frame.insert(2, "duration_ns", trace.duration_ns)
    write_file_whole(path, lambda partial: frame.to_csv(partial, index=False))
