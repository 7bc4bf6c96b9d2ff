"""Everything here needs a CUDA device. A skipped GPU run counts as a failed one, so nothing here skips."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def lab():
    from gpustreamlab import Session

    with Session("cuda", title="tests/gpu") as session:
        yield session
