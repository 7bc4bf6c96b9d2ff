"""The programs of the pages on causes that only a GPU has: each is explained by the cause of its page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    page.stem: programs
    for page in sorted((Path(__file__).resolve().parents[2] / "docs" / "how-to" / "why").glob("*.md"))
    if (programs := re.findall(r"^```python needs=gpu\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
}
"""The program of each such page, and where it has one the mended one, by the page's name."""
WALL = """
if "lab" in globals():
    lab.synchronize()
frame = (trace if "trace" in globals() else lab.trace).to_pandas()
frame = frame[frame["kind"].astype(str).isin(["kernel", "copy", "fill"])]
print("wall", int(frame.end_ns.max() - frame.start_ns.min()))
if "lab" in globals():
    lab.clear()
"""
UNTOLD = {"page-faults"}
"""What a session does not record: only the change is measured here; tests of reports of others have the cause."""
VARIABLES = {"queue-alias": "CUDA_DEVICE_MAX_CONNECTIONS", "serialised-by-tool": "CUDA_LAUNCH_BLOCKING"}
"""What the page says to set to 1."""


def run(name, monkeypatch, *code):
    """Run a page's code in a process of its own; return what it prints."""
    if name in VARIABLES:
        monkeypatch.setenv(VARIABLES[name], "1")
    whole = "\n".join([*code, "if 'lab' in globals(): lab.close()"])
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - UNTOLD))
def test_the_program_of_a_page_is_explained_by_its_cause(name, monkeypatch):
    told = run(name, monkeypatch, PROGRAMS[name][0])
    assert name.upper().replace("-", "_") in re.findall(r"^\d+\. (\w+)", told, re.MULTILINE), told


@pytest.mark.parametrize("name", [name for name, programs in PROGRAMS.items() if len(programs) > 1])
def test_the_mended_program_of_a_page_is_faster(name, monkeypatch):
    first, mended = PROGRAMS[name]
    told = run(name, monkeypatch, first, WALL, mended, WALL)
    before_ns, after_ns = map(int, re.findall(r"^wall (\d+)", told, re.MULTILINE))
    assert after_ns < 0.95 * before_ns, told
