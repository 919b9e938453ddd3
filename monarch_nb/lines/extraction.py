"""Numbers with names from many lines at once, in microseconds a line: a line is taken apart once for its shape.

Two lines have one shape when they differ only in digits. How many shapes and names are remembered is bounded; of lines
of further shapes what is wanted is found all the same, only slower.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from monarch_nb.lines.named import LOOKED_AT_CHARACTERS, Field, Named, Step, read

MAX_SHAPES = 4096
MAX_SHAPE_BYTES = 4 << 20
"""Of the shapes that are remembered, together."""
MAX_NAMES = 512
_MAX_VARIANTS = 256
_DIGITS = b"0123456789"
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_](?:[^\x07\x1b]|\x1b(?!\\))*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]"
)
_DIGIT_RUN = re.compile(rb"\d+")
_TRACEBACK = re.compile(
    rb'^(?:Traceback \(most recent call last\):\n)?  File "[^"\n]*", line \d+.*(?:\n  .*)*'
    rb"(?:\n[\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*)?",
    re.MULTILINE,
)
"""As Python prints one: `rate = 7` in a line of code there is no number that a program has printed."""

Key = tuple[str, str]
"""A name, and the unit that its numbers have."""


@dataclass(slots=True)
class Taken:
    """Numbers of alike lines.

    Attributes:
        places: which of the lines they are from, ascending.
        kind: of what `x` has: "step", "epoch", the name that was asked for; "line": `x` is empty.
        step: the name of what counts the steps in `x`, empty when a bar does; None when `x` has no steps.
        ends, epochs: how many steps the bars have, and the epochs that the lines name; else empty.
        values: for each key its numbers.
    """

    keys: tuple[Key, ...]
    kind: str
    places: list[int] = field(default_factory=list)
    x: list[float] = field(default_factory=list)
    values: tuple[list[float], ...] = ()
    step: str | None = None
    ends: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Known:
    """What is known of a name.

    Attributes:
        count: how many lines had it. ranks: whose.
        last: the number of the last line of the lowest rank.
    """

    count: int = 0
    last: float = 0.0
    ranks: set[int] = field(default_factory=set)
    place: tuple[int, int] = (0, 0)


class _Seen:
    """What was seen of lines that have the same names."""

    def __init__(self) -> None:
        self.count = 0
        self.ranks: set[int] = set()
        self._last = b""
        self.place = (0, 0)
        self._read: tuple[Field, ...] | None = None

    def add(self, count: int, last: bytes, rank: int, place: int) -> None:
        """Some more lines were seen; of the lowest rank the last one counts."""
        self.count += count
        self.ranks.add(rank)
        if (-rank, place) >= self.place or not self._last:
            self._last, self.place, self._read = last, (-rank, place), None

    def fields(self) -> tuple[Field, ...]:
        """Return the numbers of the last line."""
        if self._read is None:
            self._read = read(self._last.decode(errors="replace")).fields
        return self._read


class _Variant:
    """How the lines of a shape that have the same names are taken apart."""

    def __init__(self, line: bytes, named: Named, wanted: Callable[[str], bool], x_name: str) -> None:
        self.named = named
        fields = [each for each in named.fields if wanted(each.name)]
        self._x = _x_of(named, x_name)
        if self._x is None:
            fields = []
        self.keys = tuple((each.name, each.unit) for each in fields)
        parts = (*fields, *_parts_of(self._x))
        self.pattern = _pattern(line, parts, named) if fields else None
        self.find = self._finder(line, parts, named)
        order = sorted(set(parts), key=lambda part: part.start)
        self._groups = [order.index(part) for part in parts]
        self._commas = any("," in part.text for part in parts)
        self.rows: list[tuple[bytes, ...]] = []
        self.places: list[int] = []
        self.seen = _Seen()

    def _finder(self, line: bytes, parts: Iterable[Field], named: Named) -> Callable[[bytes], re.Match[bytes] | None]:
        """Return what finds the parts in a line. To look for the first name's text is faster than to go through all
        that is before it, and right where that text comes but once."""
        if self.pattern is None:
            return lambda _: None
        first = min(parts, key=lambda part: part.start)
        name = line.decode(errors="replace")[first.name_start : first.start].encode()
        if not first.name_end or line.count(name) != 1 or any(map(name.__contains__, _DIGITS)):
            return self.pattern.match
        return _pattern(line, parts, named, first.name_start).search

    def flush(self) -> Taken:
        """Return what was found since, and begin anew."""
        columns = list(zip(*self.rows, strict=True))
        rows = [self._numbers(columns[group]) for group in self._groups]
        assert self._x is not None
        taken = _taken(self.keys, self.places, self._x, rows)
        self.rows, self.places = [], []
        return taken

    def _numbers(self, texts: Iterable[bytes]) -> list[float]:
        return list(map(float, [text.replace(b",", b"") for text in texts] if self._commas else texts))


class _Shape:
    """Lines that differ only in digits: they may differ in digits of names, as `Acc@1` and `Acc@5`."""

    def __init__(self, line: bytes, named: Named) -> None:
        runs = [run for run in _DIGIT_RUN.finditer(line) if _is_in_name(line, run, named)]
        self.names = _digits_pattern(line, runs) if runs else None
        self.variants: dict[tuple[bytes, ...], _Variant] = {}
        self.only: _Variant | None = None
        self.seen = _Seen()


class Extraction:
    """Takes numbers out of lines. Ranks may share one: it knows nothing of where lines are from.

    Args:
        wanted: the names whose numbers are wanted.
        x: the name of what they are against; empty: what a line itself has as its step.

    Attributes:
        unlisted_lines: how many lines are of shapes that are not remembered any more: their names are not listed.
    """

    def __init__(self, wanted: Iterable[str] | None = (), x: str = "") -> None:
        names = None if wanted is None else frozenset(wanted)
        self._wanted: Callable[[str], bool] = (lambda _: True) if names is None else names.__contains__
        self._wants, self._x = names is None or bool(names), x
        self._needles = [_needle(name) for name in names or ()]
        self._shapes: dict[bytes, _Shape] = {}
        self._takers: dict[bytes, _Shape] = {}
        self._shape_bytes = self._place = 0
        self.unlisted_lines = 0

    def take(self, data: bytes, rank: int = 0) -> list[Taken]:
        """Take in whole lines of a rank; return what is wanted of them."""
        lines, shapes = _split(data)
        last = dict(zip(shapes, lines, strict=True))
        unlisted = False
        for shape, count in Counter(shapes).items():
            if (known := self._shapes.get(shape)) is None:
                known = self._learn(shape, last[shape])
            if known is None:
                self.unlisted_lines += count
                unlisted = True
            elif known.names is None:
                known.seen.add(count, last[shape], rank, self._place)
        self._place += 1
        if not (self._takers or (unlisted and self._wants)):
            return []
        return self._pick(lines, shapes, rank, unlisted=unlisted)

    def _learn(self, shape: bytes, line: bytes) -> _Shape | None:
        if len(self._shapes) >= MAX_SHAPES or self._shape_bytes + len(shape) > MAX_SHAPE_BYTES:
            return None
        self._shape_bytes += len(shape)
        named = read(line.decode(errors="replace"))
        known = self._shapes[shape] = _Shape(line, named)
        variant = _Variant(line, named, self._wanted, self._x)
        if known.names is None:
            known.only = variant
        if variant.pattern is not None or known.names is not None:
            self._takers[shape] = known
        return known

    def _pick(self, lines: list[bytes], shapes: list[bytes], rank: int, *, unlisted: bool) -> list[Taken]:
        used: dict[int, _Variant] = {}
        taken: list[Taken] = []
        takers, known = self._takers.get, self._shapes
        for place, (line, of) in enumerate(zip(lines, shapes, strict=True)):
            shape = takers(of)
            if shape is None:
                if unlisted and of not in known and any(needle in of for needle in self._needles or (b"",)):
                    taken += self._pick_slowly(place, line)
                continue
            variant = shape.only or self._variant(shape, line, rank)
            if variant is None or variant.pattern is None:
                continue
            if match := variant.find(line):
                variant.rows.append(match.groups())
                variant.places.append(place)
                used[id(variant)] = variant
            else:
                taken += self._pick_slowly(place, line)
        return [*(variant.flush() for variant in used.values()), *taken]

    def _variant(self, shape: _Shape, line: bytes, rank: int) -> _Variant | None:
        """Return how a line is taken apart whose names have digits, and count it."""
        assert shape.names is not None
        match = shape.names.match(line)
        if match is None:
            return None
        variant = shape.variants.get(match.groups())
        if variant is None:
            if len(shape.variants) >= _MAX_VARIANTS:
                self.unlisted_lines += 1
                return None
            named = read(line.decode(errors="replace"))
            variant = shape.variants[match.groups()] = _Variant(line, named, self._wanted, self._x)
        variant.seen.add(1, line, rank, self._place)
        return variant

    def _pick_slowly(self, place: int, line: bytes) -> list[Taken]:
        named = read(line.decode(errors="replace"))
        fields = [each for each in named.fields if self._wanted(each.name)]
        x = _x_of(named, self._x)
        if not fields or x is None:
            return []
        keys = tuple((each.name, each.unit) for each in fields)
        return [_taken(keys, [place], x, [[part.value] for part in (*fields, *_parts_of(x))])]

    def names(self) -> dict[Key, Known]:
        """Return what is known of each name that lines have had."""
        found: dict[Key, Known] = {}
        for seen in self._seen():
            for each in seen.fields():
                key = each.name, each.unit
                if key not in found and len(found) >= MAX_NAMES:
                    continue
                known = found.setdefault(key, Known(place=seen.place))
                known.count += seen.count
                known.ranks |= seen.ranks
                if seen.place >= known.place:
                    known.place, known.last = seen.place, each.value
        return found

    def _seen(self) -> Iterator[_Seen]:
        for shape in self._shapes.values():
            if shape.names is None:
                yield shape.seen
            for variant in shape.variants.values():
                yield variant.seen


def _split(data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return lines, as people see them, and their shapes."""
    if b"\x1b" in data:
        data = _ESCAPE.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r", b"\n")
    if b'", line ' in data:
        data = _TRACEBACK.sub(lambda found: b"\n" * found[0].count(b"\n"), data)
    lines = data.split(b"\n")
    if max(map(len, lines)) > LOOKED_AT_CHARACTERS:
        lines = [line[:LOOKED_AT_CHARACTERS] for line in lines]
        data = b"\n".join(lines)
    return lines, data.translate(None, _DIGITS).split(b"\n")


