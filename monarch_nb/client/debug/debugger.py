"""Where ranks of a mesh have stopped; asks and tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from monarch_nb.client.connections.bridge import call
from monarch_nb.config import cadence, patience
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand
from monarch_nb.shape import parse_targets

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

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

    @property
    def is_after_run(self) -> bool:
        """Whether it looks at the error of a run that has ended: nothing goes on when it is left."""
        return self.post_mortem and not self.run_id


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


ANSWER_WITHIN_S = cadence(2.0)
"""After this time an answer comes that says that the line is still executed."""
LOOK_WITHIN_S = patience(2.0)


class Debugger:
    """The stops of a mesh (or a part of one), in cells, scripts and endpoints, whoever runs these.

    Example:
        >>> debugger = Debugger(mesh)  # doctest: +SKIP
        >>> debugger.cast("0-1", "p loss")  # doctest: +SKIP
        {0: '0.25', 1: '0.31'}
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def stops(self) -> list[StopInfo]:
        """Return where ranks have stopped, sorted by actor and rank; ranks that do not answer are left out."""
        core, extent = self._mesh.core, self._mesh.extent
        replies = call(core.control(self._mesh.ranks, timeout_s=LOOK_WITHIN_S, stops=True))
        found = [
            stop_info(rank, extent.point(rank), core.connection_of(rank).name, stop)
            for rank, reply in replies.items()
            for stop in reply.stops
        ]
        return sorted(found, key=lambda stop: (stop.actor, stop.rank, stop.number))

    def attach(self, ranks: str, name: str = "") -> Attached:
        """Return the conversation with the pdb of a rank.

        Args:
            ranks: the rank, in one of the forms of `parse_targets`.
            name: of the actor; can be left out where only one has stopped.

        Raises:
            UsageError: nothing of that name has stopped there, or the name is missing; says what has stopped.
        """
        chosen = parse_targets(ranks, self._mesh.extent)
        if len(chosen) > 1:
            raise UsageError(f"attach talks to one rank, not to {format_ranks(chosen)}: cast {ranks} COMMAND asks all")
        stops = self.stops()
        name = actor_of(stops, name, ("attach", ranks))
        of_name = [stop for stop in stops if stop.actor == name]
        for stop in of_name:
            if stop.rank in chosen:
                return Attached(self._mesh, stop)
        stopped = format_ranks(stop.rank for stop in of_name)
        raise UsageError(f"No debug session for rank {chosen[0]} for actor {name}; there are {stopped}")

    def cast(self, ranks: str, line: str, name: str = "") -> dict[int, str]:
        """Send a line to the pdbs of ranks; return what each answers.

        Args:
            ranks: in one of the forms of `parse_targets`; those that have not stopped are left out.
            line: a command of pdb, or Python.
            name: of the actor; can be left out where only one has stopped.

        Raises:
            UsageError: none of these ranks has stopped, or the name is missing; says what has stopped.
        """
        meant = parse_targets(ranks, self._mesh.extent)
        stops = self.stops()
        name = actor_of(stops, name, ("cast", f"{ranks} {line}"))
        of_name = [stop for stop in stops if stop.actor == name]
        chosen = [stop for stop in of_name if stop.rank in meant]
        if not chosen:
            stopped = format_ranks(stop.rank for stop in of_name)
            raise UsageError(f"no stopped rank of {name} is among these; there are {stopped}")
        answers = call(self._tell_all(chosen, DebugCommand.ACTION_LINE, line))
        return {stop.rank: _answer_text(stop, answer) for stop, answer in zip(chosen, answers, strict=True)}

    def continue_all(self, run_id: str = "") -> list[StopInfo]:
        """Clear all breakpoints and let what has stopped (of one run, or all) go on; return what that was."""
        stops = [stop for stop in self.stops() if run_id in ("", stop.run_id)]
        call(self._tell_all(stops, DebugCommand.ACTION_CONTINUE))
        return stops

    def leave_errors(self) -> None:
        """Let go of the exceptions that `enter_errors` has entered."""
        entered = [stop for stop in self.stops() if stop.is_after_run]
        call(self._tell_all(entered, DebugCommand.ACTION_QUIT))

    def enter_errors(self) -> list[int]:
        """Stop at the last exception of every rank whose last run failed; return those ranks. Cells run meanwhile."""
        command = DebugCommand(action=DebugCommand.ACTION_POST_MORTEM, wait_s=ANSWER_WITHIN_S)
        replies = call(self._mesh.core.control(self._mesh.ranks, debug=command))
        return sorted(rank for rank, reply in replies.items() if reply.debug.state != DebugAnswer.STATE_GONE)

    def why_no_error(self) -> str:
        """Return why `enter_errors` has found nothing."""
        ranks = frozenset(self._mesh.ranks)
        runs = [info for info in self._mesh.past_runs() if info.done and not ranks.isdisjoint(info.ranks)]
        last = max(runs, key=lambda info: info.number, default=None)
        if last is None or not last.is_script or ranks.isdisjoint(last.failed):
            return f"no error to look at: the last run on {name_ranks(self._mesh.ranks)} did not fail"
        first = last.title.partition(" ")[0]
        keeps = f": %mesh run -i {last.title} keeps them" if first == "-m" or first.endswith(".py") else ""
        return f"{last.title} failed, and its processes have ended{keeps}"

    async def _tell_all(
        self, stops: Iterable[StopInfo], action: DebugCommand.Action.ValueType, line: str = ""
    ) -> list[DebugAnswer | None]:
        return list(await asyncio.gather(*(tell(self._mesh, stop, action, line) for stop in stops)))


