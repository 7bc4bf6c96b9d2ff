"""Random numbers that runs on copies draw are drawn again by the program itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpustreamlab.backends import Backend


@contextmanager
def kept_random_state(backend: Backend) -> Iterator[None]:
    """Put the global generators back at the end of a ``with`` block: Python's, NumPy's, the array module's and torch's.

    A generator that a variable holds is copied with the program's other inputs.
    """
    plain, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's may be this one
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        with backend.keeping_random_state():
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy_state)  # noqa: NPY002 - likewise
        if torch is not None:
            torch.set_rng_state(torch_state)
        if device_states is not None:
            torch.cuda.set_rng_state_all(device_states)
