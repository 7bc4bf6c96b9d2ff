"""Libraries that are known: what each does about a selected lane."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.adapters._adapter import AdapterFactory
from gpustreamlab.adapters._numba import make_numba
from gpustreamlab.adapters._torch import NO_CUDA, make_torch
from gpustreamlab.typing import AdapterState


class Library(NamedTuple):
    """One library, and what it does about a selected lane once it is loaded."""

    name: str
    """How the table calls it."""
    module: str
    """The module that has to be loaded."""
    distributions: tuple[str, ...]
    """Packages that bring it, the usual ones first."""
    state: AdapterState
    """What it does where nothing is in the way."""
    reason: str
    """How it comes to that, in words."""


class Obstacle(NamedTuple):
    """Why a library that is installed cannot follow, as far as that is seen without importing it."""

    reason: str
    """In words."""
    fix: str
    """What to type; empty where nothing is wrong with the installation."""


KNOWN = (
    Library(
        "cupy",
        "cupy",
        ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        AdapterState.FOLLOWS,
        "its current stream is set, with its memory pool's arena",
    ),
    Library("torch", "torch", ("torch",), AdapterState.FOLLOWS, "its current stream is set"),
    Library(
        "numba-cuda",
        "numba.cuda",
        ("numba-cuda", "numba"),
        AdapterState.FOLLOWS,
        "launches and copies that name no stream go to the lane; copies still wait for their end",
    ),
    Library("triton", "triton", ("triton",), AdapterState.THROUGH_TORCH, "it launches on torch's current stream"),
    Library(
        "cuda.core",
        "cuda.core",
        ("cuda-core",),
        AdapterState.TAKES_STREAM,
        "it has no current stream: pass lane.core to launch() and the like",
    ),
    Library(
        "jax",
        "jax",
        ("jax",),
        AdapterState.CANNOT_FOLLOW,
        "it has its own streams; its work is found by lab.strays()",
    ),
    Library(
        "onnxruntime",
        "onnxruntime",
        ("onnxruntime-gpu", "onnxruntime"),
        AdapterState.TAKES_STREAM,
        "a session keeps the stream that it was made with: the CUDA provider's option user_compute_stream=str(lane.handle)",
    ),
)
"""In the order of the table."""

LAST_WITH_ROW_STACK = (0, 30, 4)
"""The newest Numba-CUDA that was seen to need names which NumPy 2.5 took out."""

BUILT_IN: Mapping[str, AdapterFactory] = MappingProxyType({"torch": make_torch, "numba.cuda": make_numba})
"""Adapters that ship, by the module that has to be loaded."""


def library_of(module: str) -> Library:
    """Return what is known of a library, by its module."""
    return next(library for library in KNOWN if library.module == module)


def obstacle_of(library: Library, version: str) -> Obstacle | None:
    """Tell why a library of this version cannot follow, or None where nothing is known to be in the way. Imports nothing."""
    if library.module == "torch" and version.endswith("+cpu"):
        return Obstacle(NO_CUDA, "")
    if library.state is AdapterState.THROUGH_TORCH and obstacle_of(library_of("torch"), installed_version("torch")):
        return Obstacle(f"it launches on torch's current stream, and torch: {AdapterState.CANNOT_FOLLOW}", "")
    if library.module == "numba.cuda" and _is_up_to(version, LAST_WITH_ROW_STACK) and not hasattr(np, "row_stack"):
        reason = f"it cannot be imported: it asks for numpy.row_stack, which NumPy {np.__version__} has not any more"
        return Obstacle(reason, "pip install 'numpy<2.5'")
    return None


def what_it_does(library: Library, version: str) -> str:
    """Say what a library does about a selected lane: the words of ``lab.adapters`` and of ``gpustreamlab doctor``."""
    obstacle = obstacle_of(library, version)
    return f"{library.state}, {library.reason}" if obstacle is None else f"{AdapterState.CANNOT_FOLLOW}, {obstacle.reason}"


def installed_version(module: str) -> str:
    """Return the version of a library, or ``""`` where it is not installed. Imports nothing."""
    loaded = sys.modules.get(module)
    known = _attribute_of(loaded, "__version__") if is_loaded(loaded) else None
    if isinstance(known, str):
        return known
    distributions = next((library.distributions for library in KNOWN if library.module == module), (module.partition(".")[0],))
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return ""


def is_loaded(module: Any) -> bool:
    """Tell whether a module of `sys.modules` is imported to its end. One that `importlib.util.LazyLoader` made is not, yet."""
    if module is None or type(module).__name__ == "_LazyModule":  # whatever it is asked for would import it
        return False
    return not _attribute_of(_attribute_of(module, "__spec__"), "_initializing")


def _attribute_of(owner: object, name: str) -> Any:
    """Return an attribute, or None where there is none or where asking for it fails: modules may have any code there."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - what a broken library raises must not stop the user's block
        return None


def _is_up_to(version: str, last: tuple[int, ...]) -> bool:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[: len(last)])
    return bool(numbers) and numbers <= last
