"""What is ordered before what, by plain reachability in a graph: an oracle for all that looks for hazards."""

from __future__ import annotations

from typing import NamedTuple

from gpustreamlab.typing import HazardKind


class Enqueued(NamedTuple):
    """An access as the oracle keeps it."""

    node: int
    lane: object
    is_write: bool
    bytes_read: frozenset
    piece: object


class Oracle:
    """Knows the order of everything by a graph: an access is before another one if there is a path."""

    def __init__(self):
        self.edges, self.last, self.events = [], {}, {}
        self.host = None  # the host's last wait
        self.accesses = []

    def node(self, *behind):
        self.edges.append([node for node in behind if node is not None])
        return len(self.edges) - 1

    def on_lane(self, lane, *behind):
        self.last[lane] = self.node(self.last.get(lane), self.host, *behind)
        return self.last[lane]

    def host_wait(self, *behind):
        self.host = self.node(self.host, *behind)

    def is_before(self, first, second):
        seen, todo = set(), [second]
        while todo:
            node = todo.pop()
            if node == first:
                return True
            if node not in seen and node > first:
                seen.add(node)
                todo += self.edges[node]
        return False

    def access(self, lane, is_write, bytes_read, piece):
        """Note an access; return those before it that it conflicts with, in no order."""
        mine = Enqueued(self.on_lane(lane), lane, is_write, bytes_read, piece)
        met = [
            other
            for other in self.accesses
            if other.bytes_read & bytes_read
            and (is_write if other.piece != piece else is_write or other.is_write)
            and not self.is_before(other.node, mine.node)
        ]
        self.accesses.append(mine)
        return met


def kind_of(first, second):
    """Name what two accesses do to each other."""
    if first.piece != second.piece:
        return HazardKind.USE_AFTER_FREE
    if not second.is_write:
        return HazardKind.READ_AFTER_WRITE
    return HazardKind.WRITE_AFTER_WRITE if first.is_write else HazardKind.WRITE_AFTER_READ
