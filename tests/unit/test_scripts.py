"""The scripts behind the Makefile, without a network, a kernel or a new environment."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

import gpustreamlab
from scripts import make_lite, make_release, record_gallery, run_benchmarks, run_gpu_tests, try_pythons
from tests.helpers.unfilled import leave_arrays_unfilled

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run_script(name, *arguments, **environment):
    return subprocess.run(
        [ROOT / "scripts" / name, *arguments], capture_output=True, text=True, check=False, env=os.environ | environment
    )


CHROMIUM = {
    "is there": ({"ldconfig": "echo libatomic.so.1", "chromium": ""}, 0, ""),
    "is there without Playwright's library": ({"ldconfig": "true", "chromium": ""}, 0, "chromium libatomic1\n"),
    "is installed": ({}, 0, "update --quiet\ninstall --quiet --yes --no-install-recommends chromium libatomic1\n"),
    "stays missing": ({"apt-get": "true"}, 1, ""),
}


@pytest.mark.parametrize(("programs", "status", "out"), CHROMIUM.values(), ids=CHROMIUM)
def test_chromium_is_installed_where_it_is_missing(tmp_path, programs, status, out):
    chromium = tmp_path / "chromium"
    install = f'echo "$@"; [ "$1" = install ] && touch {chromium} && chmod +x {chromium}; true'
    for name, text in ({"sudo": 'exec "$@"', "apt-get": install} | programs).items():
        write_program(tmp_path / name, text)
    done = run_script("install-chromium", PATH=f"{tmp_path}:{os.environ['PATH']}", CHROMIUM=str(chromium))
    assert (done.returncode, done.stdout.endswith(out), bool(done.stdout)) == (status, True, bool(out))
    assert not status or f"need Chromium at {chromium}" in done.stderr


def test_an_interpreter_that_is_too_old_is_refused(tmp_path):
    old = write_program(tmp_path / "python2", "exit 1")
    done = run_script("make-venv", str(tmp_path / "venv"), PYTHON=str(old))
    assert done.returncode == 1
    assert f"No Python 3.11 or newer was found as {old}" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.fixture
def run_notebook():
    """The script, imported late: a schema checker that comes with it takes 2 s, and every worker collects this file."""
    from scripts import run_notebook

    return run_notebook


def test_what_was_learned_stands_below_its_heading(run_notebook):
    v4 = run_notebook.nbformat.v4

    def cell(*outputs):
        return v4.new_code_cell(outputs=list(outputs), metadata={"tags": ["show"]})

    def stream(text):
        return v4.new_output("stream", name="stdout", text=text)

    one, table, empty = cell(stream("more\n1.5 times as fast\n")), cell(stream("more\na\nb\n")), cell()
    for made, count in ((one, 1), (table, 2), (empty, 3)):
        made.metadata[run_notebook.LEARNED] = count
    headings = [v4.new_markdown_cell(text) for text in ("# Title\n\ntext", "## Is it fast?\n\ntext", "## 2. Table", "text")]
    notebook = v4.new_notebook(cells=[*headings[:2], one, cell(stream("hidden")), headings[2], headings[3], table, empty])
    assert run_notebook.brief_text(notebook).splitlines() == [
        "Title", "  Is it fast? 1.5 times as fast", "  2. Table:", "    a", "    b",
    ]  # fmt: skip


def test_a_missing_notebook_is_named(run_notebook, capsys):
    assert run_notebook.main(["gone.ipynb"]) == 1
    assert "no notebook gone.ipynb" in capsys.readouterr().err


REPORT = '<testsuites><testsuite hostname="secret" name="pytest">{cases}</testsuite></testsuites>'


def fake_pytest(monkeypatch, report, cases, status=0):
    def run(command, check):
        assert f"--junitxml={report}" in command
        if cases is not None:
            report.write_text(REPORT.format(cases=cases))
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(run_gpu_tests.subprocess, "run", run)


GPU_RUNS = {
    "one ran": ("<testcase name='a'/><testcase name='b'><skipped/></testcase>", 0, 0),
    "all skipped": ("<testcase name='a'><skipped/></testcase>", 0, 1),
    "nothing found": ("", 5, 5),
    "one failed": ("<testcase name='a'><failure/></testcase>", 1, 1),
    "no report": (None, 0, 1),
}


@pytest.mark.parametrize(("cases", "pytest_status", "status"), GPU_RUNS.values(), ids=GPU_RUNS.keys())
def test_a_gpu_run_needs_a_test_that_ran(monkeypatch, tmp_path, cases, pytest_status, status):
    report = tmp_path / "results" / "gpu.xml"
    fake_pytest(monkeypatch, report, cases, pytest_status)
    assert run_gpu_tests.main(["--report", str(report)]) == status
    assert cases is None or ("testcase" in report.read_text(), "secret" in report.read_text()) == (bool(cases), False)


def test_on_two_gpus_the_clocks_tests_come_by_themselves_and_both_are_in_the_report(monkeypatch, tmp_path):
    report, commands = tmp_path / "gpu.xml", []

    def run(command, check):
        commands.append(command)
        name = "alone" if len(commands) == 2 else "spread"
        target = next(word.partition("=")[2] for word in command if word.startswith("--junitxml="))
        Path(target).write_text(f"<testsuites><testsuite><testcase name='{name}'/></testsuite></testsuites>")
        return subprocess.CompletedProcess(command, int(name == "alone"))

    monkeypatch.setattr(run_gpu_tests.subprocess, "run", run)
    assert run_gpu_tests.main(["--report", str(report), "--gpus", "2"]) == 1, "that of the second run"
    assert [("-n" in command, "tests/gpu/test_clock_cuda.py" in command) for command in commands] == [
        (True, False),
        (False, True),
    ]
    assert ["spread" in report.read_text(), "alone" in report.read_text()] == [True, True]
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.xml"]


@pytest.fixture
def bench_folder(monkeypatch, tmp_path):
    """Three benchmarks, of which one needs a GPU, on a machine without one."""
    folder = tmp_path / "bench"
    folder.mkdir()
    for name, text in {"b": "", "a": "", "gpu": "\nNEEDS_GPU = True\n", "_common": ""}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(run_benchmarks, "ROOT", tmp_path)
    monkeypatch.setattr(run_benchmarks, "why_unavailable", lambda: ("no-driver", "No NVIDIA driver was found."))
    return folder


def test_every_benchmark_runs_and_failures_are_told_at_the_end(monkeypatch, capsys, bench_folder, tmp_path):
    ran = []

    def run(script, results):
        ran.append(script.stem)
        return script.stem != "a"

    monkeypatch.setattr(run_benchmarks, "run", run)
    status = run_benchmarks.main(["--results", str(tmp_path / "results")])
    captured = capsys.readouterr()
    assert (status, ran) == (1, ["a", "b"])
    assert "gpu is left out. No NVIDIA driver was found." in captured.out
    assert "Failed: ['a']" in captured.err


def test_an_unknown_benchmark_is_named(monkeypatch, capsys, bench_folder, tmp_path):
    monkeypatch.setattr(run_benchmarks, "run", lambda script, results: True)
    assert run_benchmarks.main(["b", "c", "--results", str(tmp_path)]) == 1
    assert "Unknown: ['c']" in capsys.readouterr().err


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    assert listed == set(phony.split()[1:])


def test_the_gallery_has_a_short_recipe_with_a_question_for_each_name():
    recipes = {path.stem: path.read_text(encoding="utf-8") for path in record_gallery.GALLERY.glob("*.py")}
    assert recipes.keys() == set(record_gallery.NAMES)
    assert [name for name, text in recipes.items() if "?" not in ast.get_docstring(ast.parse(text)).partition("\n")[0]] == []
    lines = {
        name: len([line for line in text.split('"""', 2)[2].splitlines() if line.strip()]) for name, text in recipes.items()
    }
    assert max(lines.values()) <= 22, lines


