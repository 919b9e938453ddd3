"""Asks and tells the ranks of a mesh that have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.debug.stops import StopInfo, actor_of, stop_info
from monarch_nb.config import cadence, patience
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand
from monarch_nb.shape import parse_targets

if TYPE_CHECKING:
    from monarch_nb.client.runs.needs import HeldMesh

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

    def __init__(self, mesh: HeldMesh) -> None:
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
        return {stop.rank: _answer_text(answer) for stop, answer in zip(chosen, answers, strict=True)}

    def continue_all(self, run_id: str = "") -> list[StopInfo]:
        """Clear all breakpoints and let what has stopped (of one run, or all) go on; return what that was."""
        stops = [stop for stop in self.stops() if run_id in ("", stop.run_id)]
        call(self._tell_all(stops, DebugCommand.ACTION_CONTINUE))
        return stops

    def leave_errors(self) -> None:
        """Let go of the exceptions that `enter_errors` has entered."""
        entered = [stop for stop in self.stops() if stop.post_mortem and not stop.run_id]
        call(self._tell_all(entered, DebugCommand.ACTION_QUIT))

    def enter_errors(self) -> list[int]:
        """Stop at the last exception of every rank whose last run failed; return those ranks. Cells run meanwhile."""
        command = DebugCommand(action=DebugCommand.ACTION_POST_MORTEM, wait_s=ANSWER_WITHIN_S)
        replies = call(self._mesh.core.control(self._mesh.ranks, debug=command))
        return sorted(rank for rank, reply in replies.items() if reply.debug.state != DebugAnswer.STATE_GONE)

    async def _tell_all(
        self, stops: Iterable[StopInfo], action: DebugCommand.Action.ValueType, line: str = ""
    ) -> list[DebugAnswer | None]:
        return list(await asyncio.gather(*(tell(self._mesh, stop, action, line) for stop in stops)))


class Attached:
    """The conversation with the pdb of one stopped rank.

    Attributes:
        stop: where it is.
        prompt: "(Pdb) ", or what `interact` and statements of several lines ask with.
        state: "asks", "executes" what it was told, or "gone": the code goes on.
    """

    def __init__(self, mesh: HeldMesh, stop: StopInfo) -> None:
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


async def tell(
    mesh: HeldMesh, stop: StopInfo, action: DebugCommand.Action.ValueType, line: str = ""
) -> DebugAnswer | None:
    """Return a rank's answer; None when it does not come."""
    command = DebugCommand(stop=stop.number, action=action, line=line, wait_s=ANSWER_WITHIN_S)
    timeout_s = ANSWER_WITHIN_S + LOOK_WITHIN_S
    replies = await mesh.core.control([stop.rank], timeout_s=timeout_s, debug=command, run_id=stop.run_id)
    reply = replies.get(stop.rank)
    return reply.debug if reply is not None else None


def _answer_text(answer: DebugAnswer | None) -> str:
    if answer is None:
        return "(does not answer)"
    if answer.state == DebugAnswer.STATE_RUNNING:
        return f"{answer.text}(still executes it)"
    if answer.state == DebugAnswer.STATE_GONE:
        return f"{answer.text}(goes on)"
    return answer.text
