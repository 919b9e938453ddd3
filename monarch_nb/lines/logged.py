"""Lines as logs hold them, with all that was rewritten: which may share a row, and which a row stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch_nb.lines.templates import (
    MAX_FOLDED_CHARACTERS,
    MAX_KNOWN_SHAPES,
    FoldBy,
    Kind,
    key_of,
    shape_of,
    skeletons_of,
)

MAX_FOLDED_BYTES = 4 * MAX_FOLDED_CHARACTERS
"""Longer lines fold only when they are equal."""
_MAY_HAVE_MOMENT = re.compile(rb"[:/-]\d\d|\r")
_Cut = tuple[bytes, tuple[tuple[int, int], ...]]
_known_cuts: dict[FoldBy, dict[bytes, _Cut]] = {"numbers": {}, "times": {}}
_MARKS = r"(?:\s*  \[[^\]]{1,99}\]! .{1,999})?"
"""What stands behind a row: which ranks have other numbers."""
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def final_text(line: str) -> str:
    """Return what is left to see of a line that was rewritten, as progress bars are.

    Example:
        >>> final_text("10 %\\r20 %\\r")
        '20 %'
    """
    return next((part for part in reversed(line.split("\r")) if part), "") if "\r" in line else line


def keys_of(lines: Sequence[bytes], by: FoldBy) -> Sequence[bytes]:
    """Return for each line what it has in common with those that may share its row; see `key_of`.

    Example:
        >>> keys_of([b"loss 2.31"], "numbers") == keys_of([b"loss 2.35"], "numbers")
        True
    """
    if by in ("equal", "off"):
        return lines
    together = b"\n".join(lines)
    if by == "times" and not _MAY_HAVE_MOMENT.search(together):
        return lines
    known, keys = _known_cuts[by], []
    for line, skeleton in zip(lines, skeletons_of(together).split(b"\n"), strict=True):
        cut = known.get(skeleton)
        if cut is None:
            cut = _cut_of(line, by)
            if len(known) >= MAX_KNOWN_SHAPES:
                known.clear()
            if len(line) <= MAX_FOLDED_BYTES:
                known[skeleton] = cut
        template, kept = cut
        keys.append(b"\0".join((template, *[line[start:end] for start, end in kept])))
    return keys


def _cut_of(line: bytes, by: FoldBy) -> _Cut:
    """Return what of a line is its key: what all lines have whose digits stand in the same places, and where it is."""
    if len(line) > MAX_FOLDED_BYTES:
        return b"", ((0, len(line)),)
    text = line.decode("utf-8", "surrogateescape")
    seen = final_text(text)
    first = text.rindex(seen)
    shape = shape_of(seen)
    if not may_differ(seen, by):
        template, kept = b"", [(0, len(seen))]
    elif by == "numbers":
        template = shape.template.encode("utf-8", "surrogatepass")
        kept = [(start, end) for kind, start, end in shape.tokens if kind is Kind.LITERAL]
    else:
        moments = [(start, end) for kind, start, end in shape.tokens if kind is Kind.MOMENT]
        template = b"\0"
        kept = list(zip([0, *(end for _, end in moments)], [*(start for start, _ in moments), len(seen)], strict=True))

    def offset(place: int) -> int:
        return len(text[: first + place].encode("utf-8", "surrogateescape"))

    return template, tuple((offset(start), offset(end)) for start, end in kept)


def may_differ(line: str, by: FoldBy) -> bool:
    """Whether lines that are not equal to it may share its row."""
    return by in ("numbers", "times") and key_of(line, by) != line


def is_shown_as(line: str, shown: str) -> bool:
    """Whether a row that shows `shown` may stand for a line: they are alike but for numbers and times.

    Example:
        >>> is_shown_as("step 5: loss 2.31", "step 5: loss 2.31–2.35")
        True
        >>> is_shown_as("step 6: loss 2.31", "step 5: loss 2.31–2.35")
        False
    """
    line, shown = _ESCAPE.sub("", final_text(line)), _ESCAPE.sub("", shown)
    if line.rstrip() == shown.rstrip():
        return True
    pieces: list[str] = []
    at = 0
    for kind, start, end in shape_of(line).tokens:
        if kind is not Kind.LITERAL:
            pieces += (re.escape(line[at:start]), ".{1,80}?")
            at = end
    pattern = "".join((*pieces, re.escape(line[at:].rstrip()), _MARKS))
    return re.fullmatch(pattern, shown.rstrip()) is not None


def is_alike(line: str, other: str) -> bool:
    """Whether two lines differ in numbers and times only.

    Example:
        >>> is_alike("step 5: loss 2.31", "step 5: loss 2.35")
        True
    """
    return key_of(final_text(line), "numbers") == key_of(final_text(other), "numbers")
