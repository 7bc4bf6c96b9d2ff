"""Traces that other tools recorded."""
