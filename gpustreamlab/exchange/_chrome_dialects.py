"""How tools that write Chrome's trace event format tell what is a stream of a device, beside JAX and XLA.

Sources: ``profiler.cc`` and ``cupti_manager.cc`` of ONNX Runtime; ``timeline.py`` of TensorFlow 1 and 2; ``tblextr.py`` of
rocprof (ROCm 3 to 6) and ``rpd2tracing.py`` of rocmProfileData; ``ascend_hardware_assembler.cpp`` of Ascend's msprof;
``chrome_logger.h`` of Intel's PTI (unitrace).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LAST_NUMBER = re.compile(r"\d{1,18}")
_WAY = re.compile(r"^Memcpy(Host|Device)To(Host|Device)$")


class Dialect(NamedTuple):
    """What tells a stream in the files of one tool."""

    source: str
    process: re.Pattern[str]
    """What a process is called in which devices work; its first group, if any, is the device's number."""
    thread: re.Pattern[str] | None = None
    """What a thread in it is called that is a stream, with its number; None where its own number is the stream's."""
    beside: re.Pattern[str] | None = None  # Processes that say again what devices did
    keeps_names: bool = False  # Whether lanes are called as the threads are
    is_of_process: bool = False  # Whether the process is the stream, with the number as the second group
    waits: re.Pattern[str] | None = None  # What on a stream is no work, but waits for an event, or records one: its group
    hint: str = ""  # What the file lacks, and what has it


_ONNX_PROCESS = "ONNX Runtime's device"
XLA = Dialect("another tool, as Chrome's JSON", re.compile(r"/device:GPU:(\d{1,7})\b"), re.compile(r"Stream #(\d{1,18})\b"))
_TENSORFLOW = Dialect(
    "TensorFlow's timeline",
    re.compile(r"/(?:device:)?GPU:(\d{1,7})/(?:context#\d+/)?(?:stream[:#]|memcpy)(\d{0,18})(?!all)", re.IGNORECASE),
    is_of_process=True,
    hint="TensorFlow's timeline tells no grids; tf.profiler.experimental.start writes an .xplane.pb, which does.",
)
_ONNX = Dialect(
    "ONNX Runtime", re.compile(rf"^{_ONNX_PROCESS}$"), hint="ONNX Runtime tells neither which card nor which call work is of."
)
_ASCEND = Dialect(
    "Ascend's profiler",
    re.compile(r"^Ascend Hardware\b(?:\D*(\d{1,7}))?"),
    re.compile(r"^(?:Stream (\d{1,18}))?$"),  # some lack the name, and have the stream's number
    waits=re.compile(r"^(?:REMOTE_)?(?:EVENT|NOTIFY|CAPTURE|MEM)_?(WAIT|RECORD)", re.IGNORECASE),
    beside=re.compile(r"^(?:Overlap Analysis|Communication|HCCL)\b"),
)
_ROCPROF = Dialect("AMD's rocprof", re.compile(r"^GPU ?(\d{1,7})$"))
_UNITRACE = Dialect("Intel's unitrace", re.compile(r"^(?:RANK \d+ )?DEVICE<[^#]*(?:#(\d{1,7})(?:\.\d+)?)?$"), keeps_names=True)
_DIALECTS = (_TENSORFLOW, XLA, _ONNX, _ASCEND, _ROCPROF, _UNITRACE)


class Event(Protocol):
    """An event, as far as it is changed."""

    ph: object
    cat: object
    name: object
    pid: object
    tid: object
    args: msgspec.Raw


_Event = TypeVar("_Event", bound=Event)
_ONNX_ARGS = msgspec.json.Decoder(dict[str, Any])  # whose values are texts


def adapted(events: Iterable[_Event]) -> Iterator[_Event]:
    """Yield events, those of work of ONNX Runtime as XLA would tell them, with the name of their process before."""
    for event in events:
        if event.cat == "Kernel" and event.ph == "X":
            with suppress(*WRONG):
                told = _ONNX_ARGS.decode(event.args)
                if "stream" in told:
                    yield from _of_onnx(event, told)
                    continue
        yield event


def _of_onnx(event: _Event, told: dict[str, Any]) -> Iterator[_Event]:
    of_process = copy(event)
    event.pid, event.tid = _ONNX_PROCESS, str(told["stream"])
    of_process.ph, of_process.name, of_process.pid = "M", "process_name", _ONNX_PROCESS
    of_process.args = msgspec.Raw(msgspec.json.encode({"name": _ONNX_PROCESS}))
    if found := _WAY.match(str(event.name)):
        event.name = f"memcpy {found[1][0]}to{found[2][0]}"
        event.args = msgspec.Raw(msgspec.json.encode({"memcpy_details": f"size:{told.get('size')}"}))
    else:
        grid, block = (",".join(str(told.get(f"{what}_{axis}")) for axis in "xyz") for what in ("grid", "block"))
        event.args = msgspec.Raw(msgspec.json.encode({"kernel_details": f"grid:{grid} block:{block}"}))
    yield of_process
    yield event


def find_dialect(process: str) -> Dialect | None:
    """Return whose file it is in which a process of devices is called that; None for a process of the host."""
    return next((one for one in _DIALECTS if one.process.search(process)), None)


def stream_of(dialect: Dialect, process: str, thread: str, tid: str) -> tuple[int, int] | None:
    """Return the device and the number of a stream; None where the thread of such a process is none."""
    found = dialect.process.search(process)
    if found is None:
        return None
    device = int(found[1] or 0) if found.groups() else 0
    if dialect.is_of_process:
        return device, int(found[2] or 0)
    named = dialect.thread.match(thread) if dialect.thread else None
    if dialect.thread and not named:
        return None
    number = (named and named[1]) or _LAST_NUMBER.findall(tid)[-1:] or [str(zlib.crc32(tid.encode("utf-8", "replace")))]
    return device, int(number if isinstance(number, str) else number[0])
