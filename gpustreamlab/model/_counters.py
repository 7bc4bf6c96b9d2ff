"""Quantities of a lane over time, such as memory in use."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpustreamlab.model._columns import freeze_column, require_codes, require_equal_lengths, require_text
from gpustreamlab.typing import FloatArray, Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counters:
    """Samples of named quantities, as columns of equal length."""

    time_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """When, in ns since the trace's epoch; shape (n_samples,), int64."""
    lane: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into the trace's lanes; shape (n_samples,), int32."""
    name: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into `names`; shape (n_samples,), int32."""
    value: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    """The sample, in the unit that the name ends in; shape (n_samples,), float64, NaN where not measured."""
    names: tuple[str, ...] = ()
    """Interned names, each with its unit as suffix, for example ``"pool_bytes"``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        require_text("Counters.names", self.names)
        dtypes = {"time_ns": np.int64, "lane": np.int32, "name": np.int32, "value": np.float64}
        for name, dtype in dtypes.items():
            object.__setattr__(self, name, freeze_column(name, getattr(self, name), dtype))
        require_equal_lengths("Counters", {name: getattr(self, name) for name in dtypes})
        require_codes("name", self.name, len(self.names))

    def __len__(self) -> int:
        return len(self.time_ns)