class Attached:
    """The conversation with the pdb of one stopped rank.

    Attributes:
        stop: where it is.
        prompt: "(Pdb) ", or what `interact` and statements of several lines ask with.
        state: "asks", "executes" what it was told, or "gone": the code goes on, or the look at its error has ended.
    """

    def __init__(self, mesh: Mesh, stop: StopInfo) -> None:
        self._mesh, self.stop = mesh, stop
        self.prompt = "(Pdb) "
        self.state: Literal["asks", "executes", "gone"] = "asks"

    def look(self) -> str:
        """Return what pdb has said since it was last asked, or its last words if nothing is new."""
        return self._told("")

    def send(self, line: str) -> str:
        """Send a line; return what pdb prints until it asks again, or for a while."""
        return self._told(line or "\n")  # an empty one repeats the last command, or ends a block

    def _told(self, line: str) -> str:
        answer = call(tell(self._mesh, self.stop, DebugCommand.ACTION_LINE, line))
        if answer is None:
            self.state = "gone"
            return f"rank {self.stop.rank} does not answer\n"
        states: dict[int, Literal["asks", "executes"]] = {
            DebugAnswer.STATE_PROMPT: "asks",
            DebugAnswer.STATE_RUNNING: "executes",
        }
        self.state = states.get(answer.state, "gone")
        self.prompt = answer.prompt or self.prompt
        return answer.text


async def tell(mesh: Mesh, stop: StopInfo, action: DebugCommand.Action.ValueType, line: str = "") -> DebugAnswer | None:
    """Return a rank's answer; None when it does not come."""
    command = DebugCommand(stop=stop.number, action=action, line=line, wait_s=ANSWER_WITHIN_S)
    timeout_s = ANSWER_WITHIN_S + LOOK_WITHIN_S
    replies = await mesh.core.control([stop.rank], timeout_s=timeout_s, debug=command, run_id=stop.run_id)
    reply = replies.get(stop.rank)
    return reply.debug if reply is not None else None


def _answer_text(stop: StopInfo, answer: DebugAnswer | None) -> str:
    if answer is None:
        return "(does not answer)"
    if answer.state == DebugAnswer.STATE_RUNNING:
        return f"{answer.text}(still executes it)"
    if answer.state == DebugAnswer.STATE_GONE:
        return f"{answer.text}{'(left: its run has ended)' if stop.is_after_run else '(goes on)'}"
    return answer.text
