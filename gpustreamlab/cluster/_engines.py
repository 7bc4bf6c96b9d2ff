"""The processes of a cluster: workers of Dask, or engines of ipyparallel, behind the same four calls."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from gpustreamlab._util.words import install_line
from gpustreamlab.errors import MissingExtraError, OptionError

LOOK_LIMIT_S = 10.0  # How long Dask's scheduler may take to say which workers there are
REQUEST = "gpustreamlab_request"  # Type of the messages to ipyparallel's control channel


class Answer(Protocol):
    """What an engine will have returned."""

    def result(self, timeout: float | None = None) -> Any:
        """Return it, or raise what the engine raised; `TimeoutError` where it takes longer than so many seconds."""

    def done(self) -> bool:
        """Tell whether it is there."""


class Engines(Protocol):
    """The processes of a cluster. Every call may come from any thread, and does not wait for an engine."""

    def engines(self) -> Mapping[str, str]:
        """Return the engines that are there: by what tells one process from every other, the name that users type."""

    def run(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Call a function on an engine, behind what runs there already."""

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Call a function of this package on an engine, also while a cell works there. It has to be quick."""

    def close(self) -> None:
        """Let go of the client; one that was made here is closed."""


def open_engines(client: Any, workers: object) -> Engines:
    """Return the adapter of a client, or of workers that are started here."""
    if (client is None) == (workers is None):
        raise OptionError("gsl.Cluster takes a client, or a number of workers to start here: gsl.Cluster(workers=4).")
    if workers is not None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise OptionError(f"workers is {workers!r}; it must be a number of processes, 1 or more: gsl.Cluster(workers=4).")
        return start_workers(workers)
    roots = [base.__module__.partition(".")[0] for base in type(client).__mro__]
    if "distributed" in roots:
        return DaskEngines(client)
    if "ipyparallel" in roots:
        return ParallelEngines(client)
    if hasattr(client, "aside"):  # an adapter itself, as tests have
        given: Engines = client
        return given
    raise OptionError(
        f"{client!r:.80} is no client of a cluster. Use gsl.Cluster(ipyparallel.Client()), "
        "gsl.Cluster(distributed.Client()), or gsl.Cluster(workers=4)."
    )


def ask(call: Callable[..., Answer], *args: Any) -> Answer:
    """Ask an engine that may be gone this moment: that is its answer then."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - each library has its own
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


class DaskEngines:
    """Workers of Dask: a call is a task, and what goes aside runs in the worker's event loop. What is `owned` is closed."""

    def __init__(self, client: Any, *owned: Any) -> None:
        if client.asynchronous:
            raise OptionError(
                "This client of Dask is asynchronous, and has to be awaited. Make one without: distributed.Client(address)."
            )
        self._client = client
        self._owned = owned

    def engines(self) -> Mapping[str, str]:
        """Return the workers by their addresses; one without a name of its own is called by its address."""
        # Not scheduler_info(): between its question and its answer the client's own look, which lists no workers, may come.
        workers = self._client.sync(self._client.scheduler.identity, callback_timeout=LOOK_LIMIT_S)["workers"]
        return {address: str(facts.get("name", address)).rpartition("://")[2] for address, facts in workers.items()}

    def run(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Submit a task to one worker, and to no other."""
        task: Answer = self._client.submit(function, *args, workers=[key], allow_other_workers=False, pure=False, retries=0)
        return task

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Call a function in the worker's event loop."""

        async def ask_worker() -> Any:
            told = await self._client.run(function, *args, workers=[key], on_error="return", asynchronous=True)
            if isinstance(told[key], BaseException):
                raise told[key]
            return told[key]

        return asyncio.run_coroutine_threadsafe(ask_worker(), self._client.loop.asyncio_loop)

    def close(self) -> None:
        """Close what was started for this."""
        for one in (self._client, *self._owned) if self._owned else ():
            one.close()


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a message of the scheduler says what is not known: who asks a worker aside that dies is told so himself."""
    return not record.getMessage().startswith("broadcast to ")


def start_workers(count: int) -> DaskEngines:
    """Start worker processes on this machine, which take orders from this process alone."""
    try:
        from distributed import Client, LocalCluster
        from distributed.security import Security

        security = Security.temporary()  # any user of this machine reaches the ports, and a worker runs what it is sent
    except ImportError as error:
        raise MissingExtraError(
            f"gsl.Cluster(workers={count}) starts workers of Dask, which needs a package that is missing ({error}): "
            f"{install_line('dask')}"
        ) from error
    logging.getLogger("distributed.scheduler").addFilter(_is_news)
    owned = ExitStack()
    # Dask imports from its folder, and would take one in /tmp that another user has made.
    folder = owned.enter_context(tempfile.TemporaryDirectory(prefix="gpustreamlab-", ignore_cleanup_errors=True))
    preload = Path(folder, "without_ctrl_c.py")  # Ctrl-C reaches the whole process group, and would end it
    preload.write_text("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    cluster = LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        processes=True,
        security=security,
        local_directory=folder,
        scheduler_kwargs={"local_directory": folder},
        # None would not mean no dashboard, but the usual port, and a warning where another cluster has it.
        dashboard_address="127.0.0.1:0",
        preload=[str(preload)],
    )
    return DaskEngines(Client(cluster), cluster, owned)


class ParallelEngines:
    """Engines of ipyparallel: a call runs in the engine's main thread, and what goes aside in that of its control channel."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._known: set[str] = set()

    def engines(self) -> Mapping[str, str]:
        """Return the engines by their UUIDs; their names are their numbers. New ones are told to listen for what goes aside."""
        ids = self._ids()
        for key in ids.keys() - self._known:
            self._known.add(key)
            self.run(key, listen)
        return {key: str(number) for key, number in ids.items()}

    def run(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Send it to the engine's queue."""
        view = self._client.direct_view(self._ids()[key])
        view.block = False
        answer: Answer = view.apply_async(function, *args)
        return answer

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Send it by the control channel, which a thread of its own reads."""
        from jupyter_client.session import msg_header  # comes with ipyparallel

        client, session = self._client, self._client.session
        data = pickle.dumps((function, args))
        # Two threads that ask `session.msg_id` at once get the same one, and one of them the other's answer, or none for ever:
        # seen once in a hundred runs. What goes aside comes from threads, so it has a number of its own.
        header = msg_header(uuid.uuid4().hex, REQUEST, session.username, session.session)
        # The client has no public call for a message of another type; this is the way that its own send_signal goes.
        control = client._control_stream  # noqa: SLF001
        message = client._send(control, REQUEST, content={}, buffers=[data], ident=key.encode(), header=header)  # noqa: SLF001
        return _Reply(message)

    def close(self) -> None:
        """Do nothing: the client is its owner's."""

    def _ids(self) -> dict[str, int]:
        if self._client._closed:  # noqa: SLF001 - its numbers stay as they were, and nothing tells in public
            raise RuntimeError("The client is closed.")
        known = self._client._engines  # noqa: SLF001 - a number is given again to another process, and only this tells them apart
        return {known[number]: number for number in self._client.ids if number in known}


class _Reply:
    """The answer to a message of the control channel."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self.done: Callable[[], bool] = message.done

    def result(self, timeout: float | None = None) -> Any:
        """Return what the function returned, or raise what it raised."""
        told, error = pickle.loads(self._message.result(timeout)["buffers"][0])  # noqa: S301 - of an engine, which runs our code
        if error is not None:
            raise RuntimeError(error)
        return told


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
