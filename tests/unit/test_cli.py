from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpustreamlab import __version__, cli
from gpustreamlab.backends.cuda._probe import Check, CheckStatus
from gpustreamlab.typing import Unavailable

pytestmark = pytest.mark.usefixtures("installed_as_wheel")

ROW = Check(name="CuPy", status=CheckStatus.OK, detail="14.2.0")
LACKING = Check(name="nvtx", status=CheckStatus.LACKING, detail="not installed", fix="pip install nvtx")


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a driver, checked at no cost."""
    monkeypatch.setattr(cli, "find_library", lambda: Path("compiled.so"))
    monkeypatch.setattr(cli, "cuda_checks", lambda: [ROW])
    monkeypatch.setattr(cli, "why_unavailable", lambda: (Unavailable.NO_DRIVER, "No NVIDIA driver was found. Install it."))


def test_doctor_prints_every_row_and_succeeds(capsys, no_gpu):
    status = cli.main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert [line.split()[1] for line in lines if not line.startswith(" ")] == [
        "Python",
        "gpustreamlab",
        "CuPy",
        "jupyterlab",
        "ipykernel",
        "ipywidgets",
        "Session()",
    ]


def test_doctor_says_which_backend_a_session_uses(capsys, monkeypatch, no_gpu):
    cli.main(["doctor"])
    simulated = capsys.readouterr().out
    monkeypatch.setattr(cli, "why_unavailable", lambda: None)
    cli.main(["doctor"])
    real = capsys.readouterr().out
    assert "(backend 'sim'), as no GPU can be used" in " ".join(simulated.split())
    assert "(backend 'cuda')" in real


@pytest.mark.parametrize("has_compiler", [True, False])
def test_doctor_says_whether_kernels_can_be_captured(capsys, monkeypatch, no_gpu, has_compiler):
    def find_library():
        if has_compiler:
            return Path("/cache/callbacks.so")
        raise OSError("There is no C compiler here. Install one (cc, gcc or clang), or: pip install 'gpustreamlab[native]'.")

    monkeypatch.setattr(cli, "find_library", find_library)
    cli.main(["doctor"])
    assert "kernel capture" not in capsys.readouterr().out
    monkeypatch.setattr(cli, "why_unavailable", lambda: None)
    cli.main(["doctor"])
    told = " ".join(capsys.readouterr().out.split())
    if has_compiler:
        assert "ok kernel capture its callbacks were compiled on this machine: /cache/callbacks.so" in told
    else:
        assert "lacking kernel capture kernels will not be captured; ranges are timed without them fix: There is no C" in told
        assert "Install one (cc, gcc or clang), or: pip install 'gpustreamlab[native]'." in told


def test_doctor_as_json(capsys, no_gpu):
    status = cli.main(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert status == 0
    assert facts["gpustreamlab"] == __version__
    assert {"name": "CuPy", "status": "ok", "detail": "14.2.0", "fix": ""} in facts["checks"]
    assert facts["checks"][-1]["name"] == "Session()"


def test_missing_jupyter_gives_the_line_to_type(capsys, monkeypatch, no_gpu):
    def version(name):
        raise cli.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cli.importlib.metadata, "version", version)
    cli.main(["doctor"])
    assert "fix: pip install 'gpustreamlab[notebook]'" in capsys.readouterr().out


def test_a_fix_is_written_whole_and_once():
    long_line = "pip uninstall --yes cupy-cuda13x && pip install 'gpustreamlab[cuda12]' --some --more --options --than --fit"
    first = Check(name="driver", status=CheckStatus.UNAVAILABLE, detail="old", fix=long_line)
    second = Check(name="GPU", status=CheckStatus.UNAVAILABLE, detail="none", fix=long_line)
    text = cli.checks_to_text([first, second], columns=40)
    assert text.count(f"fix: {long_line}") == 1
    assert text.endswith("fix: as for driver")


def test_a_long_detail_is_wrapped_under_itself():
    text = cli.checks_to_text([Check(name="x", status=CheckStatus.OK, detail="word " * 40)], columns=60)
    assert all(len(line) <= 60 for line in text.splitlines())
    assert all(line.startswith(" " * 16) for line in text.splitlines()[1:])


def test_statuses_are_words_that_line_up():
    first, *_, last = cli.checks_to_text([ROW, LACKING]).splitlines()
    assert first == "ok           CuPy  14.2.0"
    assert last == "                   fix: pip install nvtx"


@pytest.mark.parametrize("arguments", [["docter"], ["doctor", "--jsn"]], ids=["unknown command", "unknown option"])
def test_wrong_arguments_end_with_status_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: gpustreamlab" in capsys.readouterr().err


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gpustreamlab {__version__}\n"


def test_the_command_runs_on_this_machine_without_the_cuda_packages():
    # GIVEN a fresh interpreter in which no CUDA package can be imported
    program = (
        "import sys\n"
        "for name in ('cupy', 'cuda', 'cuda.core', 'nvtx', 'cupti'):\n"
        "    sys.modules[name] = None\n"
        "from gpustreamlab.cli import main\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )

    # WHEN doctor runs there
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    # THEN each lack is a row with its fix
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    for name in ("CuPy", "cuda.core", "nvtx"):
        assert rows[name]["status"] == "lacking"
        assert rows[name]["fix"].startswith("pip install -e '")
    assert "CUPTI" in rows
    assert all(row["fix"] for row in rows.values() if row["status"] == "lacking")


def test_it_runs_as_a_module_of_an_interpreter_too():
    command = [sys.executable, "-m", "gpustreamlab"]
    told, helped = (
        subprocess.run([*command, *rest], capture_output=True, text=True, check=False) for rest in (["--version"], [])
    )
    assert (told.returncode, told.stdout) == (0, f"gpustreamlab {__version__}\n")
    assert (helped.returncode, helped.stdout.startswith("usage: gpustreamlab ")) == (0, True)


def test_a_reader_that_has_seen_enough_ends_it_silently():
    # GIVEN a pipe that nobody reads any more, as behind `doctor | head -2`
    read, write = os.pipe()
    os.close(read)
    # WHEN doctor writes into it
    program = "import sys; from gpustreamlab.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    # THEN it says nothing, and ends as a program does that SIGPIPE ends
    assert (done.returncode, done.stderr) == (141, b"")
