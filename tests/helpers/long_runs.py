"""Storms, torn bytes and soaks: a sample in `make test`, all of it in `make test-long`."""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("GPUSTREAMLAB_LONG"))


def count(sample: int, full: int) -> int:
    """Return how many to try: the sample, or all of them in a long run."""
    return full if IS_LONG else sample
