"""Benchmarks: one file a question; run one with ``python -m bench.NAME``, all with ``make bench``."""
