"""Many processes, on one host or several: one trace, on one clock."""
