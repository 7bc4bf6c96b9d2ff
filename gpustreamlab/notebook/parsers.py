"""What the magics take: their options, and what is said about a wrong one."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from IPython.core.error import UsageError

from gpustreamlab.backends import BACKEND_NAMES
from gpustreamlab.errors import nearest_hint
from gpustreamlab.recorder.capture import AUTO
from gpustreamlab.typing import CaptureTier, Rounding

__all__ = ["PARSERS", "MagicParser", "complete"]

_TIERS = (*(tier.value for tier in CaptureTier), AUTO)


class MagicParser(argparse.ArgumentParser):
    """An argument parser that answers misuse with one line and the nearest valid choice."""

    advice = "Put quotes around text with spaces."  # What to do about a word too many

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse(self, line: str) -> argparse.Namespace | None:
        """Return the arguments, or None if help was asked for and shown."""
        try:
            words = _joined(shlex.split(line))
        except ValueError as error:
            self.error(f"{error} in {line!r}; close the quotes")
        if {"-h", "--help"} & set(words):
            self.print_help()
            return None
        arguments, left = self.parse_known_intermixed_args(words)  # options may stand between names
        if left:
            advice = self.hint(left[0]) if left[0].startswith("-") else self.advice
            self.error(f"there is no option or argument {left[0]!r}. {advice}")
        return arguments

    @property
    def options(self) -> list[str]:
        """Every option, long form."""
        return [option for action in self._actions for option in action.option_strings if option.startswith("--")]

    def next_up(self, words: Sequence[str]) -> tuple[str, list[str]]:
        """Return what kind of name may come behind these words, and what else may: choices, options."""
        positional = [action for action in self._actions if not action.option_strings]
        taking: argparse.Action | None = None
        for word in words:
            if taking is not None:
                taking = None
            elif word.startswith("-"):
                taking = next((one for one in self._actions if word in one.option_strings and one.nargs != 0), None)
            elif positional and positional[0].nargs not in {"*", "+"}:
                del positional[0]
        options = [] if taking is not None else [option for option in self.options if option not in words]
        up = taking or (positional[0] if positional else None)
        if up is None:
            return "", options
        return _KINDS.get(up.dest, str(up.metavar).partition("[")[0]), [*(up.choices or ()), *options]

    def hint(self, wrong: str) -> str:
        """Name the option nearest to a wrong one."""
        return nearest_hint(wrong.partition("=")[0], self.options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the choice nearest to a wrong one."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {nearest_hint(str(value), action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Raise IPython's own `UsageError`, which shows as one line."""
        raise UsageError(f"{self.prog}: {message} (see {self.prog} -h)")


def _joined(words: list[str]) -> list[str]:
    """Return words with lists in one word each: ``0, 2`` means ``0,2``."""
    found: list[str] = []
    for word in words:
        if found and (word.startswith(",") or (found[-1].endswith(",") and not word.startswith("-"))):
            found[-1] += word
        else:
            found.append(word)
    return found


_KINDS = dict.fromkeys(("stream", "first", "second"), "STREAM") | {"partition": "PARTITION", "shares": "PARTITION="}
"""What the names are of that arguments take, where that is not what they are called in help: ``STREAM[,STREAM]``."""


def complete(line: str, names: Mapping[str, Sequence[str]]) -> tuple[str, list[str]]:
    """Return what is typed of a line's last word, and what it may become, of the names by their kind, such as ``STREAM``."""
    magic, *words = re.split(r"\s+", line.lstrip())
    make = PARSERS.get(magic.lstrip("%"))
    if make is None or not words:
        return "", []
    typed = words.pop()
    if typed.startswith("--") and "=" in typed:
        option, _, typed = typed.partition("=")
        words.append(option)
    kind, others = make().next_up(words)
    typed = typed.rpartition(",")[2]
    there = [f"{name}=" for name in names["PARTITION"]] if kind == "PARTITION=" else names.get(kind, ())
    return typed, [name for name in (*there, *others) if name.startswith(typed)]


