"""Where ranks have stopped: the table, and what equal answers look like. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import format_ranks, listed
from monarch_nb.proto import run_pb2

HEADERS = ("Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No.")


@dataclass(frozen=True)
class StopInfo:
    """A thread of a rank that has stopped.

    Attributes:
        number: of the stop on its rank.
        actor: whose endpoint it executes; "cell" in a cell or a script.
        rank, coordinates, host: where.
        function, file, line_number, line: where in the code.
        run_id: of what it executes.
        post_mortem: it has stopped after an exception.
        executes: it executes a line that its pdb was told, and will stop again.
    """

    number: int
    actor: str
    rank: int
    coordinates: Mapping[str, int]
    host: str
    function: str
    file: str
    line_number: int
    line: str
    run_id: str
    post_mortem: bool = False
    executes: bool = False

    @property
    def place(self) -> str:
        """Its line: "train.py:41"."""
        return f"{self.file}:{self.line_number}"


def stop_info(rank: int, coordinates: Mapping[str, int], host: str, stop: run_pb2.Stop) -> StopInfo:
    """Return what is known of a stop of a rank."""
    return StopInfo(
        number=stop.stop,
        actor=stop.actor,
        rank=rank,
        coordinates=dict(coordinates),
        host=host,
        function=stop.function,
        file=stop.file,
        line_number=stop.line_number,
        line=stop.line,
        run_id=stop.run_id,
        post_mortem=stop.post_mortem,
        executes=stop.executes,
    )


def stops_rows(stops: Iterable[StopInfo]) -> list[list[str]]:
    """Return the rows of the table, below HEADERS."""
    return [
        [
            stop.actor,
            str(stop.rank),
            str(dict(stop.coordinates)),
            stop.host,
            f"{stop.function}{' (error)' if stop.post_mortem else ''}{' (running)' if stop.executes else ''}",
            str(stop.line_number),
        ]
        for stop in stops
    ]


def stops_table(stops: Iterable[StopInfo]) -> str:
    """Return the table that `list` prints, as Monarch's looks."""
    rows = stops_rows(stops)
    widths = [max(len(row[column]) for row in (HEADERS, *rows)) for column in range(len(HEADERS))]
    numeric = (False, True, False, False, False, True)

    def drawn(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return "".join(f"| {cell} " for cell in padded) + "|"

    def rule(mark: str) -> str:
        return "".join(f"+{mark * (width + 2)}" for width in widths) + "+"

    lines = [rule("-"), drawn(HEADERS), rule("=")]
    for row in rows:
        lines += [drawn(row), rule("-")]
    return "\n".join(lines if rows else [*lines, rule("-")])


def actor_of(stops: Iterable[StopInfo], name: str, typed: tuple[str, str]) -> str:
    """Return the actor that is meant: `name`, or if that was left out, the only one that has stopped.

    Args:
        typed: what stands before and after the name in the line that was typed.

    Raises:
        UsageError: it has not stopped, or several have and none was named.

    Example:
        >>> actor_of([], "", ("attach", "2"))
        Traceback (most recent call last):
        monarch_nb.errors.UsageError: no rank has stopped
    """
    names = sorted({stop.actor for stop in stops})
    if not names:
        raise UsageError("no rank has stopped")
    if name and name not in names:
        raise UsageError(f"No debug sessions for actor {name}; stopped are {listed(names)}")
    if not name and len(names) > 1:
        before, after = typed
        raise UsageError(f"stopped are {listed(names)}: name one, as in {before} {names[0]} {after}")
    return name or names[0]


def folded(answers: Mapping[int, str]) -> str:
    """Return what ranks have answered, equal answers once, each behind its ranks.

    Example:
        >>> print(folded({0: "x = 1", 1: "x = 1", 2: "a\\nb"}))
        [0-1] x = 1
        [2]
        a
        b
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(answers):
        groups.setdefault(answers[rank].rstrip("\n"), []).append(rank)
    lines = []
    for text, ranks in groups.items():
        head = f"[{format_ranks(ranks)}]"
        lines.append(f"{head}\n{text}" if "\n" in text else f"{head} {text}".rstrip())
    return "\n".join(lines)
