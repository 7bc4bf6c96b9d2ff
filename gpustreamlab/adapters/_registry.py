"""The adapters of this process: each is made once for a device, shared by the sessions, and closed with the last of them."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.words import install_line
from gpustreamlab.adapters._known import GROUP, Adapter, AdapterFactory, LaneStream, installed_version, make_torch
from gpustreamlab.adapters._numba import make_numba
from gpustreamlab.errors import AdapterError, AdapterWarning, MissingExtraError

_log = logging.getLogger(__name__)

BUILT_IN: Mapping[str, AdapterFactory] = MappingProxyType({"torch": make_torch, "numba.cuda": make_numba})
"""Adapters that ship, by the module that has to be loaded."""


class Source(NamedTuple):
    """One adapter that can be made."""

    origin: str
    """Who brings it, in words."""
    load: Callable[[], AdapterFactory]
    """Imports the factory."""


def find_sources() -> dict[str, list[Source]]:
    """Return by module who brings an adapter for it; other packages come before those that ship. Imports none of them."""
    found: dict[str, list[Source]] = {}
    entries = {(entry.name, entry.value): entry for entry in importlib.metadata.entry_points(group=GROUP)}
    for (module, value), entry in sorted(entries.items()):
        owner = entry.dist.name if entry.dist is not None else "a package"
        source = Source(f"the adapter {value!r} of {owner}", cast("Callable[[], AdapterFactory]", entry.load))
        found.setdefault(module, []).append(source)
    for module, make in BUILT_IN.items():
        found.setdefault(module, []).append(Source("the adapter of gpustreamlab", partial(_given, make)))
    return found


def _given(make: AdapterFactory) -> AdapterFactory:
    return make


STRAY = "its work leaves the lane; lab.trace.strays() finds it"
"""What it means that a library does not follow."""


class Follower:
    """An adapter in use, for one device."""

    def __init__(self, module: str, ordinal: int, version: str, adapter: Adapter) -> None:
        self.module = module
        self.ordinal = ordinal
        self.version = version
        self.adapter = adapter
        self.calls: tuple[Callable[[LaneStream], object], Callable[[Any], None]] = adapter.select, adapter.restore
        """What to call now; read at once, since another thread may switch the adapter off between two readings."""
        self.session_count = 0

    def switch_off(self) -> None:
        """Do nothing from now on. Selections that were made keep the call that puts them back."""
        self.calls = _do_nothing, _do_nothing


class Failure(NamedTuple):
    """An adapter that raised."""

    follower: Follower
    doing: str
    error: Exception


class Registry:
    """Finds, makes, shares and closes adapters. Its lock is held around state, never around waits for the device."""

    def __init__(self) -> None:
        self.lock = process_lock()
        self.switched_off: dict[tuple[str, int], str] = {}
        """Why libraries do not follow any more, by module and device."""
        self.unable: dict[tuple[str, int], str] = {}
        """Why libraries cannot follow, by module and device."""
        self._sources: dict[str, list[Source]] | None = None
        self._followers: dict[tuple[str, int], Follower] = {}
        self._untold: list[str] = []

    @property
    def sources(self) -> dict[str, list[Source]]:
        """By module, who brings an adapter for it; looked up once."""
        with self.lock:
            if self._sources is None:
                self._sources = find_sources()
            return self._sources

    def acquire(self, module: str, ordinal: int) -> Follower | None:
        """Return the adapter of a loaded library for one session more; None if it cannot follow."""
        key = module, ordinal
        with self.lock:
            if key in self.switched_off or key in self.unable:
                return None
            follower = self._followers.get(key) or self._make(module, ordinal)
            if follower is not None:
                self._followers[key] = follower
                follower.session_count += 1
            return follower

    def release(self, followers: Iterable[Follower]) -> None:
        """Let one session go. An adapter of none is closed, and made anew for the next."""
        for follower in followers:
            with self.lock:
                follower.session_count -= 1
                if follower.session_count > 0:
                    continue
                self._followers = {key: known for key, known in self._followers.items() if known is not follower}
                close = getattr(follower.adapter, "close", None)
                if callable(close):
                    try:
                        close()
                    except Exception as error:  # noqa: BLE001 - told, and the others are closed
                        _log.warning(self._note(Failure(follower, "close", error)))

    def take_untold(self) -> list[str]:
        """Return what the user has to be warned of, once."""
        with self.lock:
            untold, self._untold = self._untold, []
            return untold

    def tell(self, failures: list[Failure]) -> None:
        """Switch off what raised. The first failure of a library on a device is told as a warning."""
        with self.lock:
            texts = [text for failure in failures if (text := self._note(failure))]
        for text in texts:
            warnings.warn(text, AdapterWarning, stacklevel=5)

    def _note(self, failure: Failure) -> str:
        follower, doing, error = failure
        _log.debug("The adapter of %s failed to %s", follower.module, doing, exc_info=error)
        key = follower.module, follower.ordinal
        if key in self.switched_off:
            return ""
        reason = f"its adapter failed to {doing} a stream: {_shown(error)}"
        self.switched_off[key] = reason
        follower.switch_off()
        title = f"{follower.module} {follower.version}".strip()
        return (
            f"{title} does not follow the selected lane of device {follower.ordinal} any more: {reason}. From now on {STRAY}. "
            "Restart the process to try again."
        )

    def _make(self, module: str, ordinal: int) -> Follower | None:
        """Make the first adapter that can be made, and tell of those that cannot."""
        version = installed_version(module)
        title = f"{module} {version}".strip()
        told, has_work = [], False
        for source in self.sources[module]:
            try:
                follower = Follower(module, ordinal, version, source.load()(sys.modules[module], ordinal))
            except AdapterError as error:
                told.append(str(error))
                has_work |= error.has_work
            except Exception as error:  # noqa: BLE001 - what others bring must not stop the user's block
                told.append(f"{source.origin} cannot be made: {_shown(error)}")
                has_work = True
            else:
                if told:
                    self._untold.append(f"{title} follows the selected lane by {source.origin}: {'; '.join(told)}.")
                return follower
        self.unable[module, ordinal] = reasons = "; ".join(told)
        if has_work:
            self._untold.append(f"{title} cannot follow the selected lane: {reasons}. So {STRAY}.")
        return None


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _do_nothing(_: object) -> None:
    return None


registry = Registry()
"""The one of this process."""


Wrap: TypeAlias = Callable[[Any, LaneStream, int], Any]
"""Makes the stream's object of the library's module, the stream and the device's number."""
_VIEWS: Mapping[str, tuple[str, Wrap]] = MappingProxyType(
    {
        "cupy": ("pip install cupy-cuda13x", lambda cupy, stream, _: cupy.cuda.Stream.from_external(stream)),
        "torch": ("pip install torch", lambda torch, stream, ordinal: torch.cuda.ExternalStream(stream.handle, device=ordinal)),
        "numba.cuda": ("pip install numba-cuda", lambda cuda, stream, _: cuda.external_stream(stream.handle)),
        "cuda.core": ("", lambda core, stream, _: core.Stream.from_handle(stream.handle)),
    }
)
"""By module: what installs it (the extra if nothing), and how it wraps a stream without owning it."""


def view_of(module: str, stream: LaneStream, ordinal: int) -> Any:
    """Return a stream as a library has it."""
    fix, wrap = _VIEWS[module]
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"The lane cannot be given to {module}, which cannot be imported ({error}). "
            f"Install it with: {fix or install_line('cuda13')}",
            name=module,
        ) from error
    return wrap(library, stream, ordinal)
