"""Streams of a session: where they work, who has selected them, and how the SMs are shared out."""
