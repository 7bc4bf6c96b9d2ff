"""What follows the selections of one session: the backend's own library, and those that have an adapter."""

from __future__ import annotations

import html
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.words import install_line, wrap_sentence
from gpustreamlab.adapters._known import (
    KNOWN,
    Adapter,
    AdapterFactory,
    LaneStream,
    Library,
    installed_version,
    is_loaded,
    library_of,
    make_torch,
    what_it_does,
)
from gpustreamlab.adapters._numba import make_numba
from gpustreamlab.errors import AdapterError, AdapterWarning, MissingExtraError, OptionError, nearest_hint
from gpustreamlab.typing import AdapterState

_log = logging.getLogger(__name__)

BUILT_IN: Mapping[str, AdapterFactory] = MappingProxyType({"torch": make_torch, "numba.cuda": make_numba})
"""Adapters that ship, by the module that has to be loaded."""


STRAY = "its work leaves the stream; lab.trace.strays() finds it"  # What it means that a library does not follow


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
        self._followers: dict[tuple[str, int], Follower] = {}
        self._untold: list[str] = []

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
            f"{title} does not follow the selected stream of device {follower.ordinal} any more: {reason}. From now on "
            f"{STRAY}. Restart the process to try again."
        )

    def _make(self, module: str, ordinal: int) -> Follower | None:
        """Make the adapter of a library; where it cannot be made, keep why, to tell once."""
        version = installed_version(module)
        try:
            return Follower(module, ordinal, version, BUILT_IN[module](sys.modules[module], ordinal))
        except AdapterError as error:
            reason, has_work = str(error), error.has_work
        except Exception as error:  # noqa: BLE001 - a library that is broken must not stop the user's block
            reason, has_work = f"its adapter cannot be made: {_shown(error)}", True
        self.unable[module, ordinal] = reason
        if has_work:
            self._untold.append(f"{f'{module} {version}'.strip()} cannot follow the selected stream: {reason}. So {STRAY}.")
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
            f"The stream cannot be given to {module}, which cannot be imported ({error}). "
            f"Install it with: {fix or install_line('cuda13')}",
            name=module,
        ) from error
    return wrap(library, stream, ordinal)


_NOTHING: Final = object()

Followed: TypeAlias = "tuple[Any, Follower, Callable[[Any], None], object]"
"""A library that was selected for: those before it (another such tuple, or None), its adapter, the call that puts it back, and
what that call needs."""


class Selected:
    """What one selection has selected so far. Each step is noted by the statement that takes it, so none is lost."""

    backend_token: object = _NOTHING
    last: Followed | None = None


class Followers:
    """Selects for the backend first and for the libraries after it, and puts them back in reverse order."""

    def __init__(self, select: Callable[[Any], object], restore: Callable[[Any], None], ordinal: int) -> None:
        self.module_count = -1
        """How many modules were loaded as the libraries were looked for; -1 if one was being imported then."""
        self.active: tuple[Follower, ...] = ()
        """Adapters in use, in the order of their making."""
        self.ordinal = ordinal
        self.registry = registry
        self._select_backend, self._restore_backend = select, restore
        self._seen: set[str] = set()
        self._acquired: list[Follower] = []

    def look(self) -> list[str]:
        """Take the adapters of the libraries that have been imported since the last time; return what to warn the user of."""
        with self.registry.lock:
            count = len(sys.modules)
            is_ready = True
            for module in BUILT_IN:
                if module in self._seen or (loaded := sys.modules.get(module)) is None:
                    continue
                if is_loaded(loaded):
                    self._take(module)
                else:
                    is_ready = False
            self.module_count = count if is_ready else -1
            return self.registry.take_untold()

    def select(self, stream: Any) -> object:
        """Select a stream for the backend and each library of this thread; return what `restore` needs."""
        selected, follower = Selected(), None
        try:
            selected.backend_token = self._select_backend(stream)
            for follower in self.active:
                # No `try` inside this one: CPython 3.11 can be interrupted, uncaught, where an inner one begins.
                select, restore = follower.calls
                selected.last = (selected.last, follower, restore, select(stream))
            return selected
        except BaseException as error:
            if selected.backend_token is not _NOTHING:
                self.restore(selected)
            if follower is None or not isinstance(error, Exception):
                raise
            failure = Failure(follower, "select", error)
        self._drop([failure])
        return self.select(stream)  # without the one that failed

    def restore(self, token: Any) -> None:
        """Put everything back that `select` selected, the last first; doing it again changes nothing that is done."""
        if type(token) is not Selected:
            self._restore_backend(token)  # made before the first library followed
            return
        failures: list[Failure] | None = None
        try:
            while (last := token.last) is not None:
                try:
                    last[2](last[3])
                except Exception as error:  # noqa: BLE001 - the others are put back all the same
                    failures = [*(failures or ()), Failure(last[1], "restore", error)]
                token.last = last[0]
        finally:
            self._restore_backend(token.backend_token)
        if failures:
            self._drop(failures)

    def close(self) -> None:
        """Let the adapters go."""
        self.active = ()
        acquired, self._acquired = self._acquired, []
        self.registry.release(acquired)

    def _take(self, module: str) -> None:
        follower = self.registry.acquire(module, self.ordinal)
        if follower is not None:
            self._acquired.append(follower)
            self.active = (*self.active, follower)
        self._seen.add(module)

    def _drop(self, failures: list[Failure]) -> None:
        failed = [failure.follower for failure in failures]
        with self.registry.lock:  # another thread may be taking one
            self.active = tuple(follower for follower in self.active if follower not in failed)
        self.registry.tell(failures)


