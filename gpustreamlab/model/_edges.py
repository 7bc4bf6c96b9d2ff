"""Which span waited for which."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpustreamlab.errors import OptionError, TraceError, nearest_hint
from gpustreamlab.model._columns import freeze_column, require_codes, require_equal_lengths
from gpustreamlab.typing import EdgeKind, Int8Array, Int64Array

EDGE_KINDS = tuple(EdgeKind)


def _no_rows() -> Int64Array:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Edges between spans of one trace, as columns of equal length."""

    source: Int64Array = field(default_factory=_no_rows)
    """Row of the span that had to end first; shape (n_edges,), int64."""
    target: Int64Array = field(default_factory=_no_rows)
    """Row of the span that waited; shape (n_edges,), int64."""
    kind: Int8Array = field(default_factory=lambda: np.empty(0, np.int8))
    """Code of the `EdgeKind`, by its order; shape (n_edges,), int8."""

    def __post_init__(self) -> None:
        for name, dtype in (("source", np.int64), ("target", np.int64), ("kind", np.int8)):
            object.__setattr__(self, name, freeze_column(name, getattr(self, name), dtype))
        require_equal_lengths("Edges", {"source": self.source, "target": self.target, "kind": self.kind})
        require_codes("kind", self.kind, len(EDGE_KINDS))

    def __len__(self) -> int:
        return len(self.source)

    def select(self, kind: EdgeKind | str) -> Edges:
        """Return the edges of one kind.

        Parameters
        ----------
        kind
            An `EdgeKind`, or its text: ``"wait"`` or ``"launch"``.

        Raises
        ------
        OptionError
            If there is no such kind.

        Examples
        --------
        >>> edges = Edges(source=[0, 2], target=[1, 3], kind=[0, 1])
        >>> edges.select("launch").source.tolist()
        [2]
        """
        try:
            code = EDGE_KINDS.index(EdgeKind(kind))
        except ValueError as error:
            raise OptionError(
                f"There is no kind of edge {kind!r}. {nearest_hint(str(kind), EDGE_KINDS)} Use trace.edges.select('wait')."
            ) from error
        found = np.flatnonzero(self.kind == code)
        return Edges(source=self.source[found], target=self.target[found], kind=self.kind[found])

    def require_rows(self, span_count: int) -> None:
        """Raise `TraceError` where an edge points outside a trace of `span_count` spans."""
        for name, rows in (("source", self.source), ("target", self.target)):
            if rows.size and (rows.min() < 0 or rows.max() >= span_count):
                raise TraceError(f"Edges.{name} points outside the {span_count} spans of the trace.")
