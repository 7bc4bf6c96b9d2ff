"""What is written behind a program: ten lines on stderr, a page and a trace for each that was recorded."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpustreamlab.errors import OptionError
from gpustreamlab.exchange import find_writer
from gpustreamlab.model import is_bare_page
from gpustreamlab.run._told import told_lines
from gpustreamlab.trace import Trace


def write_traces(traces: Sequence[Trace], program: str, page: Path, output: Path | None, *, part: str, is_quiet: bool) -> None:
    """Say what happened in each trace, and write its files; `part` is what each is one of, where there are several."""
    for place, trace in enumerate(traces):
        head = f"{program}{f', {part} {place + 1} of {len(traces)}' if len(traces) > 1 else ''}"
        lines = told_lines(trace)
        if not len(trace):
            say(f"gpustreamlab: {head}: {lines[0]}")
            continue
        files = write_files(trace, numbered(page, place), None if output is None else numbered(output, place))
        if not is_quiet:
            say("\n".join([f"gpustreamlab: {head}: {lines[0]}", *(f"  {line}" for line in [*lines[1:], files])]))


def write_files(trace: Trace, page: Path, output: Path | None) -> str:
    """Write a page, and a trace if that is wanted; return where they are."""
    trace.timeline().save(page)
    if output is None:
        return f"Timeline: {shown(page)}"
    trace.save(output)
    return f"Timeline: {shown(page)}; trace: {shown(output)}"


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is written, and of what is said."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write the trace, too: run.parquet, run.json, run.pftrace, ...")
    parser.add_argument("--page", metavar="NAME.html", help="the page; by default the program's name, in this folder")
    parser.add_argument("--force", action="store_true", help="replace these files where they exist")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but what went wrong")


def chosen_files(options: argparse.Namespace, name: str, of_rank: str = "") -> tuple[Path, Path | None]:
    """Return where the page goes, and the trace if that is wanted: as paths that stay where a program goes elsewhere."""
    page = _marked(Path(options.page or f"{name}.html").absolute(), of_rank)
    output = None if options.output is None else _marked(Path(options.output).absolute(), of_rank)
    if page.suffix.lower() != ".html":
        raise OptionError(f"The page is {page.name!r}; it has to end in .html. For the data: -o run.parquet")
    if output is not None:
        find_writer(output)  # refuses before anything has run
    for path in (page, output):
        if path is None or options.force or not path.exists():
            continue
        if path == output or not is_bare_page(path):
            raise OptionError(f"{shown(path)!r} is there already. Replace it with --force, or name another one.")
    return page, output


def numbered(path: Path, place: int) -> Path:
    """Return where the files of a further session go."""
    return path if place == 0 else _marked(path, f"-{place + 1}")


def _marked(path: Path, mark: str) -> Path:
    """Return a path with a mark in front of what says its format, which may be two suffixes: ``.json.gz``."""
    form = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:])
    return path.with_name(f"{path.name.removesuffix(form)}{mark}{form}")


def shown(path: Path) -> str:
    """Return a path as it is typed from here, where that is shorter."""
    with suppress(OSError, ValueError):
        return min(os.path.relpath(path), str(path), key=len)
    return str(path)


def say(text: str) -> None:
    """Print to the stderr that the process began with."""
    stream = sys.__stderr__
    with suppress(Exception):
        if stream is not None and not stream.closed:
            stream.write(f"{text}\n")
            stream.flush()
