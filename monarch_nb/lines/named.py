"""Numbers in a line that have names beside them: `loss: 7.80102`, `loss=2.3`, `train/loss 2.31`, `'loss': 2.3`.

A name is at most five words, or three where neither ":" nor "=" follows: more words are prose. Blanks in it become "_".
A number is written as Python or C prints it, with or without thousands separators: `9,012`. `1.234,5`, dates, times of
day, versions and hexadecimal digits are text.

The step of a line is the number beside a name such as `step`, `iter` or `global_step`; else the progress of a bar
(`5/100`), counted on over epochs where the line names the epoch; else the epoch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

XKind = Literal["step", "epoch", "line"]

LOOKED_AT_CHARACTERS = 4096
"""Of a longer line only the beginning is looked at."""
MAX_FIELDS = 64
"""A line that has more numbers with names is looked at so far."""
_STEPS = frozenset(("step", "steps", "global_step", "globalstep", "optimizer_step"))
_ITERATIONS = frozenset(("it", "iter", "iters", "iteration", "iterations", "global_iter", "iter_num"))
STEP_NAMES = _STEPS | _ITERATIONS | {"update", "updates", "num_updates"}
_PHASES = frozenset(("train", "training", "val", "valid", "validate", "validation", "eval", "evaluation", "test"))
_LEVELS = frozenset(("DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL"))
_BATCH_NAMES = frozenset(("batch", "batch_idx", "batch_index", "minibatch"))
_NUMBER = re.compile(
    r"(?<![\w.,@#/^*])(?<!\w[-+])[-+]?(?:\d(?:[\d.,]*\d)?|\.\d+)(?:[eE][-+]?\d+)?(?!\d)|(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)",
    re.IGNORECASE,
)
_DECIMAL = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"\d[\d,]*")
_WORD = r"[^\W\d](?:[\w./@#*+%^&-]*[\w%*])?"
_SUFFIX = r"(?:[ _]?[(\[][^()\[\]\d]{1,16}[)\]])?"
_OPENING = r"(?:[\[(\"'~≈$]\s*|[A-Za-z_][\w.]*\(\[?)?"
_BEFORE = r"(?:^\s*|[,;|(){}\[\]·•:<>]\s*|\s[-–—]\s+|\s{2,}|\t)[\"'`]?"
_NAMED = re.compile(rf"{_BEFORE}(?P<name>{_WORD}(?: {_WORD}){{0,4}}{_SUFFIX})[\"'`]?\s*(?::=|=>|->|[:=])\s*{_OPENING}$")
_BESIDE = re.compile(rf"{_BEFORE}(?P<name>{_WORD}(?: {_WORD}){{0,2}})[\"'`]?(?:\s+|\s*(?=[\[(]\s*$)){_OPENING}$")
_BETWEEN = re.compile(r"\s*[(\[]\s*$")
_AFTER = re.compile(r"(?P<dot>\.(?!\d))?(?P<unit>[A-Za-zµμ°%‰][A-Za-zµμ°%²/]{0,11})?")
_OF = re.compile(r"\s?/\s?(\d[\d,]*)(?![\w/.])")
_NOT_A_NUMBER = re.compile(r"[:/\-]\d|['’]\d|_|\w|\.\d")
_UNIT = re.compile(
    r" (ns|us|µs|ms|sec|secs|seconds|s|[kKMGT]i?B|bytes|%|[A-Za-z]+/(?:s|sec|second|gpu|step)|[TGP]?FLOP[sS]?)"
    r"(?=\s{2}|\s*(?:$|[,;|()\]}·]))"
)
_CLOCK = re.compile(r"\s+\d+:\d\d")
_PROSE = frozenset(
    ("of", "in", "at", "to", "from", "for", "on", "by", "with", "after", "over", "under", "per", "until")
)
_PROSE |= {"and", "the", "a", "an", "than", "is", "was", "are"}


@dataclass(frozen=True, slots=True)
class Field:
    """A number of a line, and its name.

    Attributes:
        unit: what stands behind it: "%", "GiB", "it/s"; empty when nothing does.
        start, end: where its text is in the line. name_start, name_end: where its name is.
    """

    name: str
    unit: str
    text: str
    start: int
    end: int
    name_start: int = 0
    name_end: int = 0

    @property
    def value(self) -> float:
        """The number itself."""
        return float(self.text.replace(",", ""))


@dataclass(frozen=True, slots=True)
class Step:
    """What of a line says how far the training was: a number; of a bar also its end; and the epoch, if it is whole."""

    kind: XKind
    number: Field | None = None
    end: Field | None = None
    epoch: Field | None = None

    @property
    def parts(self) -> tuple[Field, ...]:
        """The numbers that it is made of."""
        return tuple(each for each in (self.number, self.end, self.epoch) if each is not None)

    @staticmethod
    def at(number: float, end: float, epoch: float) -> float:
        """Return the step of a bar that names its epoch, from the values of `parts`."""
        return epoch * end + number


@dataclass(frozen=True, slots=True)
class Named:
    """What a line says.

    Attributes:
        fields: its numbers that have names, each name once.
    """

    fields: tuple[Field, ...]
    step: Step


def read(line: str) -> Named:
    """Return the numbers of a line that have names, and its step. Escape codes are not in it any more.

    Example:
        >>> line = "step 5/100 | train loss: 2.31 | mfu: 30.1%"
        >>> [(field.name, field.value, field.unit) for field in read(line).fields]
        [('step', 5.0, ''), ('train_loss', 2.31, ''), ('mfu', 30.1, '%')]
    """
    scan = _Scan(line[:LOOKED_AT_CHARACTERS])
    scan.run()
    return Named(tuple(scan.fields.values()), scan.step())


class _Scan:
    """Goes through a line from number to number. What stands between two of them may have the name of the second."""

    def __init__(self, line: str) -> None:
        self._line = line
        self.fields: dict[str, Field] = {}
        self._progress: dict[str, Field] = {}
        """By the name of what they are the end of; "" of the last without a name."""
        self._bar: Field | None = None
        self._labelled: Field | None = None
        """The number before, whose name the next one has as well when that stands in brackets behind it."""

    def run(self) -> None:
        position = 0
        while len(self.fields) < MAX_FIELDS and (match := _NUMBER.search(self._line, position)):
            position = self._take(position, match.start(), match.end())

    def _take(self, gap_start: int, start: int, end: int) -> int:
        """Take in a number; return where to go on."""
        line = self._line
        text = line[start:end]
        before, self._labelled = self._labelled, None
        after = _AFTER.match(line, end)
        assert after is not None
        unit = after["unit"] or ""
        behind = after.end()
        of = _OF.match(line, end) if _WHOLE.fullmatch(text) else None
        if of is not None:
            behind, unit = of.end(), ""
        elif _NOT_A_NUMBER.match(line, behind):  # an identifier, a date, a time of day, a version
            return behind + 1
        if not (_DECIMAL.fullmatch(text) or text[-1].isalpha() or text[-1] in "nNfFyY"):
            return behind
        if not unit and of is None and (apart := _UNIT.match(line, behind)):
            unit, behind = apart[1], apart.end()
        gap = line[gap_start:start]
        if line[max(0, start - 2) : start].strip() == ":" and line[start - 2 : start - 1].isdigit():
            return behind
        if unit == "%" and line[behind : behind + 1] == "|":  # of a bar
            return behind
        name, name_start, name_end = _name_in(line, gap_start, start)
        field = Field(name, unit, text, start, end, name_start, name_end)
        if not name and of is None and before is not None and _BETWEEN.fullmatch(gap):
            if unit and unit != before.unit:
                self._add(replace(before, name=f"{before.name} ({unit})", unit=unit, text=text, start=start, end=end))
        elif name:
            self._add(field)
            self._labelled = field
            if of is not None:
                self._progress[name] = Field(name, "", of[1], of.start(1), of.end(1))
        elif of is not None and not (start == 0 and _CLOCK.match(line, behind)):
            self._bar = field
            self._progress[""] = Field("", "", of[1], of.start(1), of.end(1))
        elif unit.endswith(("/s", "/sec")):
            self._add(Field(unit, unit, text, start, end))
        return behind

    def _add(self, field: Field) -> None:
        if field.name not in self.fields:
            self.fields[field.name] = field

    def step(self) -> Step:
        """Return what says how far it is."""
        step = epoch = batch = None
        for name, field in self.fields.items():
            last = name.rpartition("/")[2].lower()
            phase, _, what = last.partition("_")
            what = what if phase in _PHASES else last
            is_whole = not field.unit and _WHOLE.fullmatch(field.text)
            if is_whole and what in STEP_NAMES:
                step = step or field
            elif what in ("epoch", "ep") and not field.unit:
                epoch = epoch or field
            elif is_whole and what in _BATCH_NAMES:
                batch = batch or field
        number = step or self._bar or (batch if batch and batch.name in self._progress else None)
        if number is not None:
            is_whole = epoch is not None and _WHOLE.fullmatch(epoch.text)
            return Step("step", number, self._progress.get(number.name), epoch if is_whole else None)
        if epoch is not None and batch is None and epoch.text[-1].isdigit():
            return Step("epoch", epoch)
        return Step("line")


def _name_in(line: str, start: int, end: int) -> tuple[str, int, int]:
    """Return the name at the end of what stands before a number, and where it is; empty when there is none."""
    first = max(start, end - 80)
    gap = line[first:end]
    match = _NAMED.search(gap)
    if match is None:
        match = _BESIDE.search(gap)
        if match is None or match["name"].rpartition(" ")[2].lower() in _PROSE:
            return "", 0, 0
    words = match["name"].split()
    name = "_".join(words[1:] if words[0] in _LEVELS and words[1:] else words)
    return name, first + match.start("name"), first + match.end("name")


class Ambiguous(LookupError):
    """A name means several; `args` are these."""


def canonical(name: str) -> str:
    """Return a name as it is in `named`: with "_" for blanks.

    Example:
        >>> canonical("train loss")
        'train_loss'
    """
    return "_".join(name.split())


def find(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name that is meant: this one, the same in other letters, or the only one that ends with it after "/".

    Raises:
        Ambiguous: it may be several.

    Example:
        >>> find("loss", ["train/loss", "step"])
        'train/loss'
    """
    names = list(names)
    if wanted in names:
        return wanted
    wanted = canonical(wanted)
    if wanted in names:
        return wanted
    lowered = wanted.lower()
    for alike in (
        [name for name in names if name.lower() == lowered],
        [name for name in names if name.lower().rpartition("/")[2] == lowered],
    ):
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise Ambiguous(*sorted(alike))
    return None


def nearest(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that are most like one that is not there.

    Example:
        >>> nearest("los", ["loss", "lr", "grad_norm"])
        ['loss']
    """
    by_lower = {name.lower(): name for name in names}
    lowered = canonical(wanted).lower()
    near = difflib.get_close_matches(lowered, by_lower, most, 0.5)
    near += [each for each in by_lower if lowered in each and each not in near]
    return [by_lower[each] for each in near[:most]]
