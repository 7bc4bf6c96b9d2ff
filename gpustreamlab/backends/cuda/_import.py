"""The optional CUDA packages are imported here, and nowhere else."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from gpustreamlab import installs
from gpustreamlab.backends.cuda._libcuda import cuda_extra, cupti_extra, read_driver
from gpustreamlab.errors import MissingExtraError


def import_cupy() -> Any:
    """Import CuPy.

    Raises
    ------
    MissingExtraError
        If it is not installed or cannot be imported; the message holds the line to type.
    """
    return _import("cupy", "CuPy")


def import_cuda_core() -> Any:
    """Import cuda.core, which needs cuda.bindings beside it.

    Raises
    ------
    MissingExtraError
        If one of the two is not installed or cannot be imported; the message holds the line to type.
    """
    return _import("cuda.core", "cuda.core")


def import_nvtx() -> Any:
    """Import nvtx.

    Raises
    ------
    MissingExtraError
        If it is not installed or cannot be imported; the message holds the line to type.
    """
    return _import("nvtx", "nvtx")


def bindings_version() -> tuple[int, int] | None:
    """Return the CUDA version that the installed cuda.bindings are for, or None where there are none."""
    try:
        major, minor, *_ = importlib.metadata.version("cuda-bindings").split(".")
        return int(major), int(minor)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def install_line() -> str:
    """Return what to type to install the CUDA packages that suit this machine's driver."""
    return install_line_for(read_driver().version)


def install_line_for(version: tuple[int, int] | None) -> str:
    """Return what to type to install the CUDA packages that suit a driver.

    Parameters
    ----------
    version
        The CUDA version that the driver supports, or None where there is no driver; then it is the newest extra's line.

    Examples
    --------
    >>> "[cuda12]" in install_line_for((12, 6))
    True
    """
    return installs.install_line(cuda_extra(version) or "cuda13")


def cupti_line() -> str:
    """Return what to type to install the CUPTI that suits this machine's driver."""
    return cupti_line_for(read_driver().version)


def cupti_line_for(version: tuple[int, int] | None) -> str:
    """Return what to type to install the CUPTI that suits a driver.

    Parameters
    ----------
    version
        The CUDA version that the driver supports, or None where there is no driver; then it is the newest extra's line.

    Examples
    --------
    >>> "[cupti12]" in cupti_line_for((12, 6))
    True
    """
    return installs.install_line(cupti_extra(version))


def exact_cupti_line() -> str:
    """Return what to type to install the CUPTI of exactly this driver's CUDA version."""
    version = read_driver().version
    if version is None:
        return cupti_line_for(version)
    package = "nvidia-cuda-cupti-cu12" if version[0] == 12 else "nvidia-cuda-cupti"
    return f"pip install '{package}=={version[0]}.{version[1]}.*'"


def _import(module: str, title: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{title} cannot be imported ({error}). The CUDA backend needs it; install it with: {install_line()}", name=module
        ) from error
