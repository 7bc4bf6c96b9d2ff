"""Engines that are workers of Dask: a cell runs as a task, and what goes aside runs in the worker's event loop."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future as Waiting
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gpustreamlab._util.words import install_line
from gpustreamlab.cluster._engines import Answer
from gpustreamlab.errors import MissingExtraError, OptionError

LOOK_LIMIT_S = 10.0
"""How long the scheduler may take to say which workers there are."""


class DistributedEngines:
    """Workers of a `distributed.Client`.

    Parameters
    ----------
    client
        A synchronous one; it stays its owner's.
    owned
        What was started for it, and is closed with it.
    """

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
        task = self._client.submit(function, *args, workers=[key], allow_other_workers=False, pure=False, retries=0)
        return _Task(task)

    def aside(self, key: str, function: Callable[..., Any], *args: Any) -> Answer:
        """Call a function in the worker's event loop."""

        async def ask() -> Any:
            told = await self._client.run(function, *args, workers=[key], on_error="return", asynchronous=True)
            if isinstance(told[key], BaseException):
                raise told[key]
            return told[key]

        return self._soon(ask())

    def close(self) -> None:
        """Close what was started for this."""
        for one in (self._client, *self._owned) if self._owned else ():
            one.close()

    def _soon(self, call: Coroutine[Any, Any, Any]) -> Waiting[Any]:
        return asyncio.run_coroutine_threadsafe(call, self._client.loop.asyncio_loop)


class _Task:
    """A task as an answer."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def result(self, timeout: float | None = None) -> Any:
        """Return it; Dask's own time-out is the builtin one."""
        return self._task.result(timeout)

    def done(self) -> bool:
        """Tell whether it is there."""
        return bool(self._task.done())

    def cancel(self) -> None:
        """Take it back, where it has not begun."""
        self._task.cancel()


_WITHOUT_CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
"""Run by each worker as it starts: Ctrl-C, and a notebook's Stop, reach the whole process group, and would end it."""


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a message of the scheduler says what is not known: who asks a worker aside that dies is told so himself."""
    return not record.getMessage().startswith("broadcast to ")


def start_workers(count: int) -> DistributedEngines:
    """Start worker processes on this machine, which take orders from this process alone.

    Raises
    ------
    MissingExtraError
        If Dask or cryptography is not installed.
    """
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
    preload = Path(folder, "without_ctrl_c.py")
    preload.write_text(_WITHOUT_CTRL_C)
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
    return DistributedEngines(Client(cluster), cluster, owned)
