"""What makes a library follow the selected lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

GROUP = "gpustreamlab.adapters"
"""Group of the entry points that bring adapters: the name is the library's module, the value an `AdapterFactory`."""


class LaneStream(Protocol):
    """The stream that an adapter selects."""

    @property
    def handle(self) -> int:
        """Address of the ``cudaStream_t``. A lane that moves to another partition has another."""
        ...

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream by the CUDA Python stream protocol."""
        ...


class Adapter(Protocol):
    """Lets one library follow the selected lane, on one device.

    Calls come from many threads at once, and concern the thread that they come from. Both are on the path of every selection:
    a microsecond in either counts. An adapter that raises is switched off for its device. One that has a method ``close`` is
    told by it that no session is left.
    """

    def select(self, stream: LaneStream) -> object:
        """Make the library of this thread work on the stream; return what `restore` needs to put back what it worked on."""
        ...

    def restore(self, token: Any) -> None:
        """Put back what the library worked on before the `select` that gave the token. After an interrupt it may come twice."""
        ...


AdapterFactory: TypeAlias = Callable[[Any, int], Adapter]
"""Makes an adapter of the library's module and the device's number. It raises `AdapterError`, with the reason,
where the library cannot follow."""