_SIMULATED = "the simulated device of this session has no stream to give"
_FOLLOWING = (AdapterState.FOLLOWS, AdapterState.THROUGH_TORCH)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LibraryState:
    """Whether one library follows the selected stream."""

    name: str
    """The library."""
    version: str
    """Its version; empty where it is not installed."""
    state: AdapterState
    """What it does."""
    reason: str
    """How, or why not."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {f'{self.name} {self.version}'.strip()}: {self.state}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's own signature
        printer.text("…" if cycle else str(self))

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip() + f": {self.state}, {self.reason}"


@dataclass(frozen=True, slots=True, repr=False)
class Adapters:
    """Every library that is known. Looking imports none of them."""

    items: tuple[LibraryState, ...]
    """One for each library."""

    def __iter__(self) -> Iterator[LibraryState]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, library: object) -> bool:
        return any(library in (item, item.name) for item in self.items)

    def __getitem__(self, name: str) -> LibraryState:
        for item in self.items:
            if item.name == name:
                return item
        raise OptionError(f"No library {name!r} is known. {nearest_hint(str(name), [item.name for item in self.items])}")

    def __repr__(self) -> str:
        followers = [item.name for item in self.items if item.state in _FOLLOWING]
        return f"<{type(self).__name__}: {len(self)} libraries, {len(followers)} loaded and following; print() shows them>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's own signature
        printer.text("…" if cycle else str(self))

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [(item.name, item.version or "-", str(item.state), item.reason) for item in self.items]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        lines = []
        for *cells, reason in rows:
            head = "".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True))
            lines += wrap_sentence(reason, first_indent=head, indent=" " * len(head))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            "<tr>" + "".join(f"<td {left}>{html.escape(text)}</td>" for text in row) + "</tr>" for row in self._rows()
        )
        head = "".join(f"<th {left}>{text}</th>" for text in ("library", "version", "state", "reason"))
        return f"<table><tr>{head}</tr>{rows}</table>"


def adapters_table(followers: Followers | None) -> Adapters:
    """Return what each library does now."""
    return Adapters(tuple(_state_of(library, followers) for library in KNOWN))


def _state_of(library: Library, followers: Followers | None) -> LibraryState:
    version = installed_version(library.module)
    state, reason = library.state, library.reason
    if not is_loaded(sys.modules.get(library.module)):
        state = AdapterState.NOT_LOADED
        prospect = what_it_does(library, version)
        if followers is None:
            prospect = f"{AdapterState.CANNOT_FOLLOW}, {_on_simulated(library, version)}"
        reason = f"once it is imported: {prospect}" if version else "not installed"
    elif followers is None:
        state, reason = AdapterState.CANNOT_FOLLOW, _on_simulated(library, version)
    elif library.state is AdapterState.THROUGH_TORCH:
        torch = _state_of(library_of("torch"), followers)
        if torch.state is not AdapterState.FOLLOWS:
            state, reason = AdapterState.CANNOT_FOLLOW, f"it launches on torch's current stream, and torch: {torch.state}"
    elif (why := followers.registry.switched_off.get((library.module, followers.ordinal))) is not None:
        state, reason = AdapterState.SWITCHED_OFF, why
    elif (why := followers.registry.unable.get((library.module, followers.ordinal))) is not None:
        state, reason = AdapterState.CANNOT_FOLLOW, why
    return LibraryState(name=library.name, version=version, state=state, reason=reason)


def _on_simulated(library: Library, version: str) -> str:
    return f"{_SIMULATED}; on a GPU: {what_it_does(library, version)}"
