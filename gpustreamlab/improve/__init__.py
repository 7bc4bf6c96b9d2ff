"""Fix it and prove it: changes that are made by machine, run beside the program as it was, and kept only if they gain."""

from gpustreamlab.improve._improve import Advice, Improvement, Kept, Left, improve

__all__ = ["Advice", "Improvement", "Kept", "Left", "improve"]