def _needle(name: str) -> bytes:
    """Return what a shape has for sure when its lines have a name."""
    word = re.split(r"[_ ]", name.partition(" (")[0])[-1]
    return word.encode(errors="replace").translate(None, _DIGITS)


def _x_of(named: Named, x_name: str) -> Step | Field | None:
    """Return what the numbers of a line are against; None when it is not there."""
    return next((each for each in named.fields if each.name == x_name), None) if x_name else named.step


def _parts_of(x: Step | Field | None) -> tuple[Field, ...]:
    return x.parts if isinstance(x, Step) else (x,) if x else ()


def _taken(keys: tuple[Key, ...], places: list[int], x: Step | Field, rows: list[list[float]]) -> Taken:
    """Return the numbers of some lines.

    Args:
        rows: of each key, then of each part of `x`.
    """
    values, at = tuple(rows[: len(keys)]), rows[len(keys) :]
    if isinstance(x, Field):
        return Taken(keys, x.name, places, at[0], values)
    if x.number is None:
        return Taken(keys, x.kind, places, [], values)
    if x.end is not None and x.epoch is not None:
        steps = [Step.at(*each) for each in zip(*at, strict=True)]
        return Taken(keys, x.kind, places, steps, values, x.number.name)
    ends = at[1] if x.end is not None else []
    epochs = at[1] if x.epoch is not None else []
    return Taken(keys, x.kind, places, at[0], values, x.number.name, ends, epochs)


