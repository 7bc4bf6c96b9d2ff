"""Names that differ by a number: "h2d 0", "h2d 1" and so on are one group in a legend or a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

# As `nameGroup` of viewer/legend.js. A number that stands by itself; "fp16" and "128x64" have none.
_NUMBER = re.compile(r"(?<![^\s_\-#:/.\[(])[0-9]+(?![^\s_\-:/.,\])])")


def name_group(name: str) -> str:
    """Return the name with a star for each number that stands by itself; names of C++ are left as they are.

    Examples
    --------
    >>> [name_group(name) for name in ("h2d 12", "layer.3.mlp", "step 1/8", "gemm_fp16", "void add<4>(int, 8)")]
    ['h2d *', 'layer.*.mlp', 'step */*', 'gemm_fp16', 'void add<4>(int, 8)']
    """
    return name if "<" in name or "::" in name else _NUMBER.sub("*", name)


def group_labels(names: Sequence[str]) -> list[str]:
    """Return for each name that of its group; its own where it is the only one.

    Examples
    --------
    >>> group_labels(["h2d 0", "h2d 1", "step 0"])
    ['h2d *', 'h2d *', 'step 0']
    """
    sizes = Counter(map(name_group, set(names)))
    return [group if sizes[group := name_group(name)] > 1 else name for name in names]
