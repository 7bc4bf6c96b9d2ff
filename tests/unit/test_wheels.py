"""Wheels: one for each processor with CUPTI's callbacks compiled, and a pure one; each installs into an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from gpustreamlab.backends.cuda.cupti._buffers import COMPILERS

ROOT = Path(__file__).parents[2]
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
PRINT_LIBRARY = "from gpustreamlab.backends.cuda.cupti._buffers import find_library; print(find_library())"


PIP = [sys.executable, "-m", "pip"]
PROCESSORS = ("x86_64", "aarch64", "")
BUILD = f"""
import os, subprocess, sys
from hatchling.build import build_wheel, get_requires_for_build_wheel
os.environ["GPUSTREAMLAB_WHEEL"] = "aarch64"
subprocess.run([*sys.argv[2:], *get_requires_for_build_wheel()], check=True)
for processor in {PROCESSORS}:
    os.environ["GPUSTREAMLAB_WHEEL"] = processor
    print(build_wheel(sys.argv[1]))
"""
"""Asks what a wheel needs, installs it, and builds one for each processor: as pip does, but in one process."""


@pytest.fixture
def wheels(tmp_path_factory):
    """Return the wheel of each processor, made as `make wheel` does, with what builds it and nothing else."""
    tools, folder = tmp_path_factory.mktemp("tools"), tmp_path_factory.mktemp("wheels")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    install = [*PIP, "install", "--quiet", "--no-compile", "--target", str(tools)]
    subprocess.run([*install, *needed], check=True)
    environment = os.environ | {"PYTHONPATH": str(tools)}
    command = [sys.executable, "-c", BUILD, folder, *install]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    names = [line for line in done.stdout.splitlines() if line.endswith(".whl")]
    return {processor: folder / name for processor, name in zip(PROCESSORS, names, strict=True)}


# One test of all: two workers would each install the compiler, which is 100 MB.
def test_wheels_hold_what_their_names_say_and_install_into_an_empty_environment(wheels, tmp_path):
    for processor, path in wheels.items():
        check_contents(processor, path)
        if processor == os.uname().machine or (not processor and any(map(shutil.which, COMPILERS))):
            check_installed(processor, path, tmp_path / f"of {processor}")


def check_contents(processor, path):
    """Look for the library, and what it needs."""
    assert path.name.endswith(f"-py3-none-manylinux_2_17_{processor}.whl" if processor else "-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        assert len(libraries) == bool(processor)
        for name in libraries:
            data = archive.read(name)
            assert data[:4] == b"\x7fELF"
            assert int.from_bytes(data[18:20], "little") == MACHINES[processor]
            needed = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)", data)}
            assert max(needed) <= (2, 17)


def check_installed(processor, path, folder):
    """Install a wheel, and let it find its library: its own, or one that is compiled then."""
    python = folder / "empty/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    subprocess.run([*PIP, "--python", python, "install", "--quiet", "--no-deps", "--no-index", path], check=True)
    # What the package depends on is lent from this environment: the wheel is what is tried.
    lent = next(entry for entry in sys.path if entry.endswith("site-packages"))
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PATH": "/nowhere" if processor else os.environ["PATH"],
    }
    code = f"import sys; sys.path.append({lent!r}); {PRINT_LIBRARY}"
    done = subprocess.run([python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(folder / ("empty" if processor else "cache"))
