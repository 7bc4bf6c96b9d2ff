"""Read XPlane files (``.xplane.pb``), which JAX, TensorFlow and PyTorch/XLA write: times in ps, grids, the card.

Source: ``tsl/profiler/protobuf/xplane.proto`` and ``xplane_schema.cc`` (OpenXLA).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab._util.words import install_line
from gpustreamlab.errors import MissingExtraError
from gpustreamlab.exchange._chrome import work_of
from gpustreamlab.exchange._chrome_events import Shape as Told
from gpustreamlab.exchange._formats import unpacked
from gpustreamlab.exchange._frame import ANNOTATION, HOST, reading
from gpustreamlab.exchange._rows import LARGEST, Rows, Shape, Stream, whole
from gpustreamlab.model import CHROME_BACKEND, Device, Trace

_GPU = re.compile(r"/device:GPU:(\d{1,7})\b")
_STREAM = re.compile(r"Stream #(\d{1,18})(?:\(|$)")
_SUMS = re.compile(r"(TensorFlow|Framework) (Ops|Name Scope)|Source code|Launch Stats")  # Lines that say the same work again
_AGAIN = "Record with: jax.profiler.trace('folder')"
_OF_MEMORY = {"memalloc_details", "MemFree_details", "MemoryResidency_details"}
_MESSAGES = {
    "XSpace": "planes=1*XPlane",
    "XPlane": "name=2s lines=3*XLine event_metadata=4*Named stat_metadata=5*Named stats=6*XStat",
    "XLine": "id=1i name=2s timestamp_ns=3i events=4*XEvent display_name=11s",
    "XEvent": "metadata_id=1i offset_ps=2i duration_ps=3i stats=4*XStat",
    "XStat": "metadata_id=1i double_value=2d uint64_value=3u int64_value=4i str_value=5s ref_value=7u",
    "Named": "key=1i value=2.Name",  # an entry of a map
    "Name": "id=1i name=2s",
}
"""What is read of the messages, with the numbers of their fields."""
_FIELD = re.compile(r"(\w+)=(\d+)([a-z]|[*.]\w+)")
_TYPES = {"i": 3, "u": 4, "s": 12, "d": 1}  # Texts as bytes, as some are no UTF-8


def read_xplane(path: str | PathLike[str]) -> Trace:
    """Read an XPlane file, packed by gzip or not."""
    parse = _space()
    from google.protobuf.message import DecodeError

    with reading(path, "an XPlane file", f"Copy it again. {_AGAIN}", DecodeError):
        require_room(Path(path).stat().st_size * 8, repr(str(path)), room_bytes())
        with Path(path).open("rb") as file:
            space = parse(b"".join(unpacked(file)))
    rows, cards = Rows(), dict[int, Device]()
    for plane in space.planes:
        _read_plane(plane, rows, cards)
    missing = ["XPlane files do not tell the limits of an SM: those of most cards are taken."] if cards else []
    return rows.trace(path, "XLA's profiler (XPlane)", _AGAIN, backend=CHROME_BACKEND, cards=cards, missing=missing)


def _read_plane(plane: Any, rows: Rows, cards: dict[int, Device]) -> None:
    names, stats = ({one.key: _text(one.value.name) for one in told} for told in (plane.event_metadata, plane.stat_metadata))
    name = _text(plane.name)
    gpu, is_sum = _GPU.search(name), "stream:all" in name
    if gpu:
        facts = _values(plane.stats, stats)
        number, capability = int(gpu[1]), (whole(facts.get("compute_cap_major")), whole(facts.get("compute_cap_minor")))
        cards[number] = Device(
            name=f"GPU {number}",
            ordinal=number,
            sm_count=min(whole(facts.get("core_count")), 1 << 16),
            compute_capability=capability,
            memory_bytes=whole(facts.get("memory_size")),
        )
    for line in plane.lines:
        called = _text(line.display_name or line.name)
        stream = _STREAM.match(called)
        if is_sum or _SUMS.match(called) or (gpu and not stream):
            rows.left_out["that sum up what devices did"] += len(line.events)
            continue
        for event in line.events:
            facts, name = _values(event.stats, stats), names.get(event.metadata_id) or "unknown"
            start_ns = line.timestamp_ns + event.offset_ps // 1_000
            end_ns = line.timestamp_ns + (event.offset_ps + event.duration_ps) // 1_000
            launch = whole(facts.get("correlation_id"))
            if not gpu or not stream:
                rows.add_on_host(start_ns, end_ns, called or f"thread {line.id}", name, HOST if launch else ANNOTATION, launch)
            elif facts.keys() & _OF_MEMORY:
                rows.left_out["spans of allocated memory on streams"] += 1
            else:
                kernel, copied, filled = (str(facts.get(f"{what}_details", "")) for what in ("kernel", "memcpy", "Memset"))
                kind, detail, size = work_of(Told(name, kernel, copied, filled))
                shared = detail.static_shared_bytes + detail.dynamic_shared_bytes
                shape = Shape(name, detail.grid, detail.block, detail.registers, min(shared, LARGEST))
                where = Stream(int(gpu[1]), int(stream[1]), f"stream {stream[1]}")
                rows.add_work(start_ns, end_ns, where, shape, kind, size, launch)


def _values(told: Any, names: Mapping[int, str]) -> dict[str, object]:
    """Return stats by their names; a text may be the name of another one."""
    found: dict[str, object] = {}
    for one in told:
        if one.ref_value:
            value: object = names.get(one.ref_value, "")
        else:
            value = _text(one.str_value) or one.uint64_value or one.int64_value or one.double_value
        found[names.get(one.metadata_id, "")] = value
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@cache
def _space() -> Any:
    """Return what parses a whole file."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError(
            f"XPlane files are read by protobuf, which is not installed. Install it with: {install_line('perfetto')} - or read "
            "the .trace.json.gz that lies beside it."
        ) from error
    file = descriptor_pb2.FileDescriptorProto(name="gpustreamlab/xplane.proto", package="gpustreamlab.xplane", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, type_ in _FIELD.findall(fields):
            one = message.field.add(name=field, number=int(number), label=3 if type_[0] == "*" else 1)
            if type_ in _TYPES:
                one.type = _TYPES[type_]
            else:
                one.type, one.type_name = 11, f".gpustreamlab.xplane.{type_[1:]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("gpustreamlab.xplane.XSpace")).FromString
