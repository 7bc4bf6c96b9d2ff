"""A JupyterLab of our own, on this machine only, and a page that drives it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

START_LIMIT_S = 120.0
PRINT_LIMIT_S = 30.0
QUIET_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
}


HARMLESS = ("Disabling terminals", "Connection lost, reconnecting", "Plugin ")  # the last where the machine is slow
# The notebook's tab, also while that of an output is in front.
PANEL = "[...window.jupyterapp.shell.widgets('main')].find(tab => tab.content?.activeCellIndex !== undefined)"
KERNEL = f"{PANEL}.sessionContext.session.kernel"
EXECUTE = (
    f"""async code => {{
  const kernel = {KERNEL}
"""
    + """
  const future = kernel.requestExecute({code, store_history: false})
  let text = ''
  future.onIOPub = message => {
    if (message.header.msg_type === 'stream') text += message.content.text
    if (message.header.msg_type === 'error') text += message.content.evalue
  }
  await future.done
  return text
}"""
)

# Ends the kernels of all notebooks of a page and closes their tabs, unsaved; false where a question is still asked.
CLOSE_TABS = """async () => {
  for (const tab of [...jupyterapp.shell.widgets('main')]) {
    await tab.sessionContext?.shutdown().catch(() => undefined)
    tab.dispose()
  }
  window.gslIsEmpty = true
  return !document.querySelector('.jp-Dialog')
}"""


class NotebookPage:
    """A notebook in JupyterLab, in a page of the browser; collects what the console complains about."""

    def __init__(self, page):
        self.page, self.errors = page, []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(f"{error} {error.stack}"))

    def _note(self, kind, text):
        if kind in {"error", "warning"} and not text.startswith(HARMLESS):
            self.errors.append(text)

    def command(self, name, arguments=None):
        """Run a command and wait for it; what it returns, often a whole widget, stays in the page."""
        self.page.evaluate(
            "async ([name, given]) => { await jupyterapp.commands.execute(name, given) }", [name, arguments or {}]
        )

    def load(self, url):
        """Open a notebook: in the JupyterLab that is in the page, if all its tabs were closed, or in a new one."""
        if self.page.evaluate("'gslIsEmpty' in window && delete window.gslIsEmpty"):
            self.command("docmanager:open", {"path": url.rpartition("/lab/tree/")[2].partition("?")[0]})
            self.wait_for_kernel()
            return
        self.page.goto(url)
        self.wait_for_kernel()
        self.command("application:toggle-left-area")

    def open(self, url):
        """Open a notebook and run all its cells."""
        self.load(url)
        self.command("notebook:run-all-cells")

    def change_theme(self, name):
        """Change the theme, and wait for the splash over the page: two at once make JupyterLab itself fail."""
        self.command("apputils:change-theme", {"theme": name})
        self.wait("() => !document.getElementById('jupyterlab-splash')")

    def wait_for_kernel(self):
        self.page.wait_for_selector(".jp-Notebook .jp-Cell:visible")  # the first of all may be in a tab behind
        self.page.evaluate("async () => { await PANEL.sessionContext.ready }".replace("PANEL", PANEL))

    def kernel(self, code):
        """Run something in the kernel, and return what it printed."""
        return self.page.evaluate(EXECUTE, code).strip()

    def wait_for_print(self, code, text):
        """Run something in the kernel until it prints this."""
        end = time.monotonic() + PRINT_LIMIT_S
        while (printed := self.kernel(code)) != text:
            assert time.monotonic() < end, f"{printed!r} is not {text!r}"
            self.page.wait_for_timeout(50)

    def start_in_kernel(self, code):
        """Let the kernel run something without waiting for it."""
        self.page.evaluate(f"code => {{ ({EXECUTE})(code) }}", code)

    def wait(self, expression, argument=None, timeout_ms=30_000):
        self.page.wait_for_function(expression, arg=argument, timeout=timeout_ms)


class LabWindows:
    """Windows that tests of one server lend each other: a notebook opens there for a third of what a new JupyterLab takes."""

    def __init__(self, browser):
        # One context: a second JupyterLab takes its scripts from the cache of the first.
        self._context, self._free, self._is_doubted = browser.new_context(), [], False

    @contextmanager
    def lending(self):
        """Lend a function that returns a page without a notebook, and take all pages back in the end."""
        lent = []
        self._is_doubted = False

        def lend(*, height=1000):
            page = self._free.pop() if self._free else self._context.new_page()
            page.set_viewport_size({"width": 1200, "height": height})
            lent.append(page)
            return page

        yield lend
        for page in lent:
            if not self._is_doubted and page.evaluate(CLOSE_TABS):
                self._free.append(page)
            else:
                page.close()

    def doubt(self):
        """Close the windows of a test that failed."""
        self._is_doubted = True


class Jupyter:
    """A running server."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.url, self.token, self.folder = url, token, folder

    def write_notebook(self, name: str, cells: list[str]) -> str:
        """Write a notebook of code cells and return its address."""
        made = [
            {"cell_type": "code", "id": f"cell{n}", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
            for n, source in enumerate(cells)
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        book = {"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / f"{name}.ipynb").write_text(json.dumps(book), encoding="utf-8")
        return self.address(f"{name}.ipynb")

    def copy_notebook(self, path: Path) -> str:
        """Copy a notebook into the server's folder and return its address."""
        shutil.copy(path, self.folder)
        return self.address(path.name)

    def address(self, name: str) -> str:
        """Return where JupyterLab opens a file of the server's folder."""
        return f"{self.url}/lab/tree/{name}?token={self.token}&reset"


@contextmanager
def running_jupyter(folder: Path, *, base_url: str = "/"):
    """Start JupyterLab in a folder on a free port of the loopback device, and end it; JupyterHub gives servers a `base_url`."""
    port, token = free_port(), secrets.token_hex(16)
    home, work = folder / "home", folder / "work"
    work.mkdir(parents=True)
    for name, values in QUIET_SETTINGS.items():
        file = home / "settings" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    places = {
        "HOME": home,
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
    }
    environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}", "--LabApp.expose_app_in_browser=True"),
        *("--LabApp.extension_manager=readonly", "--allow-root", "--ServerApp.terminals_enabled=False"),
        f"--ServerApp.base_url={base_url}",
    ]
    url = f"http://127.0.0.1:{port}{base_url.rstrip('/')}"
    with (folder / "jupyter.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=work)
        try:
            wait_until_answers(f"{url}/api?token={token}", server)
            yield Jupyter(url, token, work)
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def free_port() -> int:
    """Return a port of the loopback device that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_answers(url: str, server: subprocess.Popen) -> None:
    """Wait until the server answers; say so where it ended instead."""
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with status {server.returncode}; see jupyter.log")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer within {START_LIMIT_S:.0f} s")
