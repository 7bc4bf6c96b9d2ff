"""Python imports this as it starts, in each process that a program under ``gpustreamlab run --children`` starts.

Nothing of gpustreamlab is imported before the process uses CUDA, and nothing that goes wrong here disturbs it.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
_MODULES = ("torch", "cupy", "numba.cuda", "cuda.bindings", "cuda.core", "jax", "pycuda.driver", "tensorflow", "tensorrt")


def _run_their_own() -> None:
    """Run the sitecustomize of the environment, whose place this has taken."""
    rest = [path for path in sys.path if path and os.path.abspath(path) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _begin() -> None:
    try:
        from gpustreamlab.run import begin_in_child

        begin_in_child()
    except Exception:  # noqa: BLE001, S110 - it is the user's process
        pass


def _note(name: str) -> None:
    try:
        if name == "torch":
            sys.modules["torch"].cuda._lazy_call(_begin)  # when it first uses the GPU
        elif not (name.startswith("cuda.") and "torch" in sys.modules):
            _begin()
    except Exception:  # noqa: BLE001, S110 - likewise
        pass


def _watch() -> None:
    spec = importlib.util.spec_from_file_location("_gpustreamlab_imports", f"{os.path.dirname(_HERE)}/_imports.py")  # noqa: PTH120
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ImportWatch((*_MODULES, "gpustreamlab.session"), _note).start()


if "GPUSTREAMLAB_CHILDREN" in os.environ:
    with contextlib.suppress(Exception):
        _watch()
_run_their_own()
