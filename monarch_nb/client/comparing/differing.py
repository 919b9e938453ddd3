"""The questions of a comparison, in order, and how ranks are asked them: only those that differ are asked for more than
one digest."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import pickle
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.client.comparing.report import (
    MOST_ROWS,
    MOST_VERSIONS,
    Compared,
    Difference,
    DiffReport,
    Version,
    compared,
)
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.debug.debugger import StopInfo, tell
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.proto.run_pb2 import DebugAnswer, DebugCommand
from monarch_nb.worker.comparing import Leaf, Looked

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

ANSWERS = "monarch_nb.worker.comparing"
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
        mesh: Mesh,
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


def pull_quietly(mesh: Mesh, title: str, ranks: tuple[int, ...], code: str) -> dict[int, bytes]:
    """Evaluate an expression on idle ranks, and return their values by rank.

    Args:
        title: of the run.
    """
    spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=code))
    return dict(zip(ranks, mesh.select(ranks)._finish_quietly(spec, title), strict=True))


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


MOST_BLOCKS = 4
"""The elements of so many blocks are compared; where more differ the greatest difference is at least what is told."""

MOST_ELEMENTS = 1 << 22
"""An answer has so many elements, of 8 bytes each, unless one tensor has more."""


def compare(
    asking: Asking, groups: Sequence[tuple[int, ...]], expression: str, begin: str, of_digests: str = ""
) -> DiffReport:
    """Return how ranks differ.

    Args:
        asking: the ranks.
        groups: ranks that are meant to be equal.
        expression: what is compared, for people.
        begin: the first question.
        of_digests: what the values are, if ranks tell digests of them.
    """
    everybody = [rank for group in groups for rank in group]
    first = asking.ask(everybody, begin)
    try:
        found = [_compared(asking, group, first) for group in groups]
        return DiffReport(expression, tuple(found), max(left_out for _, _, left_out in first.values()), of_digests)
    finally:
        with contextlib.suppress(MonarchNbError):  # a rank that is gone keeps nothing
            asking.ask(everybody, "end()")


def _compared(asking: Asking, group: tuple[int, ...], first: dict[int, Any]) -> Compared:
    alike: dict[str, list[int]] = {}
    for rank in group:
        alike.setdefault(first[rank][0], []).append(rank)
    told = asking.ask([ranks[0] for ranks in alike.values()], "leaves()")
    leaves = {tuple(ranks): [Leaf(*each) for each in told[ranks[0]]] for ranks in alike.values()}
    result = compared(leaves)
    shown = [each for each in result.differences if each.is_tensor][:MOST_ROWS]
    more = {id(each): better for each, better in zip(shown, _looked_at(asking, shown), strict=True)}
    return replace(result, differences=tuple(more.get(id(each), each) for each in result.differences))


def _looked_at(asking: Asking, differences: Sequence[Difference]) -> list[Difference]:
    """Return differences of tensors, with how far they are apart."""
    asked: dict[int, list[str]] = {}
    for difference in differences:
        for version in difference.versions[:MOST_VERSIONS]:
            asked.setdefault(version.ranks[0], []).append(difference.path)
    seen = asking.ask_each({rank: f"look_at({paths!r})" for rank, paths in asked.items()})
    pairs = [pair for difference in differences for pair in _pairs(difference, seen)]
    distances = {(pair.path, pair.other): _distance(pair, *told) for pair, told in _elements(asking, pairs)}
    return [_measured(difference, seen, distances) for difference in differences]


def _measured(
    difference: Difference, seen: Mapping[int, Mapping[str, Looked]], distances: Mapping[tuple[str, int], str]
) -> Difference:
    def better(version: Version) -> Version:
        own = seen.get(version.ranks[0], {}).get(difference.path)
        if own is None:
            return version
        distance = distances.get((difference.path, version.ranks[0]), "")
        return replace(version, distance=distance, nan=own.nan, inf=own.inf)

    return difference.with_versions(map(better, difference.versions))


class _Pair(NamedTuple):
    """Two versions of a tensor whose elements are to be compared.

    Attributes:
        path: the name.
        most, other: a rank that has the most common version, and one that has another.
        differing: the numbers of the blocks whose digests differ.
        block_elements, shape: of the tensor.
    """

    path: str
    most: int
    other: int
    differing: list[int]
    block_elements: int
    shape: list[int]

    @property
    def wanted(self) -> list[tuple[str, int]]:
        """The blocks of which the elements are compared."""
        return [(self.path, number) for number in self.differing[:MOST_BLOCKS]]

    @property
    def elements(self) -> int:
        """How many elements these blocks have at most."""
        return len(self.wanted) * min(self.block_elements, math.prod(self.shape))


def _pairs(difference: Difference, seen: Mapping[int, Mapping[str, Looked]]) -> Iterator[_Pair]:
    path, most = difference.path, difference.versions[0]
    reference = seen.get(most.ranks[0], {}).get(path)
    for version in difference.versions[1:]:
        own = seen.get(version.ranks[0], {}).get(path)
        if own is None or reference is None or version.facts != most.facts or own.shape != reference.shape:
            continue
        both = enumerate(zip(reference.blocks, own.blocks, strict=True))
        differing = [number for number, (one, other) in both if one != other]
        yield _Pair(path, most.ranks[0], version.ranks[0], differing, own.block_elements, own.shape)


def _elements(asking: Asking, pairs: Iterable[_Pair]) -> Iterator[tuple[_Pair, tuple[Any, Any]]]:
    """Yield pairs, each with the elements of the blocks of both versions. Small tensors are asked for together."""
    for batch in _batches(pairs):
        wanted: dict[int, list[tuple[str, int]]] = {}
        for pair in batch:
            for rank in (pair.most, pair.other):
                known = wanted.setdefault(rank, [])
                known.extend(block for block in pair.wanted if block not in known)
        told = asking.ask_each({rank: f"elements({blocks!r})" for rank, blocks in wanted.items()})
        found = {rank: dict(zip(blocks, told[rank], strict=True)) for rank, blocks in wanted.items()}
        for pair in batch:
            most, other = ([found[rank][block] for block in pair.wanted] for rank in (pair.most, pair.other))
            yield pair, (most, other)


def _batches(pairs: Iterable[_Pair]) -> Iterator[list[_Pair]]:
    """Yield pairs in lists of which the elements fit one answer."""
    batch: list[_Pair] = []
    for pair in pairs:
        if batch and sum(each.elements for each in batch) + pair.elements > MOST_ELEMENTS:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def _distance(pair: _Pair, most: Sequence[Any], other: Sequence[Any]) -> str:
    """Return how far two versions of a tensor are apart, from the elements of blocks whose digests differ."""
    greatest, place = 0.0, -1
    arrays = [(_array(one), _array(two)) for one, two in zip(most, other, strict=True)]
    for (_, number), (first, second) in zip(pair.wanted, arrays, strict=True):
        apart = [size if size - size == 0 else 0.0 for size in map(abs, map(sub, first, second))]
        if (most_here := max(apart)) > greatest:
            per_element = -(-len(first) // pair.block_elements)  # two numbers of a complex element
            greatest, place = most_here, number * pair.block_elements + apart.index(most_here) // per_element
    if place < 0:
        return _without_distance(arrays)
    at_least = "at least " if len(pair.differing) > MOST_BLOCKS else ""
    return f"greatest |difference| {at_least}{greatest:.3g} at {_index(place, pair.shape)}"


def _without_distance(pairs: Iterable[tuple[array[Any], array[Any]]]) -> str:
    apart = any(a != b and (a == a or b == b) for first, second in pairs for a, b in zip(first, second, strict=True))
    return "only where one is nan or inf" if apart else "only in the sign of zeros or the bits of nan"


def _array(told: tuple[str, bytes]) -> array[Any]:
    found: array[Any] = array(told[0])
    found.frombytes(told[1])
    return found


def _index(place: int, shape: Iterable[int]) -> list[int]:
    """Return the index of an element from its place in memory."""
    index: list[int] = []
    for size in reversed(list(shape)):
        place, within = divmod(place, size)
        index.insert(0, within)
    return index
