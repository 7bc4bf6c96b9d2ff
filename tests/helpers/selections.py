"""What is selected in a thread, and the ranges that a trace has, in words."""

from __future__ import annotations


def selected(lab):
    """Return the lane by name, as the session says and as the array module has it."""
    current, by_backend = lab.current, lab._backend.selected_stream
    if current is None:
        assert by_backend is lab._backend.null_stream
        return None
    assert by_backend is current._backend_stream
    return current.name


def tools_stream(lab, name):
    """Return a stream of a session that has a name as those on which it measures."""
    return lab._table.get(name, None, ..., None, is_tools=True)


def names_of(trace):
    """Return each span's name."""
    return [trace.names[code] for code in trace.name]


def rows_of(trace):
    """Return each span's lane, name and its parent's name or None, in the order of their start."""
    named = names_of(trace)
    return [
        (trace.lanes[trace.lane[row]].name, named[row], named[parent] if (parent := trace.parent[row]) >= 0 else None)
        for row in trace.start_ns.argsort(kind="stable")
    ]


def parents(lab):
    """Return each range's name and its parent's, or None, once all work has ended."""
    if lab.state == "open":
        lab.synchronize()
    return {name: parent for _, name, parent in rows_of(lab.trace)}
