from __future__ import annotations

import builtins
import inspect
import pickle
import re
from pathlib import Path

import pytest

from gpustreamlab import errors
from gpustreamlab.errors import (
    BackendUnavailableError,
    CloseError,
    DeviceError,
    GPUStreamLabError,
    MissingExtraError,
    StreamNotFoundError,
    nearest_hint,
)

EXPORTED = [getattr(errors, name) for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
CLASSES = [kind for kind in EXPORTED if not issubclass(kind, Warning)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"
TREE_LINE = re.compile(r"^(?P<bars>[│├└─ ]*)(?P<name>\w+Error)(?: +\((?P<builtin>\w+)\))?")


def read_tree():
    """Read the docstring's tree: each class with its parent's name and the builtin in brackets."""
    path, rows = [], {}
    block = errors.__doc__.split("::", 1)[1].split("Each message", 1)[0]
    for line in filter(None, map(str.rstrip, block.splitlines())):
        found = TREE_LINE.match(line)
        depth = (len(found["bars"]) - 4) // 4
        path[depth:] = [found["name"]]
        rows[found["name"]] = (path[depth - 1] if depth else None, found["builtin"])
    return rows


TREE = read_tree()


def test_the_tree_in_the_docstring_names_every_class():
    assert set(TREE) == {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_class_inherits_what_the_tree_says(kind):
    parent, builtin = TREE[kind.__name__]

    public = [one.__name__ for one in kind.__mro__[1:] if not one.__name__.startswith("_")]
    assert parent is None or public[0] == parent
    assert builtin is None or issubclass(kind, getattr(builtins, builtin))
    assert issubclass(kind, GPUStreamLabError)


@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_each_class_has_a_row_in_the_reference(kind):
    assert f"`{kind.__name__}`" in PAGE.read_text(encoding="utf-8")


def test_the_reference_names_no_class_that_is_gone():
    listed = set(re.findall(r"^\| `(\w+Error)`", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert listed == {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", sorted(set(CLASSES) - {CloseError}, key=lambda kind: kind.__name__), ids=lambda k: k.__name__)
def test_the_message_is_shown_as_it_was_written(kind):
    message = "Stream 'copy' is closed.\nMake it again with lab.stream('copy')."

    assert str(kind(message)) == message
    assert str(pickle.loads(pickle.dumps(kind(message)))) == message


def test_a_missing_stream_is_shown_without_quotes():
    assert str(StreamNotFoundError("No stream 'a'.\nThere is 'b'.")) == "No stream 'a'.\nThere is 'b'."


def test_facts_are_attributes():
    assert BackendUnavailableError("x", reason="no-driver").reason == "no-driver"
    assert DeviceError("x", driver_code="CUDA_ERROR_UNKNOWN").driver_code == "CUDA_ERROR_UNKNOWN"
    assert MissingExtraError("x", name="cupy").name == "cupy"


def test_every_failure_of_closing_is_in_the_report():
    failures = [("stream 'a'", ValueError("bad")), ("stream 'b'", OSError("worse"))]

    error = CloseError(failures)

    assert error.failures == tuple(failures)
    assert "2 of its parts" in str(error)
    assert "  stream 'a': ValueError: bad\n  stream 'b': OSError: worse\n" in str(error)


HINTS = {
    "near": ("strem", ["stream", "event"], "Did you mean 'stream'?"),
    "nothing near": ("zzz", ["b", "a"], "Choose from 'a', 'b'."),
    "nothing there": ("zzz", [], ""),
    "many": ("zzz", [f"lane-{number:02}" for number in range(13)], "Choose from 'lane-00', "),
}


@pytest.mark.parametrize(("wrong", "valid", "hint"), HINTS.values(), ids=HINTS.keys())
def test_the_hint_names_the_nearest_choice(wrong, valid, hint):
    assert nearest_hint(wrong, valid).startswith(hint)
    assert nearest_hint(wrong, valid).endswith("…." if len(valid) > 12 else hint)
