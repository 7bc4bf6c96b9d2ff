"""Make kernel names readable."""

from __future__ import annotations

import re
from collections.abc import Iterator

SHORT_LIMIT = 96  # Longest short name, in characters
_KEPT = 72  # How many characters of template arguments a short name keeps


def short_name(full: str) -> str:
    """Return a kernel's own name: no return type, namespaces or arguments, and few template arguments.

    Examples
    --------
    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)")
    'vectorized_elementwise_kernel<4>'
    >>> short_name("void gemm_kernel<cutlass::half_t, 2>(Params)")
    'gemm_kernel<...>'
    >>> short_name("_ZN7cutlass6KernelI3LongEvT_")
    'Kernel<...>'
    """
    full = full.strip() or full
    short = full
    if full.startswith("_Z"):
        short = _read_linker_name(full) or full
    elif any(sign in full for sign in ("(", "::", "<")):
        short = _read_declaration(full) or full
    return short if len(short) <= SHORT_LIMIT else short[: SHORT_LIMIT - 1] + "…"


_TOKEN = re.compile(r"\(anonymous (?:namespace|class|enum|struct)\)|::|->|[<>(){}\[\] ]")
"""What gives a declaration its shape. No kernel is an operator, a lambda, or within a function."""
_PAIRS = {")": "(", "]": "[", "}": "{", ">": "<"}
_ARGUMENT = re.compile(r" ?(?:\([\w: ]{1,40}\)(?=-?\d))?([-\w][\w. ]{0,71}\*?) ?(?=[,>])")
"""A template argument that is worth keeping: a number, a word, a plain type. The cast before a number is left out."""
_LINKER_PART = re.compile(r"(?P<size>[1-9]\d{0,5})|N[rVKRO]*|L(?=\d)|St|S[0-9A-Z]*_")
"""A part of a linker name before its template arguments: the length of a word, the begin of a nested name, a known scope."""
_NUMBER = re.compile(r"(-?\d+)u?l{0,2}")


def _top_level(full: str) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens outside of all brackets, with where they begin and end; a pair of brackets is one token."""
    stack: list[str] = []
    counts = dict.fromkeys("([{<", 0)
    outer = 0
    for match in _TOKEN.finditer(full):
        token = match[0]
        if token in counts:
            if not stack:
                outer = match.start()
            stack.append(token)
            counts[token] += 1
        elif token in _PAIRS:
            opening = _PAIRS[token]
            # An angle bracket closes only its own: within others it is an operator.
            if not counts[opening] or (opening == "<" and stack[-1] != "<"):
                continue
            while (last := stack.pop()) != opening:
                counts[last] -= 1
            counts[opening] -= 1
            if not stack:
                yield full[outer], outer, match.end()
        elif not stack:
            yield token, match.start(), match.end()
    if stack:
        yield full[outer], outer, len(full)


def _read_declaration(full: str) -> str:
    begin, end, template = 0, len(full), -1
    for piece, start, after in _top_level(full):
        if piece in {"::", " "}:
            begin, template = after, -1
        elif piece == "<" and template < 0 and start > begin:
            template = start
        elif piece == "(":
            end = start
            break
    base = full[begin : end if template < 0 else template].strip()
    return base + _short_template(full, template) if base and template >= 0 else base


def _short_template(full: str, place: int) -> str:
    """Keep the template arguments before the first long one."""
    kept, place, length = [], place + 1, 0
    while (match := _ARGUMENT.match(full, place)) is not None:
        number = _NUMBER.fullmatch(match[1])
        kept.append(number[1] if number else match[1].strip())
        length += len(kept[-1]) + 2
        if length > _KEPT:
            kept.pop()
            break
        place = match.end() + 1
        if full[match.end()] == ">":
            break
    return f"<{', '.join(kept) or '...'}>"


def _read_linker_name(full: str) -> str:
    """Read a linker name as far as the first template arguments, for names that could not be demangled."""
    place, name, is_nested = 2, "", False
    while (match := _LINKER_PART.match(full, place)) is not None:
        place = match.end()
        if match["size"]:
            part = full[place : place + int(match["size"])]
            place += len(part)
            name = name if part.startswith("_GLOBAL__N_") else part
            if not is_nested:
                break
        is_nested = is_nested or match[0].startswith("N")
    return f"{name}<...>" if name and full[place : place + 1] == "I" else name
