"""Compile scripts/cupti_callbacks.c, and write the code into gpustreamlab/backends/cuda/cupti/_native_callbacks.py.

Needs gcc and binutils for both machines (Debian: ``gcc gcc-aarch64-linux-gnu``). Usage: ``python -m scripts.cupti_callbacks``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
TARGET = Path(__file__).resolve().parents[1] / "gpustreamlab/backends/cuda/cupti/_native_callbacks.py"

TOOLS = {"x86_64": ("x86_64-linux-gnu-", "-fcf-protection=branch"), "aarch64": ("aarch64-linux-gnu-", "-mno-outline-atomics")}
"""Prefix of the tools, and a flag of its own, by machine."""
FUNCTIONS = ("request_buffer", "complete_buffer", "take_full", "free_buffer", "thread_pointer")
STATE_OFFSET = 0x10000
"""Where the state lies behind the code: pages of aarch64 may be 64 KiB large."""

BEGIN, END = "# --- generated: begin ---\n", "# --- generated: end ---\n"

_FLAGS = (
    *(
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffreestanding",
        "-fPIC",
        "-fvisibility=hidden",
        "-nostdlib",
        "-static",
    ),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-Wl,--build-id=none", "-Wl,--entry=0"),
)
_LINKER_SCRIPT = """
SECTIONS {{
    . = {base:#x}; .text : {{ *(.text*) }}
    . = {base:#x} + {offset:#x}; .bss : {{ *(.bss*) *(COMMON) }}
    /DISCARD/ : {{ *(.comment) *(.note*) *(.eh_frame*) }}
}}
"""


def compiler_of(machine: str) -> str:
    """Return the compiler's own name and version."""
    return _run(TOOLS[machine][0] + "gcc", "--version").splitlines()[0]


def source_digest() -> str:
    """Return the SHA-256 of the C source."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def build(machine: str) -> tuple[bytes, dict[str, int]]:
    """Compile for a machine; return the code and where each function begins in it.

    Raises
    ------
    ValueError
        If the code does not work wherever it is put.
    """
    at_zero, elsewhere = (_link(machine, base) for base in (0, 0x7_5000_1000))
    if at_zero != elsewhere:
        raise ValueError(f"The code for {machine} depends on where it lies: make all that it reaches hidden and in `state`.")
    return at_zero


def render(built: dict[str, tuple[bytes, dict[str, int]]]) -> str:
    """Return the generated part of the module."""
    lines = [f'SOURCE_SHA256 = "{source_digest()}"', f"STATE_OFFSET = {STATE_OFFSET:#x}", "CODE = {"]
    for machine, (code, offsets) in built.items():
        lines += [
            f'"{machine}": NativeCode(',
            f'compiler="{compiler_of(machine)}",',
            f"offsets={offsets},",
            "code=bytes.fromhex(",
        ]
        lines += [f'"{code[start : start + 48].hex()}"' for start in range(0, len(code), 48)]
        lines += [")),"]
    return "\n".join([*lines, "}", ""])


def main() -> int:
    """Write the code of every machine."""
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = render({machine: build(machine) for machine in TOOLS})
    TARGET.write_text("".join([before, BEGIN, text, END, after]), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)
    return 0


def _link(machine: str, base: int) -> tuple[bytes, dict[str, int]]:
    prefix, own_flag = TOOLS[machine]
    with tempfile.TemporaryDirectory() as folder:
        script, program, raw = (Path(folder, name) for name in ("link.ld", "program", "code"))
        script.write_text(_LINKER_SCRIPT.format(base=base, offset=STATE_OFFSET), encoding="utf-8")
        _run(prefix + "gcc", *_FLAGS, own_flag, f"-Wl,-T,{script}", "-o", program, SOURCE)
        sections = _run(prefix + "readelf", "--sections", "--wide", program)
        others = [line for line in sections.splitlines() if ("PROGBITS" in line or "RELA" in line) and " .text " not in line]
        if others:
            raise ValueError(f"The code for {machine} is not all in .text: {others}")
        _run(prefix + "objcopy", "-O", "binary", "--only-section=.text", program, raw)
        symbols = [line.split() for line in _run(prefix + "nm", program).splitlines()]
        places = {name: int(place, 16) - base for place, _, name in symbols}
        if places["state"] != STATE_OFFSET:
            raise ValueError(f"The state of {machine} lies at {places['state']:#x}, not at {STATE_OFFSET:#x}.")
        return raw.read_bytes(), {name: places[name] for name in FUNCTIONS}


def _run(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
