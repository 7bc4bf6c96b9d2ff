"""The page of a live timeline: an anywidget that is sent spans and draws them by itself."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from gpustreamlab.draw import packed_bokeh, viewer_script, viewer_style
from gpustreamlab.live import Update

_STATIC = Path(__file__).parent / "static"
_MESSAGES = 16
"""A page that is being loaded takes no messages, but keeps what the last of each of so many names said."""


class TimelinePage(anywidget.AnyWidget):
    """What JupyterLab shows of a live timeline.

    The widget outlives the session; it knows nothing of it but a function that packs all spans so far.

    Parameters
    ----------
    take_snapshot
        Returns everything up to the last update, for a page that comes later.
    figure
        The empty figure, as an item of BokehJS.
    capacity
        How many spans the page holds.
    """

    _esm = f"{viewer_script()}\n{(_STATIC / 'timeline.js').read_text(encoding='utf-8')}"
    _css = f"{viewer_style()}\n{(_STATIC / 'timeline.css').read_text(encoding='utf-8')}"

    item = traitlets.Unicode().tag(sync=True)
    """The figure, as JSON."""
    bokeh_gz = traitlets.Bytes().tag(sync=True)
    """BokehJS, compressed."""
    bokeh_version = traitlets.Unicode().tag(sync=True)
    """Its version: of several in one page, each is loaded once."""
    feed_id = traitlets.Unicode().tag(sync=True)
    """Tells the spans of several timelines in one page apart; also the id of the widget's model, by which the page keeps a
    picture in the notebook's metadata."""
    capacity = traitlets.Int().tag(sync=True)
    """How many spans the page holds."""
    message_count = traitlets.Int(_MESSAGES).tag(sync=True)
    """Updates are called ``update_0``, ``update_1`` and so on, and begin again after so many."""
    status = traitlets.Dict().tag(sync=True)
    """``state``: live, failing or closed; ``text``: what the page says about it."""
    snapshot = traitlets.Dict().tag(sync=True, to_json=lambda _, page: page.pack_snapshot())
    """Made when it is asked for: by a page that loads, or has missed an update."""

    def __init__(self, take_snapshot: Callable[[], Update], figure: Mapping[str, Any], *, capacity: int) -> None:
        import bokeh

        self._take_snapshot = take_snapshot
        self._sending = threading.Lock()
        feed_id = uuid.uuid4().hex
        super().__init__(
            model_id=feed_id,
            item=json.dumps(figure, separators=(",", ":")),
            bokeh_gz=packed_bokeh(),
            bokeh_version=bokeh.__version__,
            feed_id=feed_id,
            capacity=capacity,
            status={"state": "live", "text": ""},
        )
        self.on_msg(self._take_message)

    def __repr__(self) -> str:
        return f"<TimelinePage: {self.status.get('state', 'closed')}>"

    def send_update(self, update: Update) -> None:
        """Send what is new, as one message. It goes out at once, also while a cell runs."""
        name = f"update_{update.facts['number'] % _MESSAGES}"
        with self._sending:
            if self.comm is not None:
                state = {name: {"facts": update.facts, "blob": None}}
                # As a change of state, but not of a trait: the kernel keeps no copy.
                message = {"method": "update", "state": state, "buffer_paths": [[name, "blob"]]}
                self.comm.send(data=message, buffers=[update.blob])

    def say(self, state: str, text: str = "") -> None:
        """Show what has become of the session."""
        status = {"state": state, "text": text}
        if self.status != status:
            self.status = status

    def freeze(self, last: Update) -> None:
        """Keep the last snapshot, and let go of where it came from."""
        self._take_snapshot = lambda: last

    def pack_snapshot(self) -> dict[str, Any]:
        """Return everything so far, as the page takes it."""
        update = self._take_snapshot()
        return {"facts": update.facts, "blob": update.blob}

    def _take_message(self, _widget: object, content: object, _buffers: object) -> None:
        """Answer a page that has missed an update."""
        if isinstance(content, Mapping) and content.get("ask") == "snapshot":
            self.send_state("snapshot")
