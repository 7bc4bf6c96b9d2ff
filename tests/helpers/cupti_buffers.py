"""Activity buffers as CUPTI writes them, of any version, from dicts."""

from __future__ import annotations

import numpy as np

from gpustreamlab.backends.cuda.cupti._layouts import find_layouts


def record(kind, layouts, fields=(), *, filler=0):
    """Return the bytes of one record; what is not a field of it is filled."""
    data = np.full(layouts.sizes[kind], filler, np.uint8)
    data[:4].view("<u4")[0] = kind
    for name, value in dict(fields).items():
        offset, format_ = layouts.fields[kind][name]
        column = np.ndarray((1,), np.dtype({"names": ["x"], "formats": [format_], "offsets": [0]}), data, offset)
        column["x"][0] = value
    return data


def build_buffer(records, version=130001, *, filler=0):
    """Return a buffer of records, given as (kind, fields)."""
    layouts = find_layouts(version)
    parts = [record(kind, layouts, fields, filler=filler) for kind, fields in records]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def random_buffer(kinds, version=130001, *, seed=0):
    """Return a buffer of records of the given kinds, with noise for fields, made fast."""
    layouts = find_layouts(version)
    kinds = np.asarray(kinds, np.uint32)
    size_of = np.zeros(256, np.int64)
    size_of[list(layouts.sizes)] = list(layouts.sizes.values())
    ends = np.cumsum(size_of[kinds])
    data = np.random.default_rng(seed).integers(0, 256, int(ends[-1]) if kinds.size else 0, dtype=np.uint8)
    data.view("<u4")[(ends - size_of[kinds]) // 4] = kinds
    return data


def read_slowly(data, layouts):
    """Read a buffer record by record, as plainly as it can be done: (kind, fields) of each, and how many bytes were left."""
    raw, place, found = data.tobytes(), 0, []
    while place + 4 <= len(raw):
        kind = raw[place]
        size = layouts.sizes.get(kind)
        if size is None or place + size > len(raw):
            break
        fields = {}
        for name, (offset, format_) in layouts.fields.get(kind, {}).items():
            values = np.frombuffer(raw, np.dtype(format_).base, int(np.prod(np.dtype(format_).shape)), place + offset)
            fields[name] = values.tolist() if np.dtype(format_).shape else values[0].item()
        found.append((kind, fields))
        place += size
    return found, len(raw) - place
