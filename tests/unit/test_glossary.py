"""One word for one thing: what the glossary says not to write stands in no message, public docstring or page."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpustreamlab

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpustreamlab"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page != GLOSSARY and page.parent.name != "decisions"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted(PACKAGE.rglob("*.py"))
STREAMS_ONLY = ("streams", "memory", "adapters", "backends", "programs", "tuning", "session.py", "bench.py", "green.py")
"""Rooms that know no trace: there a stream is no lane yet."""
PUBLIC = ("analysis", "bench", "errors", "groups", "memory", "model", "streams", "testing", "typing", "workloads")
"""Modules whose classes and functions users meet, beside those of the package itself."""
CODE = re.compile(r"```.*?```|``.*?``|`[^`]*`", re.DOTALL)


@cache
def rows() -> list[tuple[str, str, str]]:
    """Return word, meaning and what not to write of each row of the glossary's tables."""
    lines = (line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    cells = (tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines)
    return [row for row in cells if row[0] not in {"Word", ""} and set(row[0]) != {"-"}]


@cache
def wrong_words() -> dict[str, tuple[re.Pattern[str], str]]:
    """Return each word not to write, with its pattern and the word to write; one in backticks is looked for in code too."""
    pairs = ((word, right) for right, _, wrong in rows() for word in filter(None, wrong.split(", ")))
    return {word: (_pattern(word.strip("`")), right) for word, right in pairs}


def _pattern(word: str) -> re.Pattern[str]:
    first = f"[{word[0]}{word[0].upper()}]" if word[0].isalpha() else re.escape(word[0])
    return re.compile(rf"(?<![\w.-]){first}{re.escape(word[1:]).replace(chr(92) + ' ', chr(92) + 's+')}s?(?![\w-])")


def wrong_in(text: str) -> list[str]:
    """Return the words not to write that a text has, each with the one to write, and where."""
    found = []
    for word, (pattern, right) in wrong_words().items():
        if word.strip("`").split()[0][1:] not in text:
            continue  # most texts have none of them
        if hit := pattern.search(text if word.startswith("`") else CODE.sub("``", text)):
            around = hit.string[max(0, hit.start() - 30) : hit.end() + 30]
            found.append(f"{word} (write {right}): ...{around}...")
    return found


def messages_of(path: Path) -> Iterator[tuple[int, str]]:
    """Return the texts of more than one word in a module, with their lines; values in an f-string are ``{}``."""
    skipped = set[ast.AST]()  # docstrings, and the parts of f-strings: those that hold them come first
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
        text = None if node in skipped else _text(node)
        if text is not None and len(text.split()) > 1:
            yield node.lineno, text


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(_text(part) or "{}" for part in node.values) if isinstance(node, ast.JoinedStr) else None


@cache
def exported() -> frozenset[tuple[str, str]]:
    """Return module and name of every class and function that a public module lists."""
    modules = [gpustreamlab, *(importlib.import_module(f"gpustreamlab.{name}") for name in PUBLIC)]
    values = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    return frozenset((value.__module__, value.__name__) for value in values if callable(value))


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Return the docstrings of a module's public classes and functions, with those of methods and fields."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = [node for node in parsed(path).body if isinstance(node, definitions) and (module, node.name) in exported()]
    members = [node for body in public for node in body.body if isinstance(node, definitions) and not node.name.startswith("_")]
    for node in [*public, *members]:
        for text in node.body if isinstance(node, ast.ClassDef) else node.body[:1]:
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                yield text.lineno, text.value.value


@cache
def said_by(path: Path) -> list[tuple[int, str]]:
    """Return what users read of a module."""
    return [*messages_of(path), *docstrings_of(path)]


def test_the_glossary_is_in_order_and_says_each_word_once():
    words = [word.casefold() for word, _, _ in rows()]
    nouns, verbs = words[: words.index("know")], words[words.index("know") :]

    assert (nouns, verbs) == (sorted(set(nouns)), sorted(set(verbs)))
    assert len(wrong_words()) == sum(len(wrong.split(", ")) for _, _, wrong in rows() if wrong)
    assert not wrong_words().keys() & {word for word, _, _ in rows()}


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_words_of_the_glossary(page):
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join(map(text_of_cell, json.loads(text)["cells"]))

    assert not wrong_in(text)


def text_of_cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"```\n{source}\n```" if cell["cell_type"] == "code" else source


def test_messages_and_public_docstrings_use_the_words_of_the_glossary():
    found = {f"{path.relative_to(ROOT)}:{line}": wrong_in(text) for path in MODULES for line, text in said_by(path)}

    assert not {place: wrong for place, wrong in found.items() if wrong}


def test_what_a_user_makes_and_selects_is_called_a_stream():
    rooms = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] in STREAMS_ONLY]
    found = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in rooms for line, text in said_by(path) if says_lane(text)]

    assert not found


def says_lane(text: str) -> bool:
    return re.search(r"\blanes?\b(?! of (?:the|a) (?:timeline|trace))", CODE.sub("", text), re.IGNORECASE) is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("It selects the\nlane first", "selects the lane"),
        ("`lane.wait(other)` waits on the device", "`lane.wait`"),
        ("Null streams wait for all", "null stream"),
        ("which nobody knows", "nobody knows"),
    ],
)
def test_a_word_that_is_not_to_be_written_is_found(text, word):
    assert [found.partition(" (write")[0] for found in wrong_in(text)] == [word]


def test_code_in_backticks_may_have_the_names_of_others():
    assert not wrong_in("The table `emulator` is a model.")
    assert wrong_in("An emulator is a model.")


def test_messages_and_docstrings_are_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""A module."""\nNAME = "name"\nTEXT = f"Two lanes: {NAME}, " "and more"\n')

    assert list(messages_of(module)) == [(3, "Two lanes: {}, and more")]
    assert any("Select a stream" in text for _, text in docstrings_of(PACKAGE / "session.py"))
