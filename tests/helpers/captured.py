"""What a source of activities told, in short."""

from __future__ import annotations

from gpustreamlab.backends.cuda.cupti._layouts import RecordKind

CALL_RECORDS = {RecordKind.DRIVER, RecordKind.RUNTIME}


def drain_all(source, card, count=3):
    """Drain a few times as the session's thread does, 0.2 s apart."""
    parts = []
    for _ in range(count):
        card.advance(200_000_000)
        parts.append(source.drain())
    return parts


def keep_for(source, card, duration_ns):
    """Let the session's thread do its work for a while."""
    parts = []
    for _ in range(int(duration_ns) // 200_000_000):
        card.advance(200_000_000)
        if source.keep_up():
            parts.append(source.drain())
    return parts


def kernels_of(parts):
    return [
        (part.names[name], stream, end - start)
        for part in parts
        for name, stream, start, end in zip(
            part.work.name.tolist(),
            part.work.stream.tolist(),
            part.work.start_ns.tolist(),
            part.work.end_ns.tolist(),
            strict=True,
        )
    ]


def calls_of(parts):
    return [part.names[name] for part in parts for name in part.calls.name.tolist()]
