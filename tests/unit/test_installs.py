"""The lines to type that add what is missing work where the package runs."""

from __future__ import annotations

from gpustreamlab._util import words as installs


def run_from(monkeypatch, folder, *, is_clone):
    """Let the package be imported from a folder."""
    (folder / "gpustreamlab").mkdir(parents=True)
    if is_clone:
        (folder / "pyproject.toml").touch()
    monkeypatch.setattr(installs, "__file__", str(folder / "gpustreamlab" / "_util" / "words.py"))


def test_a_clone_is_installed_from_its_own_folder(monkeypatch, tmp_path):
    run_from(monkeypatch, tmp_path / "my clone", is_clone=True)
    monkeypatch.chdir(tmp_path)
    assert installs.install_line("notebook,cuda13") == f"pip install -e '{tmp_path}/my clone[notebook,cuda13]'"
    assert installs.update_line() == f"git -C '{tmp_path}/my clone' pull"
    monkeypatch.chdir(tmp_path / "my clone")
    assert installs.install_line("cupti") == "pip install -e '.[cupti]'"


def test_a_wheel_is_installed_from_an_index(monkeypatch, tmp_path):
    run_from(monkeypatch, tmp_path / "site-packages", is_clone=False)
    assert installs.install_line("cupti") == "pip install 'gpustreamlab[cupti]'"
    assert installs.update_line() == "pip install --upgrade gpustreamlab"
