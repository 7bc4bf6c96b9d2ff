"""Write the tables of gpustreamlab/backends/cuda/cupti/_layouts.py from CUPTI's own headers.

For each version a small C program prints the size of the newest struct of each record kind and the place of each field that is
read. Usage: ``python -m scripts.cupti_layouts --cuda CUDA_INCLUDE HEADERS...``, where each of HEADERS is a folder (at any depth
below it one ``cupti_activity.h``), for example an unpacked ``nvidia-cuda-cupti`` wheel. Give all versions at once.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from gpustreamlab.backends.cuda.cupti import _layouts as constants

TARGET = Path(__file__).resolve().parents[1] / "gpustreamlab/backends/cuda/cupti/_layouts.py"

_COPY = "copyKind srcKind dstKind bytes start end deviceId contextId streamId correlationId graphId graphNodeId"
_API = "cbid start end threadId correlationId"
FIELDS = {
    1: _COPY,
    2: "bytes start end deviceId contextId streamId correlationId graphId graphNodeId value",
    4: _API,
    5: _API,
    9: "contextId nullStreamId isGreenContext numMultiprocessors",
    10: (
        "start end deviceId contextId streamId gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory "
        "registersPerThread launchType correlationId name graphId graphNodeId channelID"
    ),
    12: "flags timestamp id objectId.pt.threadId name domain",
    17: "overheadKind objectKind objectId.pt.threadId start end correlationId",
    22: f"{_COPY} srcDeviceId dstDeviceId",
    36: "correlationId contextId streamId eventId",
    37: "contextId streamId priority flag",
    38: "type correlationId contextId streamId cudaEventId",
    49: "memoryOperationType correlationId address bytes timestamp deviceId contextId streamId isAsync",
    51: "correlationId start end deviceId graphId contextId streamId",
    59: "contextId numMultiprocessors",
}
"""The fields to read of each record kind. A dotted path takes the last part as its name."""

STEPPED_OVER = (3, 8, 11, 13, 39, 48, 50, 53, 56, 58)
"""Other kinds that a profiler may leave on; what is further is never on together with ours, so its size need not be known."""

PREFIXES: dict[str, type[IntEnum] | type[constants.MarkerFlag]] = {
    "CUPTI_ACTIVITY_KIND_": constants.RecordKind,
    "CUPTI_ACTIVITY_MEMCPY_KIND_": constants.CopyKind,
    "CUPTI_ACTIVITY_MEMORY_KIND_": constants.MemoryKind,
    "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_": constants.SynchronizationKind,
    "CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_": constants.MemoryOperation,
    "CUPTI_ACTIVITY_FLAG_MARKER_": constants.MarkerFlag,
    "CUPTI_ACTIVITY_OVERHEAD_": constants.OverheadKind,
    "CUPTI_ACTIVITY_STREAM_CREATE_FLAG_": constants.StreamFlag,
    "CUPTI_CB_DOMAIN_": constants.CallbackDomain,
}
"""What the headers put before the names of each enumeration, to compare the constants with every version."""

SIGNED = {"start", "end", "timestamp", "bytes"}
"""Times in ns and sizes in bytes, read as int64: the house's type, with differences that cannot wrap."""

BEGIN, END = "# --- generated: begin ---\n", "# --- generated: end ---\n"


@dataclass(frozen=True)
class Headers:
    """One version's headers."""

    folder: Path
    text: str

    def struct_of(self, comment: str) -> str | None:
        """Name the newest struct of the kind that a comment is about, without its prefix."""
        named = re.findall(r"CUpti_Activity(\w+?)\d*\b", comment)
        if not named:
            return None
        family = named[-1]
        numbers = re.findall(rf"^}} CUpti_Activity{family}(\d*);", self.text, re.MULTILINE)
        return f"{family}{max(numbers, key=lambda number: int(number or 1))}" if numbers else None

    def structs(self) -> dict[int, str]:
        """Name the struct of each kind that has one."""
        body = re.search(r"typedef enum \{((?:(?!typedef enum).)*?)\} CUpti_ActivityKind;", self.text, re.DOTALL)
        if body is None:
            raise ValueError(f"{self.folder}/cupti_activity.h has no CUpti_ActivityKind: give a folder of CUPTI's headers")
        found, kind = {}, -1
        for comment, name, number in re.findall(
            r"/\*\*(.*?)\*/\s*CUPTI_ACTIVITY_KIND_(\w+)\s*(?:=\s*(\w+))?", body[1], re.DOTALL
        ):
            if name in {"COUNT", "FORCE_INT"}:
                break
            kind = int(number) if number else kind + 1
            struct = self.struct_of(comment) if kind in FIELDS or kind in STEPPED_OVER else None
            if struct is not None:
                found[kind] = struct
        return found

    def has(self, struct: str, path: str) -> bool:
        """Tell whether a struct has a field, by its text."""
        end = self.text.index(f"}} CUpti_Activity{struct};")
        body = self.text[self.text.rindex("\ntypedef struct", 0, end) : end]
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        return re.search(rf"\b{path.split('.')[0]}(\[\d+\])?;", body) is not None

    def assertions(self) -> list[str]:
        """Write what fails to compile where a constant differs from this version's header."""
        text = self.text + (self.folder / "cupti_callbacks.h").read_text(encoding="utf-8", errors="replace")
        known = set(re.findall(r"\bCUPTI_\w+", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
        names = [(f"{prefix}{member.name}", member.value) for prefix, members in PREFIXES.items() for member in members]
        return [f'_Static_assert({name} == {value}, "{name}");' for name, value in names if name in known]

    def program(self, structs: dict[int, str]) -> str:
        """Write the C program."""
        lines = [*self.assertions(), 'printf("0 %d\\n", (int)CUPTI_API_VERSION);']
        for kind, struct in structs.items():
            name = f"CUpti_Activity{struct}"
            lines.append(f'printf("{kind} %zu\\n", sizeof({name}));')
            lines += [
                f'printf("  {path.split(".")[-1]} %zu %zu %s\\n", offsetof({name}, {path}), sizeof((({name} *)0)->{path}), '
                f"FORMAT((({name} *)0)->{path}));"
                for path in FIELDS.get(kind, "").split()
                if self.has(struct, path)
            ]
        return _C_HEAD + "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"


_C_HEAD = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cupti_version.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#define FORMAT(x) _Generic((x), uint8_t: "u", uint16_t: "u", uint32_t: "u", uint64_t: "u", int32_t: "i", int64_t: "i", \\
    const char *: "u", default: "?")
"""

Struct = tuple[int, str]
"""Size, and the fields as text."""


def measure(headers: Headers, cuda: Path) -> tuple[int, dict[int, Struct]]:
    """Compile and run the program; return the version, and the struct of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "layouts.c"), Path(folder, "layouts")
        source.write_text(headers.program(headers.structs()), encoding="utf-8")
        subprocess.run(["gcc", f"-I{headers.folder}", f"-I{cuda}", "-w", str(source), "-o", str(program)], check=True)
        lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    structs: dict[int, Struct] = {}
    kind = 0
    for line in lines:
        if not line.startswith(" "):
            kind, size = map(int, line.split())
            structs[kind] = (size, "")
        else:
            structs[kind] = (structs[kind][0], f"{structs[kind][1]} {_field(*line.split())}".strip())
    version, _ = structs.pop(0)
    return version, structs


