"""What is public is named, resolves, and stands in the documentation."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import pytest

import gpustreamlab
from gpustreamlab import Session
from gpustreamlab.bench import Bench
from gpustreamlab.groups import Expect, Group, Memory, PartitionTools, Recording

OPTIONS = {"capture": "ranges"}

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {"load_ipython_extension", "unload_ipython_extension", "__version__"}
"""What IPython and packaging tools call, not users."""
MODULES = ("gpustreamlab", "gpustreamlab.errors", "gpustreamlab.typing", "gpustreamlab.model")


@pytest.fixture(scope="module")
def reference():
    pages = [*(ROOT / "docs" / "reference").glob("*.md"), ROOT / "docs" / "README.md", ROOT / "README.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("name", gpustreamlab.__all__)
def test_each_public_name_resolves_and_has_a_docstring(name):
    value = getattr(gpustreamlab, name)

    assert isinstance(value, str) or value.__doc__


def test_all_is_what_can_be_loaded():
    assert set(gpustreamlab.__all__) == {*gpustreamlab._HOMES, "__version__"}


@pytest.mark.parametrize("name", gpustreamlab._HOMES)
def test_each_name_is_public_in_its_home_too(name):
    home = importlib.import_module(f"gpustreamlab.{gpustreamlab._HOMES[name]}")

    assert name in home.__all__


@pytest.mark.parametrize("module", MODULES)
def test_all_is_sorted_and_names_everything_public(module):
    loaded = importlib.import_module(module)
    listed = list(loaded.__all__)
    for name in listed:
        getattr(loaded, name)
    own = {name for name, value in vars(loaded).items() if is_public(name, value, module)}

    assert own <= set(listed)
    assert len(set(listed)) == len(listed)


def is_public(name, value, module):
    """Tell whether a name of a module is its own: no module, no import from elsewhere."""
    if name.startswith("_") or isinstance(value, types.ModuleType):
        return False
    return getattr(value, "__module__", "").startswith(module)


@pytest.mark.parametrize("name", sorted(set(gpustreamlab.__all__) - HOOKS))
def test_the_documentation_mentions_each_public_name(name, reference):
    assert f"`{name}" in reference or f".{name}" in reference


def test_completion_shows_what_users_type_and_no_submodules():
    importlib.import_module("gpustreamlab.workloads")

    shown = {name for name in dir(gpustreamlab) if not name.startswith("_")}

    assert shown == set(gpustreamlab.__all__) - HOOKS
    assert "__version__" in dir(gpustreamlab)


def public(thing):
    return [name for name in dir(thing) if not name.startswith("_")]


def test_a_session_shows_what_is_typed_daily_and_groups(lab):
    groups = {name for name in public(lab) if isinstance(getattr(lab, name), Group)}
    assert groups == {"bench", "expect", "partitions", "memory", "recording"}
    assert len(public(lab)) <= 24 + len(groups)


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("partitions", PartitionTools, 7),
        ("memory", Memory, 7),
        ("recording", Recording, 9),
        ("expect", Expect, 5),
        ("bench", Bench, 4),
    ],
)
def test_each_group_is_documented_and_lists_what_is_in_it(lab, name, kind, count):
    group = getattr(lab, name)

    assert type(group) is kind
    assert getattr(Session, name).__doc__
    assert kind.__doc__
    assert len(public(group)) == count
    assert all(getattr(kind, member).__doc__ and member in repr(group) for member in public(group))


def test_a_stream_shows_what_users_need(lab):
    assert len(public(lab.stream("copy"))) <= 22
