"""Put JupyterLite into the site: notebooks that run in the reader's browser, on the simulated device.

    python scripts/make_lite.py docs/_build/lite

The package's wheel is in it; Pyodide, NumPy and the rest come from the internet as a notebook is run. What is called is
`jupyter lite build`: jupyterlite-sphinx calls the same, with notebooks as they are, and these need a first cell that installs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = {"01-quickstart": "gpustreamlab scikit-image", "02-partitions": "gpustreamlab", "08-why-no-overlap": "gpustreamlab"}
"""What each has to install."""


def main(out: str) -> int:
    """Build the folder."""
    with tempfile.TemporaryDirectory() as made:
        wheels, files = Path(made, "pypi"), Path(made, "files")  # where JupyterLite looks for both
        files.mkdir()
        pure = os.environ | {"GPUSTREAMLAB_WHEEL": ""}
        pip = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT]
        subprocess.run([sys.executable, "-m", *pip], env=pure, check=True)
        for name, packages in NOTEBOOKS.items():
            (files / f"{name}.ipynb").write_text(with_install(ROOT / "notebooks" / f"{name}.ipynb", packages), encoding="utf-8")
        build = ["jupyter", "lite", "build", "--lite-dir", made, "--output-dir", Path(out).resolve(), "--apps", "lab"]
        subprocess.run([sys.executable, "-m", *build], cwd=made, check=True)
    return 0


def with_install(path: Path, packages: str) -> str:
    """Return a notebook without outputs, and with a first cell that installs what it needs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    code = {"cell_type": "code", "id": "install", "metadata": {}, "execution_count": None, "outputs": []}
    notebook["cells"].insert(0, code | {"source": f"%pip install -q {packages}"})
    notebook["metadata"]["kernelspec"] = {"name": "python", "display_name": "Python (Pyodide)", "language": "python"}
    return json.dumps(notebook)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
