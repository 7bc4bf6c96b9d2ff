"""Saved traces whose metadata a test changes: keys of the format, and what writes a file anew."""

from __future__ import annotations

import json

import pyarrow.parquet as pq

METADATA_KEY = b"gpustreamlab"
EDGES_KEY = b"gpustreamlab.edges"
COUNTERS_KEY = b"gpustreamlab.counters"
CHECKSUM_KEY = b"gpustreamlab.checksum"


def rewrite(path, change):
    """Change the facts in a saved file's schema metadata, and its columns; the checksum, which older files lack, goes."""
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata)
    del metadata[CHECKSUM_KEY]
    facts = json.loads(metadata[METADATA_KEY])
    table = change(table, facts, metadata) or table
    if METADATA_KEY in metadata:
        metadata[METADATA_KEY] = json.dumps(facts).encode()
    pq.write_table(table.replace_schema_metadata(metadata), path)