def gpulab_parser() -> MagicParser:
    """Return the parser of `%gpulab`."""
    parser = MagicParser("%gpulab", "Start, show or close the session.")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("start", "show", "status", "use", "auto", "close", "stop"),
        help="default: show the session, or start one if there is none; use: let the magics work on the one in --as; "
        "auto: run each cell on a stream chosen for it, from the next one on; status, stop: the same as show, close",
    )
    parser.add_argument("--backend", choices=BACKEND_NAMES, help="default: the GPU if there is one, else the simulated device")
    parser.add_argument("--device", type=int, default=0, help="CUDA device number (default: 0)")
    parser.add_argument(
        "--capture",
        choices=_TIERS,
        default=AUTO,
        help="ranges: named ranges only, at less cost; kernels: every kernel too; auto, the default: kernels where that works",
    )
    parser.add_argument("--no-host", action="store_true", help="leave out the calls of the host that enqueue the kernels")
    parser.add_argument("--as", dest="variable", help="variable of the session (default: lab)")
    parser.add_argument("--auto", action="store_true", help="start, then the same as auto")
    parser.add_argument(
        "--streams", type=int, metavar="N", help="over how many streams cells are spread, at most 32 (default: 4)"
    )
    parser.add_argument("--off", action="store_true", help="with auto: let cells run as they are again")
    parser.advice = "Options are words with dashes: %gpulab start --backend sim, %gpulab auto --off, %gpulab use --as lab2"
    return parser


def gpustream_parser() -> MagicParser:
    """Return the parser of `%%gpustream`."""
    parser = MagicParser("%%gpustream", "Run the cell with a stream selected, as one named range.")
    parser.advice = "Names of streams have no spaces; put quotes around a label that has."
    parser.add_argument("stream", help="name of the stream; made on first use")
    parser.add_argument("--priority", type=int, help="CUDA priority for a new stream: lower runs first (default: 0)")
    parser.add_argument("--partition", help="partition in which the stream works; it moves there if it is elsewhere")
    parser.add_argument("--whole-card", action="store_true", help="move the stream out of its partition")
    parser.add_argument("--device", type=int, metavar="N", help="GPU of a node for a new stream (default: its first)")
    parser.add_argument("--on", metavar="ENGINE[,ENGINE]", help="run the cell on these engines of a cluster, or on all")
    parser.add_argument("--after", default="", metavar="STREAM[,STREAM]", help="wait for what these streams hold now")
    parser.add_argument("--label", help="name of the range (default: the cell's number)")
    parser.add_argument("--sync", action="store_true", help="wait for the stream's work when the cell has run")
    parser.add_argument("--kernels", action="store_true", help="--sync, and capture kernels and host calls while it runs")
    parser.add_argument("--counters", action="store_true", help="--sync, and count each 50 us how busy the card is meanwhile")
    parser.add_argument("--show", action="store_true", help="--sync, then show what ran in this cell below it")
    return parser


def gpuprogram_parser() -> MagicParser:
    """Return the parser of `%%gpuprogram`."""
    parser = MagicParser("%%gpuprogram", "Run the cell in order the first time, then on streams, by what the first run showed.")
    parser.advice = "Streams are named by --on: %%gpuprogram --on copy,compute"
    parser.add_argument("--streams", type=int, metavar="N", help="how many streams to use at most (default: 2)")
    parser.add_argument("--on", metavar="STREAM[,STREAM]", help="the streams to use, made on first use")
    parser.add_argument("--plan", action="store_true", help="show the plan of the runs before, and run nothing")
    parser.add_argument(
        "--check", action="store_true", help="compare with one stream, bit for bit; run it as planned only if it is equal"
    )
    parser.add_argument("--replay", type=int, metavar="N", help="measure it N times: one stream, planned, one CUDA graph")
    parser.add_argument(
        "--improve",
        type=float,
        nargs="?",
        const=30.0,
        metavar="SECONDS",
        help="change the cell by machine, for so long (30 if left out), and show what gains; it runs on copies only",
    )
    return parser