def test_a_recording_of_real_hardware_is_not_replaced_by_a_simulated_one(tmp_path, monkeypatch):
    monkeypatch.setattr(record_gallery, "GALLERY", tmp_path)
    monkeypatch.chdir(tmp_path)
    source = "import gpustreamlab as gsl\nlab = gsl.Session('sim')\nwith lab.on(lab.stream('a'), 'x'):\n    pass\nlab.close()\n"
    (tmp_path / "one.py").write_text(source)
    assert record_gallery.record("one").startswith("one: <Trace")
    gpustreamlab.Trace.from_columns(start_ns=[0], end_ns=[1], stream=["a"]).save(tmp_path / "one.parquet")
    before = (tmp_path / "one.parquet").read_bytes()
    assert "left as it is" in record_gallery.record("one")
    assert (tmp_path / "one.parquet").read_bytes() == before


def test_on_a_gpu_what_was_simulated_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(record_gallery, "GALLERY", tmp_path)
    monkeypatch.setattr(record_gallery, "why_unavailable", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text("import gpustreamlab as gsl\nwith gsl.Session('sim') as lab:\n    pass\n")
    with pytest.raises(SystemExit, match="one: not recorded: there is a GPU"):
        record_gallery.record("one")
    assert not (tmp_path / "one.parquet").exists()


def test_a_recording_that_is_too_large_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(record_gallery, "MOST_BYTES", 5_000)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="two_ranks: not kept: file and page take"):
        record_gallery.record("two_ranks", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_fails_or_takes_too_long_stops_no_other(tmp_path, capfd):
    # GIVEN one that ends, one that there is not, and a limit that no program keeps
    folder, archive = tmp_path / "made", tmp_path / "all.tar.gz"
    # WHEN they are recorded
    status = record_gallery.main(["gone", "two_ranks", "--folder", str(folder), "--archive", str(archive)])
    late = record_gallery.main(["two_ranks", "--folder", str(tmp_path / "late"), "--limit", "0.01"])
    # THEN each is told of, and the archive has what was made
    told = capfd.readouterr().out
    assert (status, late) == (1, 1)
    assert "No such file" in told
    assert "two_ranks: <Trace: 1,304 spans" in told
    assert "two_ranks: not recorded within 0.01 s" in told
    assert told.count("Not recorded: ") == 2
    with tarfile.open(archive) as made:
        assert made.getnames() == ["two_ranks.parquet"]
    assert gpustreamlab.load_trace(folder / "two_ranks.parquet").metadata.device.name == "NVIDIA H200"


def busy_together(trace, *streams):
    return trace.overlap()[streams].common_ns


SHOWN = {
    "one_stream": lambda trace, made: len(trace.where(kind="copy")) == 16 and len(trace.where(kind="kernel")) == 8,
    "three_streams": lambda trace, made: (
        busy_together(trace, "upload", "compute") > 0 < busy_together(trace, "compute", "download")
    ),
    "two_partitions": lambda trace, made: busy_together(trace, "bulk", "requests") > 1_000_000,
    "repartition": lambda trace, made: len(trace.layouts) == 2,
    "race": lambda trace, made: "wait(" in made["lab"].memory.hazards().hazards[0].fix,
    "stray": lambda trace, made: len(trace.strays()) == 3,
    "graph": lambda trace, made: {detail.graph for detail in trace.details} > {0},
    "decode": lambda trace, made: busy_together(trace, "decode", "prefill") > 0,
    "steps": lambda trace, made: trace.steps().to_pandas()["duration_ns"].idxmax() == 3,
    "million": lambda trace, made: made["slow"] == 15 and trace.metadata.part_of_spans > len(trace) > 10_000,
    "two_cards": lambda trace, made: len(trace.devices) == 2,
    "two_ranks": lambda trace, made: len(trace.stragglers()) > 0,
}
SMALLER = {"million": {"range(1_000)": "range(30)", "700": "15"}, "decode": {"256": "16", "range(24)": "range(2)"}}


@pytest.mark.parametrize("name", SHOWN)
def test_a_recipe_shows_on_the_simulated_device_what_its_question_is_about(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    leave_arrays_unfilled(monkeypatch)
    text = (record_gallery.GALLERY / f"{name}.py").read_text(encoding="utf-8")
    for large, small in SMALLER.get(name, {}).items():
        assert large in text
        text = text.replace(large, small)
    made = {"__name__": "__main__"}
    try:
        exec(compile(text, name, "exec"), made)
        assert SHOWN[name](made["trace"] if "trace" in made else made["lab"].trace, made)
    finally:
        if "lab" in made:
            made["lab"].close()


@pytest.mark.parametrize(("name", "packages"), make_lite.NOTEBOOKS.items())
def test_a_notebook_for_jupyterlite_installs_what_it_imports_first_and_brings_no_outputs(name, packages):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    cells = json.loads(make_lite.with_install(path, packages))["cells"]
    assert cells[0]["source"] == f"%pip install -q {packages}"
    assert len(cells) == 1 + len(json.loads(path.read_text(encoding="utf-8"))["cells"])
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    code = "".join("".join(cell["source"]) for cell in cells[1:] if cell["cell_type"] == "code")
    assert ("skimage" in code) == ("scikit-image" in packages)


def test_the_notes_of_a_release_are_its_part_of_the_changelog():
    notes = make_release.notes_of(gpustreamlab.__version__)
    assert notes.startswith(f"# gpustreamlab {gpustreamlab.__version__}\n\nThe first release")
    assert "\n## " not in notes
    with pytest.raises(SystemExit, match="no part for 9.9"):
        make_release.notes_of("9.9")


def test_the_conda_recipe_needs_what_the_package_needs():
    # GIVEN the recipe, and what pip is told
    recipe = (ROOT / "conda/meta.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # WHEN both are read
    run = recipe.partition("  run:\n")[2].partition("  run_constrained:")[0]
    listed = {line.strip("- \n").replace(" ", "") for line in run.splitlines()}
    wanted = {"python" + project["project"]["requires-python"], *project["project"]["dependencies"]}
    # THEN they ask for the same, of the same version
    assert listed == wanted
    assert f'version = "{gpustreamlab.__version__}"' in recipe
    (build,) = project["build-system"]["requires"]
    assert f"- {build.replace('>=', ' >=')}\n" in recipe


def test_an_image_is_made_in_ten_lines_of_extras_that_there_are():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 10
    extras = re.search(r"\[([a-z0-9,]+)\]", "\n".join(lines))[1].split(",")
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {".git", ".venv"} <= set((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()), "else they are copied"


def test_the_pythons_of_this_machine_are_found_once_each(monkeypatch, tmp_path, capsys):
    old, new, same = tmp_path / "old", tmp_path / "new", tmp_path / "same"
    for path, text in ((old, "3 10"), (new, "3 13"), (same, "3 13")):
        path.write_text(f"#!/bin/sh\necho {text}\n")
        path.chmod(0o755)
    monkeypatch.setattr(try_pythons, "_offered", lambda: map(str, (old, new, same, tmp_path / "none-such")))
    assert try_pythons.interpreters() == {(3, 13): str(new)}
    tried = []
    monkeypatch.setattr(try_pythons, "try_python", lambda path, name, browser: tried.append((path, browser)) or name != "3.13")
    assert try_pythons.main(["--no-browser"]) == 1
    assert tried == [(str(new), False)]
    assert capsys.readouterr().out.startswith("Python 3.13: FAILED")
    assert try_pythons.main(["3.12"]) == 1
    assert "No Python 3.12 here; there is 3.13." in capsys.readouterr().err


def test_what_cuda_core_could_not_destroy_is_shown_and_other_warnings_fail(pytester):
    (pytester.mkpydir("cuda") / "core.py").write_text("class CUDAWarning(UserWarning): pass")
    pytester.makeini("[pytest]\nfilterwarnings = error\npythonpath = .")
    pytester.makeconftest((ROOT / "tests/gpu/conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        """
        import warnings
        import pytest
        from cuda.core import CUDAWarning
        @pytest.mark.parametrize("kind", [CUDAWarning, UserWarning])
        def test_it(kind):
            warnings.warn("cuStreamDestroy failed", kind)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1, failed=1, warnings=1)
