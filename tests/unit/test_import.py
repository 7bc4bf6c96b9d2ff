"""What an import loads, seen from fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
import textwrap

HEAVY = ("cupy", "cuda", "nvtx", "bokeh", "IPython", "pandas", "pyarrow", "numpy")
LATER = ("cupy", "cuda", "nvtx", "bokeh", "IPython", "ipywidgets", "pandas", "pyarrow", "numpy.f2py")


def run_python(program):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_loads_nothing_heavy_and_tells_what_it_has():
    told = run_python(f"""
import sys
import gpustreamlab
print(gpustreamlab.__version__ > "0", "Session" in dir(gpustreamlab))
try:
    gpustreamlab.Sesion
except AttributeError as error:
    print(error)
print(*[name for name in {HEAVY!r} if name in sys.modules])
""")
    assert told.splitlines() == ["True True", "module 'gpustreamlab' has no attribute 'Sesion'. Did you mean 'Session'?", ""]


def test_a_session_starts_without_screen_files_and_cuda_and_so_does_looking_for_a_gpu():
    modules = ("typing", "errors", "model", "backends.sim", "backends.cuda._probe", "session", "cli")
    told = run_python(f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module("gpustreamlab." + module)
    print(module, *[name for name in {LATER!r} if name in sys.modules])
from gpustreamlab.backends.cuda._libcuda import read_driver
def fail(): raise OSError("no libcuda")
read_driver(fail)
print("driver", *[name for name in ("cupy", "cuda") if name in sys.modules])
""")
    assert told.splitlines() == [*modules, "driver"]


def test_a_script_needs_nothing_of_notebooks(tmp_path):
    done = run_python(
        textwrap.dedent(f"""
        import sys
        sys.modules |= dict.fromkeys(("IPython", "anywidget", "ipywidgets", "traitlets", "jupyterlab"))
        import gpustreamlab as gsl
        from gpustreamlab.errors import MissingExtraError
        with gsl.Session("sim") as lab:
            lab.stream("a")
            with lab.capture("kernels"), lab.on("a", "product"):
                lab.xp.ones((4, 4)) @ lab.xp.ones((4, 4))
            lab.synchronize()
            print(lab.timeline(), lab.trace.overlap(), lab.trace.strays(), lab.trace.host_waits())
            lab.timeline().save({str(tmp_path / "run.html")!r})
            lab.trace.save({str(tmp_path / "run.parquet")!r})
            try:
                lab.partitions.widget()
            except MissingExtraError as error:
                print("said:", error)
        """)
    )
    assert "said: Widgets need the package anywidget" in done
    assert "gpustreamlab[notebook]" in done
    assert (tmp_path / "run.html").stat().st_size > 100_000
