"""Do something when the program has imported a library, and not before: nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch:
    """Calls a function behind the first import of each of some modules, with the module's name.

    What was imported before is told at once, in `start`. The function must not raise: it stands in the program's import.

    Parameters
    ----------
    names
        Names of modules.
    call
        What to call.
    """

    def __init__(self, names: Collection[str], call: Callable[[str], object]) -> None:
        self._waiting = set(names)
        self._call = call

    def start(self) -> None:
        """Watch from now on."""
        sys.meta_path.insert(0, self)
        for name in [*self._waiting]:
            if name in sys.modules:
                self._tell(name)

    def stop(self) -> None:
        """Watch no more. Idempotent."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that tells when it has run; None for what is not watched."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _TellingLoader(spec.loader, lambda: self._tell(name))  # type: ignore[assignment]
                return spec
        return None

    def _tell(self, name: str) -> None:
        if name in self._waiting:
            self._waiting.discard(name)
            self._call(name)


class _TellingLoader:
    """Loads a module as its own loader does, which has its place again before the module runs, and tells when it has run."""

    def __init__(self, loader: Any, tell: Callable[[], object]) -> None:
        self._loader, self._tell = loader, tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then tell."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._tell()
