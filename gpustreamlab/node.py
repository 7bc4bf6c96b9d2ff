"""Several GPUs of one host: a session for each, one trace, one picture."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gpustreamlab.backends import open_node
from gpustreamlab.errors import (
    DeviceNotFoundError,
    OptionError,
    SessionClosedError,
    StreamExistsError,
    StreamNotFoundError,
    nearest_hint,
)
from gpustreamlab.memory.hazards import variables_of
from gpustreamlab.model import without_tools
from gpustreamlab.notebook.views import WATCHED_GUESSES, LiveViews, Watched
from gpustreamlab.recorder import CardClocks, JoinedJournal
from gpustreamlab.session import Session
from gpustreamlab.trace import Trace, as_trace
from gpustreamlab.typing import PeerAccess, SessionState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import EllipsisType, TracebackType
    from typing import Never, Self

    from gpustreamlab.analysis import Explanation, Hazards
    from gpustreamlab.streams.selection import Selection
    from gpustreamlab.streams.stream import Stream

__all__ = ["Node"]


class Node(Watched):
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
    >>> [(lane.name, lane.device) for lane in trace.lanes if lane.kind == "stream"], len(trace.devices)
    ([('prefill', 0), ('decode', 1)], 2)
    """

    _homes: ClassVar = {"one of its GPUs: for one in node: one.": Session, "node.trace.": Trace}
    _guesses: ClassVar = {
        "node" + line[3:] if line.startswith("lab.") else line: names for line, names in WATCHED_GUESSES.items()
    } | {
        "node[0], or for one in node": "sessions cards gpus lab devices",
        "node[1].xp.asarray(x), where x is an array of node[0]": "copy peer_copy",
    }

    def __init__(self, devices: Sequence[int] | None = None, *, backend: str | None = None, **options: Any) -> None:
        if options.get("spool") is not None:
            raise OptionError("A node has no spool. Record each GPU with a session of its own: Session(device=1, spool=True).")
        with ExitStack() as undoing:
            self._backends = open_node(backend, devices)
            for one in self._backends:
                undoing.callback(one.close)
            self._sessions = tuple(undoing.enter_context(Session(one, **options)) for one in self._backends)
            self._clocks = CardClocks(self._backends)
            undoing.callback(self._clocks.stop)
            self._closing = undoing.pop_all()
        for session in self._sessions:
            session._table.elsewhere = partial(_device_with, [other for other in self._sessions if other is not session])
        recorders = [one._recorder for one in self._sessions]
        for own in recorders:
            own.kernels.stand_beside([other.kernels for other in recorders if other is not own])
        self._title = str(options.get("title", ""))
        """A name for traces and timelines."""
        self._views = LiveViews(self._joined())

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
            if device in (one.device.ordinal, f"gpu{one.device.ordinal}"):
                return one
        known = ", ".join(f"'gpu{one.device.ordinal}'" for one in self._sessions)
        raise DeviceNotFoundError(f"This node has no device {device!r}; it has {known}. Use node[0] or node['gpu0'].")

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The open streams of all devices by name."""
        return MappingProxyType({name: stream for one in self._sessions for name, stream in one.streams.items()})

    def stream(
        self,
        name: str,
        *unnamed: Never,
        device: int | str | None = None,
        priority: int | None = None,
        partition: str | EllipsisType | None = ...,
        external: object | None = None,
        **unknown: Never,
    ) -> Stream:
        """Return the stream of this name, making it on first use.

        Parameters
        ----------
        name
            One on the whole node.
        device
            Where it is made; None for the first device, or for where it is already.
        priority, partition, external
            As for `Session.stream`.

        Raises
        ------
        StreamExistsError
            If another device has it.
        DeviceNotFoundError
            If the node has no such device; else as `Session.stream`.
        SessionClosedError
            If the node is closed.
        """
        if unnamed or unknown:
            wrong = f"has no option {next(iter(unknown))!r}" if unknown else "takes all but its name by keyword"
            given: tuple[object, ...] = (name, *unnamed)
            shown = next((one for one in given if isinstance(one, str)), "copy")
            number = next((one for one in given if isinstance(one, int)), self._sessions[-1].device.ordinal)
            raise OptionError(f"A stream {wrong}. Use node.stream({shown!r}, device={number}, priority=-1, partition=...).")
        return self.home_of(name, device).stream(name, priority=priority, partition=partition, external=external)

    def home_of(self, stream: str, device: int | str | None = None) -> Session:
        """Return the session that has the stream of this name, or where it would be made; see `stream`.

        Raises
        ------
        StreamExistsError, DeviceNotFoundError, SessionClosedError
            As for `stream`.
        """
        self._require_open()
        home = _session_with(self._sessions, stream)
        wanted = (home or self._sessions[0]) if device is None else self[device]
        if home not in {None, wanted}:
            raise StreamExistsError(
                f"Stream {stream!r} is on GPU {home.device.ordinal} of this node. Leave out the device, or use another name."
            )
        return wanted

    def on(self, stream: str | Stream = "", label: str | None = None, *unnamed: Never, **options: Any) -> Selection:
        """Select a stream of any device for this thread, and record a range; it takes what `Session.on` takes.

        Raises
        ------
        StreamNotFoundError
            If no device has it; the message names the nearest.
        OptionError
            If it is neither a stream's name nor a stream; else as `Session.on`.
        SessionClosedError
            If the node is closed.
        """
        self._require_open()
        name = stream if isinstance(stream, str) else getattr(stream, "name", None)
        if not isinstance(name, str):
            shown = label if isinstance(label, str) else "decode"
            raise OptionError(
                f"node.on takes a stream of the node first, not {stream!r:.40}. Use with node.on({shown!r}, 'label'): ..."
            )
        home = _session_with(self._sessions, name)
        if home is None:
            raise StreamNotFoundError(
                f"No device of this node has a stream {name!r}. {nearest_hint(str(name), self.streams)} Make it with "
                "node.stream('decode', device=1)."
            )
        return home.on(stream, label, *unnamed, **options)

    def _require_open(self) -> None:
        if self._last_trace is not None:
            raise SessionClosedError("This node is closed. Its trace can be read; open another with gpustreamlab.Node().")

    def peer_access(self) -> dict[tuple[int, int], PeerAccess]:
        """Return for each pair of devices whether the first reads the memory of the second directly: on, off or impossible.

        Two H100s copied 394 GB/s with it and 36 GB/s without. Each copy between them is in the trace, and its `details` say
        whether it went through the host.
        """
        return {
            (one.device.ordinal, other.device.ordinal): own.peer_access(peer)
            for one, own in zip(self._sessions, self._backends, strict=True)
            for other, peer in zip(self._sessions, self._backends, strict=True)
            if one is not other
        }

    def synchronize(self) -> None:
        """Wait for the work of all devices, and see once more how far their clocks are apart."""
        for one in self._sessions:
            one.synchronize()
        self._clocks.compare()

    @property
    def state(self) -> SessionState:
        """Where its sessions are in their life."""
        return self._sessions[0].state

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, of whatever device, or None."""
        return next((one.current for one in self._sessions if one.current is not None), None)

    @property
    def trace(self) -> Trace:
        """What ran so far on all devices, on the clock of the first; a device's own trace is ``node[1].trace``."""
        if self._last_trace is not None:
            return self._last_trace
        for one in self._sessions:
            one._recorder.kernels.take()
        trace = as_trace(without_tools(self._joined().trace()))
        accesses = self._sessions[0]._accesses  # which know of those of the other cards
        return replace(trace, notes=(*accesses.notes(trace, of_node=True), *self._notes))

    def _joined(self) -> JoinedJournal:
        """Return the journals of all sessions as one, from the beginning on."""
        return JoinedJournal(
            [one._recorder for one in self._sessions],
            ahead=self._clocks.ahead,
            error_ns=self._clocks.error_ns,
            devices=[one.device for one in self._sessions],
            tells_alike=not self._backends[0].device.simulated,
            title=self._title,
        )

    def hazards(self) -> Hazards:
        """Return which data crossed streams without an order, also from one card to another; see `Memory.hazards`.

        ``node[1].memory.hazards()`` has those in which a stream of that card has part.

        Examples
        --------
        >>> with Node(backend="sim") as node:
        ...     first, last = node.stream("first"), node.stream("last", device=1)
        ...     with node.on("first", "produce"):
        ...         x = node[0].xp.ones(8)
        ...     with node.on("last", "take"):
        ...         y = node[1].xp.asarray(x)
        ...     found = node.hazards()
        ...     found.hazards[0].kind.value, found.hazards[0].fix, found.hazards[0].where
        ('read-after-write', "node.stream('last').wait(node.stream('first'))", "before 'take' (copy from another GPU)")
        """
        names = variables_of(sys._getframe(1))  # for the names of its arrays
        return self._sessions[0]._accesses.check(names, of_node=True)

    def explain(self, first: str | int | None = None, second: str | None = None) -> Explanation:
        """Say why work did not overlap so far, on one card or between two, and what to change; see `Trace.explain`."""
        return self.trace.explain(first, second)

    def mark(self, text: str) -> None:
        """Mark this moment in the timeline, across the streams of all devices; see `Recording.mark`."""
        for one in self._sessions:
            one.recording.mark(text)

    def clear(self) -> None:
        """Forget what was recorded so far, on all devices."""
        for one in self._sessions:
            one.clear()

    def close(self) -> None:
        """Keep the trace, and close all sessions; see `Session.close`. Idempotent."""
        if self._last_trace is None:
            self.synchronize()
            self._views.finish()
            self._last_trace = self.trace
            self._closing.close()

    def _newest_hazard_ns(self) -> int:
        """Return when the newest hazard of all devices was found, by the host's clock; -1 where there is none."""
        return max(one._accesses.newest_ns for one in self._sessions)


def _session_with(sessions: Sequence[Session], stream: object) -> Session | None:
    """Return which of these sessions has an open stream of this name; None if none has."""
    return next((one for one in sessions if isinstance(stream, str) and stream in one.streams), None)


def _device_with(sessions: Sequence[Session], stream: str) -> int | None:
    """Return on which device a stream of this name is open; None if on none of these."""
    home = _session_with(sessions, stream)
    return None if home is None else home.device.ordinal
