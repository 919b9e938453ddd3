"""How ranks answer questions about what they hold: idle ranks in a run, stopped ones through their debuggers."""

from __future__ import annotations

import asyncio
import base64
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.debug.debugger import tell
from monarch_nb.client.debug.stops import StopInfo
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand

ANSWERS = "monarch_nb.worker.comparing.answers"
_PAGE = re.compile(r"<<(last|more) (.*?)>>", re.DOTALL)
_PATIENCE_S = patience(600.0)
"""A debugger hashes a value for no longer than this."""


class Asking:
    """Asks the ranks of a mesh.

    Args:
        mesh: the mesh, or a part of it.
        stops: where ranks have stopped; their expressions mean the variables that are seen there.
        pull: evaluates an expression on idle ranks, and returns their values by rank.
        answers: the module of ranks that has the functions that answer.
    """

    def __init__(
        self,
        mesh: HeldMesh,
        stops: Mapping[int, StopInfo],
        pull: Callable[[tuple[int, ...], str], dict[int, bytes]],
        answers: str = ANSWERS,
    ) -> None:
        self._mesh, self._stops, self._pull = mesh, stops, pull
        self._answers = _module(answers)

    def ask(self, ranks: Iterable[int], question: str) -> dict[int, Any]:
        """Return the answers of ranks.

        Args:
            question: a call of a function of the module that answers, as in "leaves()".

        Raises:
            RunFailed: ranks could not answer: the expression fails there.
            UsageError: the same, on ranks that have stopped.
        """
        wanted = tuple(sorted(ranks))
        idle = tuple(rank for rank in wanted if rank not in self._stops)
        stopped = [self._stops[rank] for rank in wanted if rank in self._stops]
        found = self._pull(idle, f"{self._answers}.{question}") if idle else {}
        if stopped:
            found |= call(self._ask_stopped(stopped, question))
        return {rank: pickle.loads(zlib.decompress(found[rank])) for rank in wanted}

    def ask_each(self, questions: Mapping[int, str]) -> dict[int, Any]:
        """Like `ask`, with a question for each rank. Ranks that have the same question are asked together."""
        ranks: dict[str, list[int]] = {}
        for rank, question in questions.items():
            ranks.setdefault(question, []).append(rank)
        return {rank: told for question in ranks for rank, told in self.ask(ranks[question], question).items()}

    async def _ask_stopped(self, stops: list[StopInfo], question: str) -> dict[int, bytes]:
        answers = await asyncio.gather(*(self._read(stop, question) for stop in stops))
        refusals: dict[str, list[int]] = {}
        for stop, answer in zip(stops, answers, strict=True):
            if isinstance(answer, str):
                refusals.setdefault(f"at {stop.place}: {answer}", []).append(stop.rank)
        if refusals:
            raise UsageError("\n".join(f"{name_ranks(ranks)}, {why}" for why, ranks in refusals.items()))
        return {stop.rank: answer for stop, answer in zip(stops, answers, strict=True) if isinstance(answer, bytes)}

    async def _read(self, stop: StopInfo, question: str) -> bytes | str:
        """Return a stopped rank's answer, which is read in pages; or what its debugger says instead."""
        text, page = "", 0
        while True:
            asked = f"{self._answers}.{question}" if page == 0 else 'b""'
            told = await self._tell(stop, f"!{_module(ANSWERS)}.printed({asked}, {page})")
            found = _PAGE.search(told)
            if found is None:
                return _last_line(told)
            text, page = text + found[2], page + 1
            if found[1] == "last":
                return base64.b64decode(text)

    async def _tell(self, stop: StopInfo, line: str) -> str:
        """Return what the debugger prints after a line, until it asks for the next one."""
        text = ""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                answer = await tell(self._mesh, stop, DebugCommand.ACTION_LINE, line)
                if answer is None or answer.state == DebugAnswer.STATE_GONE:
                    raise MonarchNbError(f"rank {stop.rank} went on while it was asked: ask again")
                text += answer.text
                if answer.state == DebugAnswer.STATE_PROMPT:
                    return text
                line = ""  # it still computes: an empty line only asks


def _module(name: str) -> str:
    return f'__import__("{name}", fromlist=["_"])'


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("*** ") if lines else "(nothing)"


def check_not_computing(computing: Iterable[int], run: str) -> None:
    """Raise UsageError if ranks compute now."""
    if ranks := sorted(computing):
        verb = "computes" if len(ranks) == 1 else "compute"
        raise UsageError(
            f"{name_ranks(ranks)} {verb}{f' ({run})' if run else ''}: --when-idle waits for the end, "
            "%mesh interrupt stops the run, a breakpoint() stops it at a line"
        )
