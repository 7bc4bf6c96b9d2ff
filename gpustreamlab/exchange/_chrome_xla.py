"""What XLA tells of the work of a GPU, in the arguments of events, which are texts."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from gpustreamlab.exchange._event_file import whole_number
from gpustreamlab.model import WorkDetail
from gpustreamlab.typing import SpanKind

_GRID = re.compile(r"\bgrid:(\d+),(\d+),(\d+)")
_BLOCK = re.compile(r"\bblock:(\d+),(\d+),(\d+)")
_NUMBER = re.compile(r"\b(regs|static_shared|dynamic_shared|size|num_bytes):(\d{1,18})\b")


class Args(msgspec.Struct, gc=False):
    """What XLA tells of work. Its values are texts."""

    correlation: object = msgspec.field(name="correlation_id", default=None)
    context: object = msgspec.field(name="context_id", default=None)
    kernel: object = msgspec.field(name="kernel_details", default=None)
    copy: object = msgspec.field(name="memcpy_details", default=None)
    fill: object = msgspec.field(name="Memset_details", default=None)
    allocated: object = msgspec.field(name="memalloc_details", default=None)
    freed: object = msgspec.field(name="MemFree_details", default=None)
    resident: object = msgspec.field(name="MemoryResidency_details", default=None)


class Shape(NamedTuple):
    """What many slices share."""

    name: str
    kernel: str = ""
    copy: str = ""
    fill: str = ""
    is_memory: bool = False
    """Whether it lasts as long as memory was allocated."""


NO_ARGS = Args()
ARGS = msgspec.json.Decoder(Args)


def work_of(shape: Shape) -> tuple[SpanKind, WorkDetail, int]:
    """Return what work on a stream is, how it was launched, and its bytes."""
    numbers = {key: int(value) for text in (shape.kernel, shape.copy, shape.fill) for key, value in _NUMBER.findall(text)}
    name = shape.name.lower()
    kind = (
        SpanKind.COPY
        if shape.copy or name.startswith("memcpy")
        else SpanKind.FILL
        if shape.fill or name.startswith("memset")
        else SpanKind.KERNEL
    )
    detail = WorkDetail(
        full_name=shape.name,
        grid=_three(_GRID.search(shape.kernel)),
        block=_three(_BLOCK.search(shape.kernel)),
        registers=numbers.get("regs", 0),
        static_shared_bytes=numbers.get("static_shared", 0),
        dynamic_shared_bytes=numbers.get("dynamic_shared", 0),
    )
    return kind, detail, numbers.get("size", numbers.get("num_bytes", 0))


def _three(found: re.Match[str] | None) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in found.groups()) if found else (0, 0, 0)
    return sizes if max(sizes) < 1 << 32 else (0, 0, 0)  # type: ignore[return-value] # it has three groups


def whole_of(value: object) -> int:
    """Return a whole number, also of a text such as XLA writes."""
    if isinstance(value, str):
        digits = value.removeprefix("$$")
        return whole_number(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    return whole_number(value)
