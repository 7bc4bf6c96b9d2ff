"""What follows the selections of one session: the backend's own library, and those that have an adapter."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gpustreamlab._util.words import wrap_sentence
from gpustreamlab.adapters import _registry
from gpustreamlab.adapters._known import KNOWN, Library, installed_version, is_loaded, library_of, what_it_does
from gpustreamlab.adapters._registry import Failure, Follower
from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.typing import AdapterState

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
        self.registry = _registry.registry
        self._select_backend, self._restore_backend = select, restore
        self._seen: set[str] = set()
        self._acquired: list[Follower] = []

    def look(self) -> list[str]:
        """Take the adapters of the libraries that have been imported since the last time; return what to warn the user of."""
        with self.registry.lock:
            count = len(sys.modules)
            is_ready = True
            for module in self.registry.sources:
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
    """Whether one library follows the selected lane."""

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
    """Every library that is known or has an adapter. Looking imports none of them."""

    items: tuple[LibraryState, ...]
    """One for each library."""

    def __iter__(self) -> Iterator[LibraryState]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, library: object) -> bool:
        return any(library in (item, item.name) for item in self.items)

    def __getitem__(self, name: str) -> LibraryState:
        if not isinstance(name, str):
            raise OptionError(
                f"A library is found by its name, not by {name!r}. Use lab.recording.adapters['{self.items[0].name}'], or "
                "list(lab.recording.adapters) for all."
            )
        for item in self.items:
            if item.name == name:
                return item
        raise OptionError(f"No library {name!r} is known. {nearest_hint(name, [item.name for item in self.items])}")

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
    known = {library.module for library in KNOWN}
    others = () if followers is None else tuple(name for name in followers.registry.sources if name not in known)
    foreign = tuple(Library(name, name, (), AdapterState.FOLLOWS, "by an adapter of another package") for name in others)
    items = {library.name: _state_of(library, followers) for library in (*KNOWN, *foreign)}
    return Adapters(tuple(items.values()))


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
