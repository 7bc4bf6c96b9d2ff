"""Streams and contexts as CUPTI numbers them."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends._activity import StreamFacts, WorkBatch
from gpustreamlab.backends.cuda._cupti import Cupti
from gpustreamlab.backends.cuda._cupti_constants import RecordKind
from gpustreamlab.backends.cuda._cupti_records import Records
from gpustreamlab.errors import DeviceError
from gpustreamlab.model import WorkDetail

DEFAULT_STREAM = "default stream"
"""What the NULL stream is called."""

LIBRARIES = {"at": "torch", "cutlass": "cutlass", "cupy_": "CuPy", "triton_": "Triton", "cudf": "cuDF"}
"""Whose kernel it is by a scope in its full name, or by how it begins; names a stream that nobody told us of."""

_LIBRARY = re.compile(r"\b(at|cutlass|cudf)::|\b(cupy_|triton_)")
_NAMED_ONCE = 4_096
"""Streams whose library is remembered."""

_sms: dict[int, int] = {}
"""SMs of green contexts by their numbers, which are not given twice in a process. CUPTI told a session nothing of one that an
earlier session had made (13.0.85), so all share what is known, and what they know of their own streams."""


class StreamBook:
    """Knows the numbers of streams, and what is known of streams that no session made.

    Parameters
    ----------
    cupti
        The library.
    ordinal, sm_count
        The device and its SMs.
    """

    def __init__(self, cupti: Cupti, *, ordinal: int, sm_count: int) -> None:
        self._cupti = cupti
        self._ordinal = ordinal
        self._sm_count = sm_count
        self._null_streams: dict[int, int] = {}
        self._library: dict[tuple[int, int], str] = {}

    def enable(self, kind: RecordKind) -> None:
        """Record a kind if this version can; of contexts also those that are there already."""
        name = "cuptiActivityEnable"
        if kind in {RecordKind.CONTEXT, RecordKind.GREEN_CONTEXT} and hasattr(
            self._cupti.library, "cuptiActivityEnableAndDump"
        ):
            name = "cuptiActivityEnableAndDump"
        self._cupti.call(name, int(kind))

    def key_of(self, handle: int) -> tuple[int, int]:
        """Return the context and the stream of a ``cudaStream_t``.

        Raises
        ------
        DeviceError
            If the driver does not know the stream.
        """
        from cuda.bindings import driver

        status, context = driver.cuStreamGetCtx(driver.CUstream(handle))
        if status != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"cuStreamGetCtx({handle:#x}) gave {status!s}")
        return self._ask("cuptiGetContextId", int(context)), self._ask("cuptiGetStreamIdEx", int(context), handle, 0)

    def note_own(self, context: int, sm_count: int) -> None:
        """Take how many SMs a context has in which a session made a stream."""
        _sms[context] = sm_count

    def note(self, records: Records) -> None:
        """Take what records say of contexts: from CUPTI 13.2 on green ones come as a kind of their own."""
        plain = records.columns.get(RecordKind.CONTEXT)
        if plain is not None:
            for context, null, is_green, sms in zip(
                *(plain[name].tolist() for name in ("contextId", "nullStreamId", "isGreenContext", "numMultiprocessors")),
                strict=True,
            ):
                self._null_streams[context] = null
                if is_green and sms:
                    _sms[context] = sms
        green = records.columns.get(RecordKind.GREEN_CONTEXT)
        if green is not None:
            _sms.update(zip(green["contextId"].tolist(), green["numMultiprocessors"].tolist(), strict=True))

    def note_names(self, work: WorkBatch, details: tuple[WorkDetail, ...]) -> None:
        """Remember whose kernels run in each stream, by what they are called: by the first that tells."""
        if len(self._library) >= _NAMED_ONCE:
            return
        libraries = [library_of(detail.full_name) for detail in details]
        tells = np.array([bool(library) for library in libraries], bool)
        rows = np.flatnonzero(tells[work.detail]) if len(work) else np.empty(0, np.int64)
        keys, place = distinct(work.context[rows] << 32 | work.stream[rows])
        first = np.zeros(len(keys), np.int64)
        first[place[::-1]] = rows[::-1]
        for key, row in zip(keys.tolist(), first.tolist(), strict=True):
            self._library.setdefault((key >> 32, key & 0xFFFF_FFFF), libraries[int(work.detail[row])])

    def describe(self, context: int, stream: int) -> StreamFacts:
        """Tell of a stream that no session made."""
        if stream == self._null_streams.get(context, 7):
            name = DEFAULT_STREAM
        else:
            name = f"{self._library.get((context, stream), '')} stream {stream}".strip()
        return StreamFacts(name=name, sm_count=_sms.get(context, self._sm_count), device=self._ordinal)

    def _ask(self, function: str, *arguments: Any) -> int:
        number = ctypes.c_uint32()
        given = [ctypes.c_uint8(0) if place == 2 else ctypes.c_void_p(value) for place, value in enumerate(arguments)]
        self._cupti.require(function, *given, ctypes.byref(number))
        return number.value


def library_of(kernel: str) -> str:
    """Guess whose kernel it is by its name; empty where nothing tells.

    Examples
    --------
    >>> library_of("cupy_multiply__float_float_float"), library_of("void at::native::fill<4>(int)"), library_of("format::x()")
    ('CuPy', 'torch', '')
    """
    found = _LIBRARY.search(kernel)
    return "" if found is None else LIBRARIES[found[1] or found[2]]
