"""Bundle the modules of gpustreamlab/draw/viewer into bundle.js, which is committed; ``--check`` only says if it is theirs.

Bundling needs npm, which brings the linter and the bundler below, and is for those who change the viewer. The check needs
neither: the bundle says of which modules it was made.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "gpustreamlab" / "draw" / "viewer"
BUNDLE = "bundle.js"
NO_MODULES = (BUNDLE, "frame.js", "page.js")
LINTER = ("oxlint@1.94.0", "--config", str(Path(__file__).with_name("oxlint.json")), "--ignore-pattern", BUNDLE, ".")
"""The bundler takes a name that nobody declares for one of the browser's, and allows cycles: the linter does not."""
# One classic script: pages run it, widgets put it above their own. It keeps all names, so that errors tell where they were.
BUNDLER = ("esbuild@0.28.2", "index.js", "--bundle", "--format=iife", "--global-name=gpustreamlab", "--target=es2022",
           "--charset=utf8", '--tsconfig-raw={"compilerOptions":{"alwaysStrict":true}}', "--log-level=warning")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where the modules are wrong or, with ``--check``, where the bundle is not theirs."""
    parser = argparse.ArgumentParser(description="Bundle the viewer's modules into one script.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the bundle was not made of the modules")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the modules")
    options = parser.parse_args(argv)
    target = options.folder / BUNDLE
    if options.check:
        first, _, body = target.read_text(encoding="utf-8").partition("\n")
        if first != stamp(options.folder, body):
            print(f"{target} is not made of the modules beside it. Run: make viewer", file=sys.stderr)
            return 1
        return 0
    try:
        run_tool(options.folder, *LINTER)
        body = run_tool(options.folder, *BUNDLER)
    except subprocess.CalledProcessError as error:
        print(error.stdout, file=sys.stderr)
        return 1
    target.write_text(f"{stamp(options.folder, body)}\n{body}", encoding="utf-8")
    return 0


def stamp(folder: Path, body: str) -> str:
    """Return the bundle's first line: a digest of the modules, of how they are bundled, and of what came out."""
    digest = hashlib.sha256(repr(BUNDLER).encode())
    for path in sorted(folder.glob("*.js")):
        if path.name not in NO_MODULES:
            digest.update(path.name.encode() + path.read_bytes())
    digest.update(body.encode())
    return f"// Made by scripts/bundle_viewer.py. {digest.hexdigest()}"


def run_tool(folder: Path, tool: str, *arguments: str) -> str:
    """Run a tool of npm in a folder and return what it says."""
    command = ["npm", "exec", "--yes", f"--package={tool}", "--", tool.partition("@")[0], *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
