"""Put what CUPTI calls (callbacks.c, inject.c), compiled, into the wheel, so that nothing is compiled where it is installed.

GPUSTREAMLAB_WHEEL=x86_64 or aarch64 makes the wheel of that processor for Linux with glibc 2.17 or newer, on any machine, with
the compiler of the package ziglang. Without it, a wheel is pure: what it holds is compiled when kernels are first captured. An
editable install compiles beside the source if there is a compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = tuple(f"gpustreamlab/backends/cuda/cupti/{name}" for name in ("callbacks.c", "inject.c"))
# As gpustreamlab/backends/cuda/cupti/_buffers.py has flags, names and compilers: a build cannot import the package.
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic")
GLIBC = "2.17"
PROCESSORS = ("x86_64", "aarch64")


class CallbacksHook(BuildHookInterface[Any]):
    """Compiles them for the wheel that is asked for."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for a compiler where one wheel for a processor is made; it is 100 MB."""
        return ["ziglang>=0.13"] if self._processor else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what the wheel fits."""
        sources = [Path(self.root, source) for source in SOURCES]
        processor = self._processor
        if processor and version == "standard":
            command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{processor}-linux-gnu.{GLIBC}", "-s"]
            library = Path(self.directory, f"callbacks-{processor}.so")
            library.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([*command, *FLAGS, "-o", library, *sources, "-ldl"], check=True)
            build_data["force_include"][str(library)] = str(Path(SOURCES[0]).with_name(library_name(sources, processor)))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{processor}"
        elif version == "editable" and sys.platform == "linux" and (compiler := _find_compiler()):
            library = sources[0].with_name(library_name(sources, platform.machine()))
            built = [compiler, *FLAGS, "-o", library, *sources, "-ldl"]
            subprocess.run(built, check=False)  # else it is tried again at first use

    @property
    def _processor(self) -> str:
        asked = os.environ.get("GPUSTREAMLAB_WHEEL", "")
        if asked and asked not in PROCESSORS:
            raise ValueError(f"GPUSTREAMLAB_WHEEL is {asked!r}; it must be one of {PROCESSORS}, or not set for a pure wheel.")
        return asked if self.target_name == "wheel" else ""


def library_name(sources: list[Path], processor: str) -> str:
    """Return the name under which the package looks for its compiled callbacks: one of another source is never loaded."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return f"callbacks-{digest}-{processor}.so"


def _find_compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
