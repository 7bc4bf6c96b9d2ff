"""The programs of the pages on causes that only a GPU has: each is explained by the cause of its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    page.stem: program[1]
    for page in sorted((Path(__file__).resolve().parents[2] / "docs" / "how-to" / "why").glob("*.md"))
    if (program := re.search(r"^```python needs=gpu\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
}
"""The first program of each such page, by the page's name."""
VARIABLES = {"queue-alias": "CUDA_DEVICE_MAX_CONNECTIONS", "serialised-by-tool": "CUDA_LAUNCH_BLOCKING"}
"""What the page says to set to 1."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of_a_page_is_explained_by_its_cause(name, monkeypatch):
    if name in VARIABLES:
        monkeypatch.setenv(VARIABLES[name], "1")
    code = f"{PROGRAMS[name]}\nlab.close()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert name.upper().replace("-", "_") in re.findall(r"^\d+\. (\w+)", done.stdout, re.MULTILINE), done.stdout