def _is_in_name(line: bytes, run: re.Match[bytes], named: Named) -> bool:
    start = len(line[: run.start()].decode(errors="replace"))
    return any(each.name_start <= start < each.name_end for each in named.fields)


def _digits_pattern(line: bytes, captured: Iterable[re.Match[bytes]]) -> re.Pattern[bytes]:
    spans = {run.span() for run in captured}
    pieces, position = [], 0
    for run in _DIGIT_RUN.finditer(line):
        pieces += [re.escape(line[position : run.start()]), rb"(\d+)" if run.span() in spans else rb"\d+"]
        position = run.end()
    return re.compile(b"".join(pieces))


def _pattern(line: bytes, parts: Iterable[Field], named: Named, position: int = 0) -> re.Pattern[bytes]:
    """Return what matches a line of this shape and captures parts of it: outside of names any digits will do."""
    text = line.decode(errors="replace")
    pieces = []
    for part in sorted(set(parts), key=lambda part: part.start):
        pieces += [_any_digits(text, position, part.start, named), b"(", _any_digits(text, part.start, part.end), b")"]
        position = part.end
    return re.compile(b"".join(pieces))


def _any_digits(text: str, start: int, end: int, named: Named | None = None) -> bytes:
    pieces, position = [], start
    for run in re.compile(r"\d+").finditer(text, start, end):
        in_name = named is not None and any(each.name_start <= run.start() < each.name_end for each in named.fields)
        if not in_name:
            pieces += [re.escape(text[position : run.start()].encode()), rb"\d+"]
            position = run.end()
    return b"".join([*pieces, re.escape(text[position:end].encode())])
