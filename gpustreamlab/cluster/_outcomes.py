"""What engines returned, printed and raised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from gpustreamlab._util.shell import running_kernel_shell
from gpustreamlab.analysis._report import Reported
from gpustreamlab.cluster._worker import Outcome
from gpustreamlab.errors import ClusterError
from gpustreamlab.model import Layout, show_text

_Value = TypeVar("_Value")


class ByEngine(Mapping[str, _Value], Generic[_Value]):
    """A value of each engine, by its name; shows one line for each, and printed all of it.

    Reports of several engines that say the same are shown once.

    Parameters
    ----------
    values
        Of each engine.
    """

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, engine: str | int) -> _Value:
        return self._values[str(engine)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "\n".join(f"[{name}] {line}" for name, value in self.items() for line in _short(value).splitlines())

    def __str__(self) -> str:
        if not any(isinstance(value, Reported) for value in self.values()):
            return repr(self)
        found: dict[str, list[str]] = {}
        for name, value in self.items():
            found.setdefault(str(value) if isinstance(value, Reported) else name, []).append(name)
        told = [(", ".join(names), _told(self[names[0]])) for names in found.values()]
        return "\n\n".join(f"[{names}] {text}" for names, text in told if text)

    _repr_pretty_ = show_text


class Outcomes(ByEngine[Any]):
    """What engines returned, by their names. What they printed was shown when they had ended, and is not shown again.

    Parameters
    ----------
    outcomes
        Of each engine.
    """

    def __init__(self, outcomes: Mapping[str, Outcome]) -> None:
        super().__init__({name: outcome.value for name, outcome in outcomes.items()})
        self.texts: dict[str, str] = {name: outcome.text for name, outcome in outcomes.items()}
        """What each has printed."""

    def _ipython_display_(self) -> None:
        """Show nothing, instead of an empty ``Out``, where nothing was returned."""
        if repr(self):
            raise NotImplementedError  # IPython then shows it as it shows others


def show_printed(name: str, outcome: Outcome) -> None:
    """Print what an engine has printed, each line behind its name, and show what it has displayed."""
    texts = [outcome.text]
    if running_kernel_shell() is None:
        texts += [f"{data.get('text/plain', '<' + ', '.join(data) + '>')}\n" for data in outcome.shown]
    # Of a progress bar, which draws over its line, what it has left.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in "".join(texts).removesuffix("\n").split("\n")]
    if any(lines):
        print("\n".join(f"[{name}] {line}" for line in lines), flush=True)  # noqa: T201 - what the user's function prints
    if len(texts) == 1 and outcome.shown:
        from IPython.display import display  # there where its shell is

        print(f"[{name}]", flush=True)  # noqa: T201 - likewise
        for data in outcome.shown:
            display(data, raw=True)


def failure_of(failed: Mapping[str, Outcome], good: Outcomes) -> ClusterError:
    """Return an error that tells what each engine raised, once where several raised the same."""
    told: dict[str, list[str]] = {}
    for name, outcome in failed.items():
        told.setdefault(outcome.traceback.strip() or outcome.error, []).append(name)
    asked = len(failed) + len(good)
    kept = f"What the other {len(good)} returned is in error.results." if len(good) else ""
    where = f"all {asked} engines" if asked == len(failed) > 1 else f"{len(failed)} of {asked} engines"
    parts = [f"[{', '.join(names)}] {text}" for text, names in told.items()]
    return ClusterError(
        "\n".join([f"It failed on {where}. {kept}".rstrip(), *parts]),
        failures={name: outcome.traceback or outcome.error for name, outcome in failed.items()},
        results=good,
    )


def _short(value: object) -> str:
    """Return what a value is in a line, where it can tell."""
    if value is None:
        return ""
    text = str(value) if isinstance(value, (str, Layout)) else repr(value)
    return text[1:-1] if text.startswith(f"<{type(value).__name__}: ") and text.endswith(">") else text


def _told(value: object) -> str:
    """Return all of a report, and a line of anything else."""
    return str(value) if isinstance(value, Reported) else _short(value)
