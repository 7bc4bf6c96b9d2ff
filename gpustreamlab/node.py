"""Several GPUs of one host: a session for each, one trace, one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustreamlab.backends import open_node
from gpustreamlab.errors import DeviceNotFoundError, OptionError, StreamExistsError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import merge
from gpustreamlab.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from gpustreamlab.analysis import Overlap
    from gpustreamlab.model import Trace
    from gpustreamlab.streams.selection import Selection
    from gpustreamlab.streams.stream import Stream
    from gpustreamlab.timeline import Timeline

__all__ = ["Node"]

DRIFT = 5e-6
"""How much the clocks of two cards may drift apart where that was not measured: 2.8 us a second were seen on H100s."""


class Node:
    """The GPUs of one host, with a `Session` for each: ``node[1]`` does on the second GPU whatever a session does.

    Parameters
    ----------
    devices
        CUDA device numbers; None for all that there are, or for two simulated ones.
    backend
        ``"cuda"``, ``"sim"``, or None: GPUs if there are any, else simulated ones.
    options
        Given to each session, see `Session`.

    Raises
    ------
    OptionError
        If no device is named, or one twice.
    BackendUnavailableError, DeviceNotFoundError
        As for a session.

    Examples
    --------
    >>> with Node(backend="sim") as node:
    ...     prefill, decode = node.stream("prefill"), node.stream("decode", device=1)
    ...     with node.on("prefill", "step"):
    ...         a = node[0].xp.ones((512, 512))
    ...     decode.wait(prefill.record())
    ...     with node.on("decode", "token"):
    ...         b = node[1].xp.ones((64, 64))
    ...     node.synchronize()
    ...     trace = node.trace
    >>> [(lane.name, lane.device) for lane in trace.lanes], len(trace.devices)
    ([('prefill', 0), ('decode', 1)], 2)
    """

    def __init__(self, devices: Sequence[int] | None = None, *, backend: str | None = None, **options: Any) -> None:
        if options.get("spool") is not None:
            raise OptionError("A node has no spool. Record each GPU with a session of its own: Session(device=1, spool=True).")
        with ExitStack() as undoing:
            self._backends = open_node(backend, devices)
            for one in self._backends:
                undoing.callback(one.close)
            self._sessions = tuple(undoing.enter_context(Session(one, **options)) for one in self._backends)
            self._closing = undoing.pop_all()
        self._last_trace: Trace | None = None
        self._compared: list[list[tuple[int, int, int]]] = []
        """For each comparison and device: when by its own clock, what that lacks to be the first one's, and the error."""
        self._compare_clocks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        devices = ", ".join(f"gpu{one.device.ordinal}: {one.device.label}" for one in self._sessions)
        return f"<Node: {devices}{'' if self._last_trace is None else ', closed'}>"

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    def __getitem__(self, device: int | str) -> Session:
        """Return the session of a device, by its number or as ``"gpu1"``.

        Raises
        ------
        DeviceNotFoundError
            If the node has none.
        """
        for one in self._sessions:
            if device in {one.device.ordinal, f"gpu{one.device.ordinal}"}:
                return one
        known = ", ".join(f"'gpu{one.device.ordinal}'" for one in self._sessions)
        raise DeviceNotFoundError(f"This node has no device {device!r}; it has {known}. Use node[0] or node['gpu0'].")

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The open streams of all devices by name."""
        return MappingProxyType({name: stream for one in self._sessions for name, stream in one.streams.items()})

    def stream(self, name: str, *, device: int | str | None = None, **options: Any) -> Stream:
        """Return the stream of this name, making it on first use.

        Parameters
        ----------
        name
            One on the whole node.
        device
            Where it is made; None for the first device, or for where it is already.
        options
            As for `Session.stream`: ``priority``, ``partition``, ``external``.

        Raises
        ------
        StreamExistsError
            If another device has it.
        DeviceNotFoundError
            If the node has no such device; else as `Session.stream`.
        """
        home = next((one for one in self._sessions if name in one.streams), None)
        wanted = (home or self._sessions[0]) if device is None else self[device]
        if home not in {None, wanted}:
            raise StreamExistsError(
                f"Stream {name!r} is on GPU {home.device.ordinal} of this node. Leave out device=, or use another name."
            )
        return wanted.stream(name, **options)

    def on(self, stream: str | Stream, label: str | None = None) -> Selection:
        """Select a stream of any device for this thread, and record a range; see `Session.on`.

        Raises
        ------
        StreamNotFoundError
            If no device has it; the message names the nearest.
        """
        name = stream if isinstance(stream, str) else stream.name
        home = next((one for one in self._sessions if name in one.streams), None)
        if home is None:
            raise StreamNotFoundError(
                f"No device of this node has a stream {name!r}. {nearest_hint(str(name), self.streams)} Make it with "
                "node.stream('decode', device=1)."
            )
        return home.on(stream, label)

    def synchronize(self) -> None:
        """Wait for the work of all devices, and see once more how far their clocks are apart."""
        for one in self._sessions:
            one.synchronize()
        self._compare_clocks()

    def _compare_clocks(self) -> None:
        """Take how far each clock is from the first one; nothing of the user's runs meanwhile."""
        told = [(one.host_to_clock_ns(one.glance_ns()), *one.ahead_of(self._backends[0])) for one in self._backends]
        is_later = not self._compared or all(now[0] > before[0] for now, before in zip(told, self._compared[-1], strict=True))
        if is_later:
            self._compared.append(told)

    @property
    def trace(self) -> Trace:
        """What ran so far on all devices, on the clock of the first; a device's own trace is ``node[1].trace``."""
        if self._last_trace is not None:
            return self._last_trace
        measured = np.array(self._compared, np.int64)  # shape (comparisons, devices, 3)
        traces = [one.trace for one in self._sessions]
        # Two cards' timers were seen to drift apart by 2.8 us a second, steadily (H100): between comparisons that is known.
        beyond_ns = max(
            (
                int(trace.end_ns.max(initial=0)) - last_ns
                for trace, last_ns in zip(traces, measured[-1, :, 0].tolist(), strict=True)
            ),
        )
        drift_ns = 0 if self._backends[0].device.simulated else round(max(0, beyond_ns) * DRIFT)
        return merge(
            traces,
            ahead_ns=[(measured[:, place, 0], measured[:, place, 1]) for place in range(len(traces))],
            error_ns=int(measured[:, :, 2].max()) + drift_ns,
        )

    def overlap(self) -> Overlap:
        """Return how much the streams' work overlapped so far; see `Trace.overlap`."""
        return self.trace.overlap()

    def timeline(self) -> Timeline:
        """Return a picture of what ran so far, with a group for each device."""
        return self.trace.timeline()

    def close(self) -> None:
        """Keep the trace, and close all sessions; see `Session.close`. Idempotent."""
        if self._last_trace is None:
            self.synchronize()
            self._last_trace = self.trace
            self._closing.close()
