"""Choose the backend of a session: the GPU if there is one, else the simulated device, and say which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from gpustreamlab.backends._protocol import Backend
from gpustreamlab.errors import BackendNotFoundError, OptionError, nearest_hint

BACKEND_NAMES = ("cuda", "sim")
_preferred: list[str] = []  # What stands for no choice, the newest last; see `prefer_backend`


class Choice(NamedTuple):
    """A backend and how it came to be chosen."""

    backend: Backend
    is_owned: bool
    """True if it was made here, so that whoever asked for it closes it."""
    fallback_reason: str
    """Why the simulated device stands in for a GPU; empty if it was asked for or if the GPU is used."""


def prefer_backend(name: str) -> None:
    """Let sessions of this process that name no backend use this one: what ``gpustreamlab run --backend`` asks for."""
    _preferred.append(name)


def choose_backend(wanted: str | Backend | None, device: int) -> Choice:
    """Return the backend to use."""
    if wanted is None and _preferred:
        wanted = _preferred[-1]
    if wanted is None:
        return _first_available(device)
    if not isinstance(wanted, str):
        return Choice(_checked(wanted, device), is_owned=False, fallback_reason="")
    if wanted == "cuda":
        return Choice(_cuda(device), is_owned=True, fallback_reason="")
    if wanted == "sim":
        return Choice(_sim(device), is_owned=True, fallback_reason="")
    raise BackendNotFoundError(
        f"There is no backend {wanted!r}. {nearest_hint(wanted, BACKEND_NAMES)} "
        "Session(backend=...) takes 'cuda', 'sim', a backend object, or nothing for the GPU if there is one."
    )


def open_node(wanted: str | None, devices: Sequence[int] | None) -> list[Backend]:
    """Return a backend for each GPU of this host, or for each of some simulated cards that share one virtual time."""
    if wanted not in {None, *BACKEND_NAMES}:
        raise BackendNotFoundError(
            f"There is no backend {wanted!r} for a node. Use gpustreamlab.Node(backend='cuda') or 'sim'."
        )
    if isinstance(devices, int):
        raise OptionError(f"devices is {devices!r}; name them: gpustreamlab.Node(devices=[0, 1]).")
    if devices is not None and (not devices or len(set(devices)) != len(devices)):
        raise OptionError(f"devices is {devices!r}; name one or more, each once: gpustreamlab.Node(devices=[0, 1]).")
    if wanted is None:
        from gpustreamlab.backends.cuda._probe import why_unavailable

        wanted = "sim" if why_unavailable() is not None else "cuda"
    if wanted == "cuda":
        from gpustreamlab.backends.cuda._libcuda import read_driver

        with ExitStack() as undoing:
            opened: list[Backend] = []
            for device in range(read_driver().device_count) or (0,) if devices is None else devices:
                opened.append(_cuda(device, **({"beside": opened[0]} if opened else {})))
                undoing.callback(opened[-1].close)
            undoing.pop_all()
        return opened
    from gpustreamlab.backends.sim import SimBackend

    if devices is not None and list(devices) != list(range(len(devices))):
        raise OptionError(f"devices is {devices!r}; simulated ones are 0, 1, 2, ...: gpustreamlab.Node(devices=[0, 1, 2]).")
    first = SimBackend()
    return [first, *(SimBackend(beside=first) for _ in range(len(devices or (0, 1)) - 1))]


def device_count(wanted: str | None) -> int:
    """Return how many devices a process can choose from; 1 for simulated ones."""
    from gpustreamlab.backends.cuda._probe import why_unavailable

    if wanted == "sim" or why_unavailable() is not None:
        return 1
    from gpustreamlab.backends.cuda._libcuda import read_driver

    return max(1, read_driver().device_count)


def _first_available(device: int) -> Choice:
    from gpustreamlab.backends.cuda._probe import why_unavailable

    problem = why_unavailable()
    if problem is None:
        return Choice(_cuda(device), is_owned=True, fallback_reason="")
    return Choice(_sim(device), is_owned=True, fallback_reason=problem[1])


def _cuda(device: int, **beside: Any) -> Backend:
    from gpustreamlab.backends.cuda import CudaBackend

    return CudaBackend(device, **beside)


def _sim(device: int) -> Backend:
    from gpustreamlab.backends.sim import SimBackend
    from gpustreamlab.errors import DeviceNotFoundError

    if device != 0:
        raise DeviceNotFoundError(
            f"There is no simulated device {device!r}; there is one, number 0. Use gpustreamlab.Session(device=0)."
        )
    return SimBackend()


def _checked(wanted: object, device: int) -> Backend:
    if isinstance(wanted, type):
        raise BackendNotFoundError(
            f"The backend is the class {wanted.__name__}, not an object of it. Use gpustreamlab.Session({wanted.__name__}())."
        )
    missing = [name for name in ("create_stream", "acquire_event", "resolve", "clock_info") if not hasattr(wanted, name)]
    if missing:
        raise BackendNotFoundError(
            f"The backend {wanted!r:.60} of type {type(wanted).__name__} is not a backend: it has no {missing[0]}. "
            "Use gpustreamlab.Session('cuda'), 'sim', or an object with the methods of gpustreamlab.backends.Backend."
        )
    backend = cast(Backend, wanted)
    if device not in (0, backend.device.ordinal):
        raise OptionError(
            f"device is {device}, but the backend object given works on device {backend.device.ordinal}. Leave out device=."
        )
    return backend
