"""Copies between two devices, as CUPTI tells of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpustreamlab.backends.cuda.cupti._constants import STAGED, CopyKind, RecordKind
from gpustreamlab.backends.cuda.cupti._records import Records
from gpustreamlab.typing import BoolArray, Int64Array

IsClaimed = Callable[[Int64Array, Int64Array], BoolArray]
"""Tells which streams, by their contexts and numbers, sessions have."""


def join_staged(records: Records, is_claimed: IsClaimed) -> Records:
    """Return records in which a copy that goes through the host is one: CUPTI tells its last part twice, as DtoH and as HtoD.

    Without peer access the driver moves such a copy in parts of some hundred KiB, down from one device and up to the other. Of
    256 MiB, 7.4 ms long, CUPTI 13.0 told 21 us of each way (H100): when it ended is right, and its begin is told by nobody.
    """
    copies = records.columns.get(RecordKind.MEMCPY)
    if copies is None:
        return records
    number = copies["correlationId"].astype(np.int64)
    ways = [np.flatnonzero((copies["copyKind"] == kind) & (number > 0)) for kind in (CopyKind.DTOH, CopyKind.HTOD)]
    _, first, second = np.intersect1d(number[ways[0]], number[ways[1]], return_indices=True)
    down, up = ways[0][first], ways[1][second]
    is_pair = (copies["deviceId"][down] != copies["deviceId"][up]) & (copies["bytes"][down] == copies["bytes"][up])
    down, up = down[is_pair], up[is_pair]
    if not len(down):
        return records
    claims = [
        is_claimed(copies["contextId"][rows].astype(np.int64), copies["streamId"][rows].astype(np.int64)) for rows in (down, up)
    ]
    told = np.where(claims[1] & ~claims[0], up, down)
    staged = {name: values[told] for name, values in copies.items()}
    staged["start"], staged["end"] = copies["start"][down], copies["end"][up]
    staged["copyKind"] = np.full(len(told), STAGED, copies["copyKind"].dtype)
    staged["srcDeviceId"], staged["dstDeviceId"] = copies["deviceId"][down], copies["deviceId"][up]
    direct = records.columns.get(RecordKind.MEMCPY2)
    columns = dict(records.columns)
    columns[RecordKind.MEMCPY] = {name: np.delete(values, [*down, *up]) for name, values in copies.items()}
    columns[RecordKind.MEMCPY2] = (
        staged if direct is None else {name: np.concatenate((direct[name], staged[name])) for name in direct}
    )
    return replace(records, columns=columns)
