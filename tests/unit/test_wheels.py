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
ASK = "from hatchling.build import get_requires_for_build_wheel; print(*get_requires_for_build_wheel(), sep='\\n')"


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """Return a folder with what builds a wheel, and nothing else: as pip finds out, but once for all of them."""
    folder = tmp_path_factory.mktemp("tools")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    subprocess.run([*PIP, "install", "--quiet", "--target", folder, *needed], check=True)
    environment = os.environ | {"PYTHONPATH": str(folder), "GPUSTREAMLAB_WHEEL": "aarch64"}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    subprocess.run([*PIP, "install", "--quiet", "--target", folder, *done.stdout.split()], check=True)
    return folder


@pytest.fixture(scope="module", params=["x86_64", "aarch64", ""], ids=lambda processor: processor or "pure")
def wheel(request, tools, tmp_path_factory):
    """Return a processor and its wheel, made as `make wheel` does."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    environment = os.environ | {"PYTHONPATH": str(tools), "GPUSTREAMLAB_WHEEL": request.param}
    subprocess.run(command, check=True, env=environment)
    return request.param, next(folder.glob("*.whl"))


def test_a_wheel_holds_what_its_name_says_and_installs_into_an_empty_environment(wheel, tmp_path):
    processor, path = wheel
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
    if processor not in {os.uname().machine, ""} or (not processor and not any(map(shutil.which, COMPILERS))):
        return  # it cannot run here
    python = tmp_path / "empty/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", path]
    subprocess.run(install, check=True)
    # What the package depends on is lent from this environment: the wheel is what is tried.
    lent = next(entry for entry in sys.path if entry.endswith("site-packages"))
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": "/nowhere" if processor else os.environ["PATH"],
    }
    code = f"import sys; sys.path.append({lent!r}); {PRINT_LIBRARY}"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / ("empty" if processor else "cache"))
