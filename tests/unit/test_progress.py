"""Progress of what takes long, as a notebook shows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpustreamlab._util import progress


@pytest.fixture
def published(monkeypatch):
    """Return what is published in a notebook: text, whether it takes the place of what is there, and of what."""
    told = []

    def publish(data, *, transient, update):
        told.append((data, update, transient["display_id"]))

    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr(progress, "running_kernel_shell", lambda: shell)
    return told


def test_a_notebook_shows_one_line_of_text_and_nothing_of_it_stays(published, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1.0)
    with pytest.raises(KeyboardInterrupt), progress.steps(3, "tuning") as step:
        step("a")
        step("b")
        raise KeyboardInterrupt
    assert [data for data, _, _ in published] == [
        {"text/plain": "tuning: a (1 of 3)"},
        {"text/plain": "tuning: b (2 of 3)"},
        {"text/plain": ""},
    ]
    assert [update for _, update, _ in published] == [False, True, True]
    assert len({shown for _, _, shown in published}) == 1


def test_what_has_ended_soon_shows_nothing(published):
    with progress.steps(1, "tuning") as step:
        step("a")
    assert published == []
