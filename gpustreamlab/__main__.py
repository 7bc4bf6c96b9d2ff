"""``python -m gpustreamlab``: the ``gpustreamlab`` command of this interpreter."""

from __future__ import annotations

import sys

from gpustreamlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
