"""Measure the house, not what it does: how large the package is, what leans on what, how far a span is passed on.

    python scripts/house_figures.py gpustreamlab --output bench/results/house/before.json

The argument is the package's folder in any checkout, whose tests and pyproject.toml stand beside it. Nothing depends on the
machine, so the figures of two checkouts can be compared.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGE = "gpustreamlab"
PUBLIC_MODULES = (
    *("adapters", "analysis", "backends", "cli", "comparison", "engines", "errors", "green", "magics", "model", "session"),
    *("spool", "streams", "tasks", "testing", "timeline", "trace", "typing", "workloads"),
)
"""Modules that users or the documentation import from; the others are our own affair."""
TEST_FOLDERS = ("unit", "browser", "notebooks", "gpu")
_NO_CODE = frozenset(
    [tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and write them where ``--output`` says."""
    options = make_parser().parse_args(argv)
    package = options.package.resolve()
    root = package.parent
    found = {
        "package": package_figures(package),
        "public_names": measure(root, "public_names"),
        "imports": {"layers": layers(root / "pyproject.toml"), **measure(root, "circles")},
        "tests": figures_of_tests(root),
        "passed_on": measure(root, "passed_on"),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(f"{text}\n", encoding="utf-8")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="folder of the package in a checkout")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def package_figures(package: Path) -> dict[str, Any]:
    """Count the modules and lines of the package."""
    files = sorted(package.rglob("*.py"))
    in_root = [path.stem for path in package.glob("*.py") if path.stem != "__init__"]
    folders = [path.parent.name for path in package.glob("*/__init__.py")]
    longest = max(files, key=lambda path: count_lines([path])["code_lines"])
    return {
        "modules": len(files),
        "modules_in_root": len(in_root),
        "packages_in_root": len(folders),
        **count_lines(files),
        "longest_module": longest.relative_to(package).as_posix(),
        "longest_module_code_lines": count_lines([longest])["code_lines"],
    }


def count_lines(files: Iterable[Path]) -> dict[str, int]:
    """Count lines; one that holds code and a comment is a line of code, and one that a docstring covers is none.

    Text that only documents a field, as a statement of its own, counts as a docstring, too.
    """
    totals = dict.fromkeys(("total_lines", "code_lines", "comment_lines", "docstring_lines", "blank_lines"), 0)
    for path in files:
        text = path.read_text(encoding="utf-8")
        documented = set(_documented_lines(ast.parse(text)))
        code: set[int] = set()
        comments: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments.add(token.start[0])
            elif token.type not in _NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
        code -= documented
        total_count = len(text.splitlines())
        counts = (total_count, len(code), len(comments - code - documented), len(documented))
        for name, count in zip(totals, (*counts, total_count - sum(counts[1:])), strict=True):
            totals[name] += count
    return totals


def _documented_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def layers(pyproject: Path) -> dict[str, int]:
    """Count the layers of the imports, and what stands in them."""
    linter = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]
    contract = next(contract for contract in linter["contracts"] if contract["type"] == "layers")
    names = [name for layer in contract["layers"] for name in re.findall(r"\w+", layer)]
    return {
        "layers": len(contract["layers"]),
        "modules_placed": len(names),
        "exceptions": len(contract.get("ignore_imports", ())),
        "contracts": len(linter["contracts"]),
    }


def figures_of_tests(root: Path) -> dict[str, Any]:
    """Count the tests, their lines, and the files of them that look behind the public modules."""
    files = sorted((root / "tests").rglob("*.py"))
    private = {path: sorted(_private_imports(path)) for path in files}
    return {
        "collected": {folder: _collect(root, folder) for folder in TEST_FOLDERS},
        "files": len(files),
        **count_lines(files),
        "files_that_import_a_private_module": sum(map(bool, private.values())),
        "private_modules_imported": len({name for names in private.values() for name in names}),
        "files_that_name_a_private_module_in_text": sum(map(_names_private, files)),
    }


def _private_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # What comes from the package itself may be a module.
            inside = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == PACKAGE else []
            modules = [node.module, *(name for name in inside if name.rpartition(".")[2].islower())]
            yield from filter(_is_private, modules)


def _is_private(module: str) -> bool:
    """Tell whether a module is our own affair; names that the package itself exports are not."""
    package, *parts = module.split(".")
    if package != PACKAGE or not parts or parts[0] in {"compare", "load_trace", "plan_partitions", "__version__"}:
        return False
    return parts[0] not in PUBLIC_MODULES or any(part.startswith("_") for part in parts)


