"""Numbers of calls that never come twice: CUPTI's have 32 bits, and may begin anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpustreamlab.backends.cuda._cupti_records import Records
from gpustreamlab.typing import Int64Array

FIELD = "correlationId"

_TURN = 1 << 32
_HALF = 1 << 31


class CallNumbers:
    """Continues CUPTI's numbers of calls beyond 32 bits, for the records of all kinds alike.

    A number is taken as the one that is nearest to the newest so far, or, where numbers may have begun anew, as one after it.
    Nothing is added to the first ones, and 0, for no call, stays 0.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._may_be_new = True

    def begin(self) -> None:
        """Take the next numbers for newer ones than all before."""
        self._may_be_new = True

    def continue_in(self, records: Records) -> Records:
        """Return the records with numbers of 64 bits."""
        kinds = [kind for kind, columns in records.columns.items() if FIELD in columns]
        parts = [records.columns[kind][FIELD].astype(np.int64) for kind in kinds]
        if not parts:
            return records
        sizes = np.cumsum([len(part) for part in parts])[:-1]
        numbers = np.split(self._continued(np.concatenate(parts)), sizes)
        columns = dict(records.columns)
        columns |= {kind: {**columns[kind], FIELD: part} for kind, part in zip(kinds, numbers, strict=True)}
        return replace(records, columns=columns)

    def _continued(self, raw: Int64Array) -> Int64Array:
        known = raw[raw != 0]
        if not len(known):
            return raw
        near = self._newest
        if self._may_be_new:
            near += (int(known.min()) - near) % _TURN
            self._may_be_new = False
        numbers = near + (raw - near + _HALF) % _TURN - _HALF
        if not self._newest and numbers[raw != 0].min() <= 0:
            numbers += _TURN  # they passed the end within the first records
        numbers[raw == 0] = 0
        self._newest = max(self._newest, int(numbers.max()))
        return numbers