def _field(name: str, offset: str, size: str, sign: str) -> str:
    if sign == "?":
        raise ValueError(f"field {name} has a type that is not known: add it to FORMAT")
    return f"{name}:{'i' if name in SIGNED else sign}{size}@{offset}"


def render(measured: Iterable[tuple[int, dict[int, Struct]]]) -> str:
    """Write the generated part of the module, from the results of `measure`."""
    versions: dict[int, dict[int, Struct]] = {}
    sizes: dict[int, list[tuple[int, int]]] = {}
    fields: dict[int, list[tuple[int, str]]] = {}
    for version, structs in sorted(measured, key=lambda item: item[0]):
        if versions.setdefault(version, structs) != structs:
            raise ValueError(f"two folders of headers say version {version} and have other structs")
        for kind, (size, text) in structs.items():
            _note_change(sizes.setdefault(kind, []), version, size)
            if kind in FIELDS:
                _note_change(fields.setdefault(kind, []), version, text)
    return "\n".join([*_version_lines(versions), *_size_lines(sizes), *_field_lines(fields), ""])


def _note_change(history: list[tuple[int, Any]], version: int, value: object) -> None:
    if not history or history[-1][1] != value:
        history.append((version, value))


def _version_lines(versions: Iterable[int]) -> list[str]:
    before_13 = [version for version in versions if version < 130_000]
    after = [version for version in versions if version >= 130_000]
    return [
        "VERSIONS = (",
        f"    *({', '.join(map(str, before_13))}),",
        f"    *({', '.join(map(str, after))}),",
        ")",
        '"""The versions whose headers were read: 18 is CUDA 12.0 and 12.1, 28 is 12.9 update 1, 130001 is 13.0 update 1."""',
        "",
    ]


def _size_lines(sizes: dict[int, list[tuple[int, int]]]) -> list[str]:
    lines = ["_SIZES: dict[int, str] = {"]
    for kind, history in sorted(sizes.items()):
        lines.append(f'    {kind}: "{" ".join(f"{since}:{size}" for since, size in history)}",')
    return [*lines, "}", '"""Size in bytes of the records of each kind, as ``first version:size``."""', ""]


def _field_lines(fields: dict[int, list[tuple[int, str]]]) -> list[str]:
    lines = ["_FIELDS: dict[int, dict[int, str]] = {"]
    for kind, history in sorted(fields.items()):
        lines.append(f"    {kind}: {{")
        for since, text in history:
            lines += [f"        {since}: (", *(f'            "{line} "' for line in textwrap.wrap(text, 108)), "        ),"]
        lines.append("    },")
    return [*lines, "}", '"""The fields that are read, as ``name:format@offset``, by kind and first version."""']


def main(argv: list[str] | None = None) -> int:
    """Measure every folder and write the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="+", type=Path, help="folders with one cupti_activity.h below each")
    parser.add_argument("--cuda", type=Path, required=True, help="the folder with cuda.h; any version will do")
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args(argv)
    measured = []
    for folder in args.headers:
        path = next(folder.rglob("cupti_activity.h"), None)
        if path is None:
            parser.error(f"{folder} has no cupti_activity.h below it: unpack a nvidia-cuda-cupti wheel there")
        measured.append(measure(Headers(path.parent, path.read_text(encoding="utf-8", errors="replace")), args.cuda))
    before, _, rest = args.target.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    args.target.write_text("".join([before, BEGIN, render(measured), END, after]), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(args.target)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
