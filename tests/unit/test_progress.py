"""Progress of what takes long, as a notebook shows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpustreamlab._util import shell


@pytest.fixture
def published(monkeypatch):
    """Return what is published in a notebook: text, whether it takes the place of what is there, and of what."""
    told = []

    def publish(data, *, transient, update):
        told.append((data, update, transient["display_id"]))

    notebook = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr(shell, "running_kernel_shell", lambda: notebook)
    return told


def test_a_notebook_shows_one_line_of_text_and_nothing_of_it_stays(published, monkeypatch):
    monkeypatch.setattr(shell, "PATIENCE_S", -1.0)
    with pytest.raises(KeyboardInterrupt), shell.steps(3, "tuning") as step:
        step("a")
        step("b")
        step("c")
        step("d")
        raise KeyboardInterrupt
    assert [data for data, _, _ in published] == [
        {"text/plain": "tuning: a (1 of 3)"},
        {"text/plain": "tuning: b (2 of 3)"},
        {"text/plain": "tuning: c (3 of 3)"},
        {"text/plain": "tuning: d (4 of 4)"},
        {"text/plain": ""},
    ]
    assert [update for _, update, _ in published] == [False, True, True, True, True]
    assert len({shown for _, _, shown in published}) == 1


def test_what_has_ended_soon_shows_nothing(published):
    with shell.steps(1, "tuning") as step:
        step("a")
    assert published == []