def _names_private(path: Path) -> bool:
    """Tell whether a text, as for ``monkeypatch.setattr``, is the path of something in a private module."""
    texts = (
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return any(re.fullmatch(rf"{PACKAGE}(\.\w+)+", text) and _is_private(text) for text in texts)


def _collect(root: Path, folder: str) -> dict[str, int | None]:
    """Count the tests that pytest finds, None where it cannot import them here, and the functions that are written down."""
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, text=True, check=False)
    tests = [line for line in done.stdout.splitlines() if re.match(r"tests/\S+::", line)]
    functions = (
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
        for path in (root / "tests" / folder).rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    return {"tests": None if done.returncode else len(tests), "functions": sum(functions)}


def measure(root: Path, what: str) -> dict[str, Any]:
    """Measure in a process that imports the package of this checkout."""
    code = f"import house_figures, json; print(json.dumps(house_figures.{what}()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=_environment(root), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).resolve().parent}"}


def public_names() -> dict[str, int]:
    """Count what completion shows of the package and of what users hold in their hands."""
    import gpustreamlab as gsl

    classes = {"Session": gsl.Session, "Stream": gsl.Stream, "Trace": gsl.Trace}
    shown = {PACKAGE: gsl.__all__, **{name: dir(one) for name, one in classes.items()}}
    return {name: sum(not entry.startswith("_") for entry in entries) for name, entries in shown.items()}


def circles() -> dict[str, Any]:
    """Count the imports between modules, and the circles among those that run when a module is imported."""
    import grimp

    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    pairs = [(importer, other) for importer in graph.modules for other in graph.find_modules_directly_imported_by(importer)]
    late = {importer: _late_lines(importer) for importer in graph.modules}
    at_once = [
        (importer, other)
        for importer, other in pairs
        if any(
            detail["line_number"] not in late[importer]
            for detail in graph.get_import_details(importer=importer, imported=other)
        )
    ]
    found = [group for group in _groups(at_once) if len(group) > 1]
    found_late = [group for group in _groups(pairs) if len(group) > 1]
    return {
        "imports": len(pairs),
        "imports_at_module_level": len(at_once),
        "circles_at_module_level": len(found),
        "modules_in_circles_at_module_level": sum(map(len, found)),
        "circles_with_imports_in_functions": len(found_late),
        "modules_in_circles_with_imports_in_functions": sum(map(len, found_late)),
        "circles_at_module_level_are": sorted(map(sorted, found)),
    }


def _late_lines(module: str) -> set[int]:
    """Return the lines of a module that run only when a function of it is called."""
    import importlib.util

    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    functions = (
        node
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return {line for node in functions for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _groups(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Return the modules that reach each other, as groups: those are circles where there are several in one."""
    nexts: dict[str, set[str]] = {}
    for one, other in pairs:
        nexts.setdefault(one, set()).add(other)
        nexts.setdefault(other, set())
    reach = {name: _reach(name, nexts) for name in nexts}
    groups: list[set[str]] = []
    for name in nexts:
        if not any(name in group for group in groups):
            groups.append({name} | {other for other in reach[name] if name in reach[other]})
    return groups


def _reach(start: str, nexts: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        fresh = nexts[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return seen


def passed_on() -> dict[str, Any]:
    """Count the modules of the package whose code runs for one span, and for one kernel, on the simulated device.

    Counted is the thread that works, the second time, when everything is imported. A thread on the side works when it likes.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.parquet"
        _one_span(file), _one_kernel()
        span, kernel = _one_span(file), _one_kernel()
    return {
        "one_span_to_a_file": len(span),
        "one_kernel_to_strays": len(kernel),
        "of_one_span_to_a_file": span,
        "of_one_kernel_to_strays": kernel,
    }


def _one_span(file: Path) -> list[str]:
    import gpustreamlab as gsl

    with gsl.Session("sim") as lab:
        lab.stream("a")
        with _Entered() as entered:
            with lab.on("a", "x"):
                pass
            lab.synchronize()
            lab.trace.save(file)
    return entered.modules


def _one_kernel() -> list[str]:
    import gpustreamlab as gsl
    from gpustreamlab.workloads import spin

    with gsl.Session("sim") as lab:
        lab.stream("a")
        with lab.on("a", "x"), _Entered() as entered:
            spin(lab, 1_000)
            lab.synchronize()
        with entered:
            lab.trace.strays()
    return entered.modules


class _Entered:
    """Notes the modules of the package of which a function is entered, in this thread, inside of ``with``."""

    def __init__(self) -> None:
        import gpustreamlab

        self._folder = Path(gpustreamlab.__file__).parent
        self._files: set[str] = set()

    def __enter__(self) -> _Entered:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def modules(self) -> list[str]:
        """Their paths in the package."""
        paths = map(Path, self._files)
        return sorted(path.relative_to(self._folder).as_posix() for path in paths if path.is_relative_to(self._folder))

    def _note(self, frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            self._files.add(frame.f_code.co_filename)


if __name__ == "__main__":
    sys.exit(main())
