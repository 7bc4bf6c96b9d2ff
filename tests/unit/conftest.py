"""What tests of several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[object]:
    """A simulated session; a module's `OPTIONS` say how it is opened, and its `STREAMS` which streams it has."""
    from gpustreamlab import Session

    with Session("sim", **getattr(request.module, "OPTIONS", {})) as session:
        for name in getattr(request.module, "STREAMS", ()):
            session.stream(name)
        yield session
