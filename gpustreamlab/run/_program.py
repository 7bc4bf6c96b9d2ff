"""Run a script or a module as Python itself would: its arguments, its ``__main__``, its path, its end."""

from __future__ import annotations

import importlib.machinery
import io
import runpy
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from gpustreamlab.errors import OptionError

_OUR_FRAMES = 2
"""So many stand above the program: of the command, and of `Program.run`, which calls nothing of ours that calls the program; or
of `join_threads`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is to run."""

    target: str
    """Path of a script, of a folder or ZIP file with a ``__main__``; or the name of a module."""
    arguments: Sequence[str] = ()
    """What follows it in ``sys.argv``."""
    is_module: bool = False
    """Whether the target is a module, as behind ``python -m``."""
    offered: Mapping[str, Any] = field(default_factory=dict)
    """Names that it finds in its own ``__main__`` from the beginning."""

    @property
    def name(self) -> str:
        """What it is called in titles and file names: without folders and suffixes."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).resolve().stem

    def check(self) -> None:
        """Raise `OptionError` where there is no such script."""
        if not self.is_module and not Path(self.target).exists():
            raise OptionError(f"There is no script {self.target!r}. For a module: gpustreamlab run -m {Path(self.target).stem}")

    def run(self) -> None:
        """Run it; what it raises is raised."""
        main = ModuleType("__main__")
        main.__dict__.update(self.offered, __builtins__=sys.modules["builtins"])
        if sys.version_info < (3, 14):
            main.__dict__.update(__annotations__={})
        sys.modules["__main__"] = main
        # Python's own `-m`, which has no public name: no module of this name ends the process, with a line.
        run_as_main: Callable[..., Any] = getattr(runpy, "_run_module_as_main")  # noqa: B009
        if self.is_module:
            _replace_first_path(str(Path.cwd()))
            sys.argv[:] = ["-m", *self.arguments]
            run_as_main(self.target, alter_argv=True)
        elif Path(self.target).is_dir() or zipfile.is_zipfile(self.target):
            _replace_first_path(str(Path(self.target).absolute()))
            sys.argv[:] = [self.target, *self.arguments]
            run_as_main("__main__", alter_argv=False)
        else:
            _replace_first_path(str(Path(self.target).resolve().parent))
            sys.argv[:] = [self.target, *self.arguments]
            path = str(Path(self.target).absolute())
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)  # noqa: S102 - running the user's program is what this is for


def _replace_first_path(path: str) -> None:
    """Let imports begin where the program lies, and not where this command does."""
    if not sys.flags.safe_path and sys.path:
        sys.path[0] = path


def end_of(error: BaseException) -> BaseException:
    """Show what a program ended with, as the interpreter would, and return what is to be raised so that it says nothing more.

    That is `SystemExit` with the status, or the interrupt, of which the interpreter dies as of a signal.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return SystemExit(error.code)
        with suppress(Exception):
            print(error.code, file=sys.stderr)  # noqa: T201 - a text instead of a status, as in sys.exit("no such file")
        return SystemExit(1)
    trace = _without_ours(error.__traceback__)
    error.__traceback__ = trace
    with suppress(Exception):  # what the interpreter does, too; debuggers look there
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        setattr(sys, "last_exc", error)  # noqa: B010 - from Python 3.12 on
    with suppress(BrokenPipeError):
        _show(error, trace)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = _say_nothing
        return error
    return SystemExit(1)


def join_threads() -> None:
    """Wait for the program's threads, as the interpreter does at its end.

    Not for those of executors: they wait for work until the interpreter tells them that it ends, which is later.
    """
    executors = sys.modules.get("concurrent.futures.thread")
    waiting = getattr(executors, "_threads_queues", ())
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and thread not in waiting:
            thread.join()


def _show(error: BaseException, trace: TracebackType | None) -> None:
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:  # noqa: BLE001 - a hook of the program; the interpreter shows what there was as well
        sys.__excepthook__(type(error), error, trace)


def _say_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Be the hook for what was shown already."""


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that stand above the program's."""
    for _ in range(_OUR_FRAMES):
        trace = None if trace is None else trace.tb_next
    return trace
