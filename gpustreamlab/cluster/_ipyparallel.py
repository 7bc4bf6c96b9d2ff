"""Engines of ipyparallel: a cell runs in the engine's main thread, and what goes aside in the thread of its control channel."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from gpustreamlab.cluster._engines import Answer

REQUEST = "gpustreamlab_request"
"""Type of the messages that go aside."""


class ParallelEngines:
    """Engines of an `ipyparallel.Client`.

    Parameters
    ----------
    client
        It stays its owner's.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._known: set[str] = set()

    def engines(self) -> Mapping[str, str]:
        """Return the engines by their UUIDs; their names are their numbers. New ones are told to listen for what goes aside."""
        ids = self._ids()
        for key in ids.keys() - self._known:
            self._known.add(key)
            self._view(key).apply_async(listen)
        return {key: str(number) for key, number in ids.items()}

    def run(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Send it to the engine's queue."""
        answer: Answer = self._view(key).apply_async(function, *args)
        return answer

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Send it by the control channel, which a thread of its own reads."""
        client = self._client
        data = pickle.dumps((function, args))
        # The client has no public call for a message of another type; this is the way that its own send_signal goes.
        message = client._send(client._control_stream, REQUEST, content={}, buffers=[data], ident=key.encode())  # noqa: SLF001
        return _Reply(message)

    def close(self) -> None:
        """Do nothing: the client is its owner's."""

    def _ids(self) -> dict[str, int]:
        if self._client._closed:  # noqa: SLF001 - its numbers stay as they were, and nothing tells in public
            raise RuntimeError("The client is closed.")
        known = self._client._engines  # noqa: SLF001 - a number is given again to another process, and only this tells them apart
        return {known[number]: number for number in self._client.ids if number in known}

    def _view(self, key: str) -> Any:
        view = self._client.direct_view(self._ids()[key])
        view.block = False
        return view


class _Reply:
    """The answer to a message of the control channel."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def result(self, timeout: float | None = None) -> Any:
        """Return what the function returned, or raise what it raised."""
        told, error = pickle.loads(self._message.result(timeout)["buffers"][0])  # noqa: S301 - of an engine, which runs our code
        if error is not None:
            raise RuntimeError(error)
        return told

    def done(self) -> bool:
        """Tell whether it is there."""
        return bool(self._message.done())


def listen() -> None:
    """Let the thread of this engine's control channel answer what goes aside; runs on the engine."""
    shell: Any = sys.modules["IPython"].get_ipython()
    kernel = shell.kernel

    def answer(stream: Any, ident: Any, message: Any) -> None:
        try:
            function, args = pickle.loads(message["buffers"][0])  # noqa: S301 - of the client, which runs any code here
            told = pickle.dumps((function(*args), None))
        except BaseException:  # noqa: BLE001 - the client is told
            told = pickle.dumps((None, traceback.format_exc()))
        kernel.session.send(stream, "gpustreamlab_reply", {"status": "ok"}, parent=message, ident=ident, buffers=[told])

    kernel.control_handlers[REQUEST] = answer
