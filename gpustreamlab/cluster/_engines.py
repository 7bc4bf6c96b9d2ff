"""What a cluster needs of whatever starts its processes: four calls, and an answer for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from gpustreamlab.errors import OptionError

GROUP = "gpustreamlab.clusters"
"""Other packages bring adapters by entry points of this group: the name is the root module of the client's class, the value is
called with a client and returns `Engines`."""


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


def choose_engines(client: Any) -> Engines:
    """Return the adapter of a client, or what is one already.

    Raises
    ------
    OptionError
        If nobody knows this kind of client.
    """
    roots = [base.__module__.partition(".")[0] for base in type(client).__mro__]
    if "distributed" in roots:
        from gpustreamlab.cluster._distributed import DistributedEngines

        return DistributedEngines(client)
    if "ipyparallel" in roots:
        from gpustreamlab.cluster._ipyparallel import ParallelEngines

        return ParallelEngines(client)
    for entry in entry_points(group=GROUP):
        if entry.name in roots:
            brought: Engines = entry.load()(client)
            return brought
    if all(callable(getattr(client, call, None)) for call in ("engines", "run", "aside", "close")):
        given: Engines = client
        return given
    raise OptionError(
        f"{client!r:.80} is no client of a cluster. Use gsl.Cluster(ipyparallel.Client()), "
        "gsl.Cluster(distributed.Client()), or gsl.Cluster(workers=4)."
    )


def open_engines(client: object, workers: object) -> Engines:
    """Return the adapter of a client, or of workers that are started here.

    Raises
    ------
    OptionError
        If both are given, or none, or it is no client.
    """
    if (client is None) == (workers is None):
        raise OptionError("gsl.Cluster takes a client, or a number of workers to start here: gsl.Cluster(workers=4).")
    if workers is None:
        return choose_engines(client)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers is {workers!r}; it must be a number of processes, 1 or more: gsl.Cluster(workers=4).")
    from gpustreamlab.cluster._distributed import start_workers

    return start_workers(workers)
