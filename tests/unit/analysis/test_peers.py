"""Copies between devices, added up."""

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Trace
from gpustreamlab.analysis import peer_copies
from gpustreamlab.errors import OptionError
from gpustreamlab.model import WorkDetail


def trace_of(copies):
    """Return a trace of copies, each given by its detail's text, its bytes and its duration in ns."""
    texts, sizes, lengths = zip(*copies, strict=True)
    details = list(dict.fromkeys(texts))
    start_ns = np.arange(len(copies)) * 10_000_000
    trace = Trace.from_columns(start_ns=start_ns, end_ns=start_ns + np.array(lengths), stream=["s"] * len(copies), kind="copy")
    extra = {
        "detail": np.array([details.index(text) for text in texts], np.int32),
        "size_bytes": np.array(sizes, np.int64),
    }
    return replace(trace, extra=extra, details=tuple(WorkDetail(full_name=text) for text in details))


def test_copies_are_added_up_by_where_from_where_to_and_by_which_way():
    told = peer_copies(
        trace_of(
            [
                ("memcpy GPU 0 to GPU 1", 1 << 20, 5_000),
                ("memcpy GPU 0 to GPU 1", 3 << 20, 5_000),
                ("memcpy GPU 1 to GPU 0", 1 << 20, 4_000),
                ("memcpy GPU 0 to GPU 1, through the host", 36_000, 1_000),
                ("memcpy HtoD", 77, 1_000),
            ]
        )
    )
    rows = [(0, 1, False, 2, 4 << 20, 10_000), (0, 1, True, 1, 36_000, 1_000), (1, 0, False, 1, 1 << 20, 4_000)]
    assert list(told.to_pandas().drop(columns="bytes_per_s").itertuples(index=False, name=None)) == rows
    assert told.bytes_per_s.tolist() == pytest.approx([size * 1e9 / time for *_, size, time in rows])
    assert "at 36 GB/s; direct copies here ran at 419 GB/s" in str(told).replace("\n  ", " ")
    assert "deviceEnablePeerAccess(1)" in str(told)


def test_copies_through_the_host_alone_are_compared_with_nothing_and_no_copies_are_none():
    told = str(peer_copies(trace_of([("memcpy GPU 0 to GPU 1, through the host", 36_000, 1_000)])))
    assert "direct copies" not in told
    assert len(peer_copies(trace_of([("memcpy HtoD", 77, 1_000)]))) == 0
    assert "Copies between devices: none" in str(peer_copies(Trace.from_columns(start_ns=[0], end_ns=[1], stream=["a"])))
    with pytest.raises(OptionError, match="peer_copies"):
        peer_copies(3)
