"""A call on several engines: what they print is shown while it runs, each line behind its engine's name; and Ctrl-C."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import Any

from gpustreamlab._util.shell import running_kernel_shell
from gpustreamlab.cluster import _calls
from gpustreamlab.cluster._calls import Outcome, Output
from gpustreamlab.cluster._engines import Answer, Engines
from gpustreamlab.cluster._entry import ANSWER_S, reason
from gpustreamlab.cluster._follower import SILENT_S, Life
from gpustreamlab.cluster._outcomes import CONTROL, shown_text

GIVEN_UP_S = 60.0
"""An engine that is there and has told nothing for so long, also not aside, is not waited for."""
GONE_S = 0.02
"""For how long a call that runs is not looked at, at most."""
SHORT_SHARE = 0.1
"""A short call is looked at more often: of its time it waits for that no more than this share."""
STOP_S = 2.0
"""How long is waited for calls that were interrupted."""
PROGRESS_EVERY_S = 5.0
"""How often the state of a progress bar is shown, which draws over its line and does not end it."""


class Run:
    """A call that was made on engines.

    Parameters
    ----------
    engines
        The adapter.
    lives
        The engines; a follower brings what they print.
    function, args
        What is called on each, with the number of this call before `args`; it returns an `Outcome`.
    """

    def __init__(self, engines: Engines, lives: Sequence[Life], function: Callable[..., Any], *args: Any) -> None:
        self._engines, self._number = engines, uuid.uuid4().hex
        self._answers = {life: ask(engines, life, function, self._number, *args) for life in lives}
        self._printers = {life: Printer(life.called) for life in lives}
        self._failed_s: dict[Life, float] = {}

    def outcomes(self) -> dict[str, Outcome]:
        """Wait for each engine until it has answered or is gone, and show what they print; return what came of it by name.

        Raises
        ------
        KeyboardInterrupt
            At Ctrl-C, when the engines have stopped, or go on for long: the message says which.
        """
        __tracebackhide__ = True
        found: dict[Life, Outcome] = {}
        began_s = time.monotonic()
        try:
            while True:
                for life in [life for life in self._answers if life not in found]:
                    outcome = self._outcome(life)
                    self._show(life, outcome)
                    if outcome is not None:
                        found[life] = outcome
                if len(found) == len(self._answers):
                    break
                time.sleep(min(GONE_S, SHORT_SHARE * (time.monotonic() - began_s)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._interrupt()) from None
        return {life.called: found[life] for life in self._answers}

    def _outcome(self, life: Life) -> Outcome | None:
        """Return what came of it on an engine that has answered, is gone or given up, or None.

        It is waited for as long as it is there, and answers aside: how long work takes is the user's matter.
        """
        if not life.is_there:
            return Outcome(error=f"It was lost: {life.why}.")
        if self._answers[life].done():
            try:
                return _calls.unpack(self._answers[life].result(ANSWER_S))
            except Exception as error:  # noqa: BLE001 - of the connection: each adapter has its own
                # The engine may have gone, of which is told in a moment; one that is heard of after this is there.
                now_s = time.monotonic()
                if max(life.mirror.news_s, now_s - SILENT_S) > self._failed_s.setdefault(life, now_s):
                    return Outcome(error=reason(error))
        if life.silent_s > GIVEN_UP_S:
            return Outcome(error=f"It has not answered for {life.silent_s:.0f} s, also not aside, and is not waited for.")
        return None

    def _show(self, life: Life, outcome: Outcome | None) -> None:
        """Show what has arrived of an engine's output, and all of it where that is known."""
        call, outputs = life.printed
        if call == self._number:
            self._printers[life].show(outputs)
        if outcome is not None:
            self._printers[life].show(outcome.outputs)
            self._printers[life].end_line()

    def _interrupt(self) -> str:
        """Interrupt the call on the engines that have not answered, and show what they printed; say which go on with it."""
        for life, answer in self._answers.items():
            if life.is_there and not answer.done():
                with suppress(Exception):  # it may have gone this moment
                    self._engines.aside(life.key, _calls.interrupt, self._number)
        end_s = time.monotonic() + STOP_S
        while time.monotonic() < end_s and not all(answer.done() for answer in self._answers.values()):
            time.sleep(GONE_S)
        for life, answer in self._answers.items():
            self._show(life, self._outcome(life) if answer.done() else None)
            self._printers[life].end_line()
        busy = ", ".join(life.called for life, answer in self._answers.items() if life.is_there and not answer.done())
        if not busy:
            return "Stopped here and on the engines."
        return f"Stopped here. Engine {busy} goes on until its work is back in Python; the next call waits for that."


class Printer:
    """Shows what an engine prints, line by line, and what it shows in between.

    Parameters
    ----------
    name
        How users call the engine.
    """

    def __init__(self, name: str) -> None:
        self._name, self._shown_count, self._line, self._ended_s = name, 0, "", time.monotonic()

    def show(self, outputs: Sequence[Output]) -> None:
        """Show what is new of all that it has printed and shown so far; a line once it has ended, or draws over itself."""
        new = outputs[self._shown_count :]
        self._shown_count += len(new)
        for _, alike in groupby(new, key=type):
            parts = list(alike)
            text = "".join(part for part in parts if isinstance(part, str))  # at once: lines may be long
            *lines, self._line = (self._line + text).split("\n")
            self._print(lines)
            for data in parts:
                if not isinstance(data, str):
                    self.end_line()
                    self._display(data)
        if "\r" in self._line and time.monotonic() - self._ended_s >= PROGRESS_EVERY_S:
            self.end_line()

    def end_line(self) -> None:
        """Show the line that has not ended."""
        line, self._line, self._ended_s = self._line, "", time.monotonic()
        if line:
            self._print([line])

    def _print(self, lines: Sequence[str]) -> None:
        last = [line.removesuffix("\r").rpartition("\r")[2] for line in lines]  # of what a progress bar has drawn over
        shown = [f"[{self._name}] {CONTROL.sub('', line)}" for line in last]
        if shown:
            print("\n".join(shown), flush=True)  # noqa: T201 - what the user's function prints

    def _display(self, data: dict[str, Any]) -> None:
        if running_kernel_shell() is None or data.keys() <= {"text/plain"}:
            self._print(shown_text(data).split("\n"))
            return
        from IPython.display import display  # there where its shell is

        self._print([""])
        display(data, raw=True)


def ask(engines: Engines, life: Life, function: Callable[..., Any], *args: Any) -> Answer:
    """Ask an engine that may be gone this moment: that is its answer then."""
    try:
        return engines.run(life.key, function, *args)
    except Exception as error:  # noqa: BLE001 - each adapter has its own
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed
