"""What is read of JSON in Chrome's trace event format, and who wrote it."""

from __future__ import annotations

import re

import msgspec

OURS = re.compile(rb'\s*\{\s*"gpustreamlab"\s*:\s*"')
LONGEST_BEGIN = 64
"""How a file of `write_chrome` begins, within so many bytes; behind it is the trace as a Parquet file, in letters of base64."""
_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|traceName)"\s*:|"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset|memcpy|'
    rb"memset|cuda_runtime|cuda_driver|cuda_sync|runtime|cpu_op|operator|user_annotation|gpu_user_annotation|python_function|"
    rb'cpu_instant_event|ac2g|async_cpu_to_gpu)"',
    re.IGNORECASE,
)


class Event(msgspec.Struct, gc=False):
    """One event. What may be of any kind is looked at when it is used."""

    ph: object = None
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    id: object = None
    id2: object = None
    scope: object = None
    s: object = None
    bp: object = None
    args: msgspec.Raw = msgspec.Raw(b"")


class Top(msgspec.Struct):
    """What is read of a file beside its events."""

    base_ns: object = msgspec.field(name="baseTimeNanoseconds", default=None)
    viztracer: object = msgspec.field(name="viztracer_metadata", default=None)


def guess_writer(head: bytes) -> str:
    """Return the format of JSON by its beginning, unpacked; a megabyte is enough.

    Examples
    --------
    >>> guess_writer(b'{"traceEvents": [{"ph": "X", "cat": "gpu_memcpy"}]}'), guess_writer(b'[{"ph": "B", "cat": "ipc"}')
    ('kineto', 'chrome')
    """
    return "kineto" if _OF_KINETO.search(head) and not OURS.match(head) else "chrome"
