"""Where changes of a running session go: live views, and a file."""