def gpurecord_parser() -> MagicParser:
    """Return the parser of `%%gpurecord`."""
    parser = MagicParser("%%gpurecord", "Run the cell as it is, with no stream selected, and show what it did on the GPU.")
    parser.advice = "What it takes are options: %%gpurecord --explain --save run.html"
    parser.add_argument("--stacks", action="store_true", help="sample the Python stacks of threads that launch, up to 200 Hz")
    parser.add_argument("--explain", action="store_true", help="say below the timeline why work did not overlap")
    parser.add_argument("--save", metavar="FILE", help="write the timeline to a .html, .svg or .png file, too")
    return parser


def gpucapture_parser() -> MagicParser:
    """Return the parser of `%gpucapture`."""
    parser = MagicParser("%gpucapture", "Choose how much is captured: ranges, kernels, calls of the host. Alone it tells.")
    parser.add_argument(
        "tier",
        nargs="?",
        choices=_TIERS,
        help="auto: kernels where that works, else ranges",
    )
    parser.add_argument("--no-host", action="store_true", help="leave out the calls of the host that enqueued the kernels")
    parser.add_argument("--stacks", action="store_true", help="sample the Python stacks of threads that launch, up to 200 Hz")
    return parser


def gpupartition_parser() -> MagicParser:
    """Return the parser of `%gpupartition`."""
    parser = MagicParser("%gpupartition", "Share out the SMs, or show how they are.")
    parser.add_argument("shares", nargs="*", metavar="NAME=SMS", help="SMs (96), a share (25%% or 0.25), or rest")
    parser.add_argument(
        "--round",
        choices=[rule.value for rule in Rounding],
        default=Rounding.UP.value,
        help="where the device cannot grant that count (default: up)",
    )
    parser.add_argument("--strict", action="store_true", help="an error instead of a warning where the device lacks something")
    parser.add_argument("--off", action="store_true", help="go back to the whole card")
    return parser


def gputimeline_parser() -> MagicParser:
    """Return the parser of `%gputimeline`."""
    parser = MagicParser("%gputimeline", "Show the timeline of what ran so far; in a notebook it goes on growing.")
    parser.add_argument("--save", metavar="FILE", help="write it to a .html, .svg or .png file instead")
    parser.add_argument("--static", action="store_true", help="a picture of now, which does not grow")
    return parser


def gpugraph_parser() -> MagicParser:
    """Return the parser of `%gpugraph`."""
    return MagicParser(
        "%gpugraph", "Show the cells as a graph: streams, times, what they read of each other, what is out of date."
    )


def gpuexplain_parser() -> MagicParser:
    """Return the parser of `%gpuexplain`."""
    parser = MagicParser("%gpuexplain", "Say why work did not overlap, and what to change.")
    parser.add_argument(
        "first", nargs="?", help="a stream, the name of a range or kernel, or a row of the trace (default: all)"
    )
    parser.add_argument("second", nargs="?", help="what it should have overlapped with (default: all others)")
    return parser


def gputune_parser() -> MagicParser:
    """Return the parser of `%gputune`."""
    parser = MagicParser("%gputune", "Find the split of the SMs that serves functions best, by measuring.")
    parser.add_argument("functions", nargs="+", metavar="FUNCTION", help="two or more functions without arguments")
    parser.add_argument("--objective", choices=("throughput", "makespan"), default="throughput", help="what to seek")
    parser.add_argument("--constraint", help="what has to hold, without spaces: decode.p95<2ms, decode.slowdown<1.5")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="measure no more candidates after so many seconds")
    parser.add_argument("--apply", action="store_true", help="share out the SMs like the best candidate")
    return parser


PARSERS: dict[str, Callable[[], MagicParser]] = {
    "gpucapture": gpucapture_parser,
    "gpugraph": gpugraph_parser,
    "gpulab": gpulab_parser,
    "gpupartition": gpupartition_parser,
    "gpuprogram": gpuprogram_parser,
    "gpurecord": gpurecord_parser,
    "gpustream": gpustream_parser,
    "gputimeline": gputimeline_parser,
    "gpuexplain": gpuexplain_parser,
    "gputune": gputune_parser,
}
