"""What many ranks print, in one cell: the client's processor time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator

from bench.harness import RANKS, Bench, Outcome, Row
from monarch_nb.branches.alike import pack
from monarch_nb.branches.folding import fold, joined_alike
from monarch_nb.client.connections.decoding import OutputDecoder
from monarch_nb.notebook.output.view import RunView
from monarch_nb.proto import allocator_pb2 as pb

MANY_RANKS, LINES = 128, 10_000
TREE_RANKS, TREE_LINES = (8, 128, 1024), 200
_PIECE_LINES = 25
_PIECE_S = 0.04


class _Cell:
    """A cell of a notebook that is told what comes, at its own pace: its clock goes on with what is printed, and with
    the processor's time."""

    def __init__(self, ranks: int) -> None:
        self.printed_s = 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._view = RunView(range(ranks), lambda bundle, update: None, self._call_later, by="numbers", clock=self._now)
        self._decoder = OutputDecoder(lambda rank, model: None)

    def _now(self) -> float:
        return self.printed_s + time.process_time()

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._later.append((self._now() + delay_s, callback))

    def take_in(self, message: bytes) -> None:
        for event in self._decoder.events_of(pb.Output.FromString(message)):
            self._view.on_event(event)
        now_s = self._now()
        due = [callback for at_s, callback in self._later if at_s <= now_s]
        self._later = [(at_s, callback) for at_s, callback in self._later if at_s > now_s]
        for callback in due:
            callback()

    def fold_alone(self, message: bytes) -> None:
        """Take in what comes, and show nothing."""
        for event in self._decoder.events_of(pb.Output.FromString(message)):
            self._view._fold.add(event)

    def close(self) -> None:
        self._view.close()


def measure(bench: Bench) -> Outcome:
    lines = LINES // bench.repeats(1, 10)
    one_by_one = _processor_s(_messages(lines, are_equal=True, are_joined=False))
    joined = _processor_s(_messages(lines, are_equal=True, are_joined=True))
    different = _processor_s(_messages(lines, are_equal=False, are_joined=True))
    return Outcome(
        f"{different:.1f} s where numbers differ, {joined:.1f} s where lines are equal",
        different <= 1.5 * one_by_one,
        f"equal lines that come from each rank by itself, {one_by_one:.1f} s",
        f"{different / one_by_one:.2f} and {joined / one_by_one:.2f} times",
    )


def measure_tree(bench: Bench) -> Outcome:
    lines = TREE_LINES // bench.repeats(1, 4)
    found = {ranks: _of_tree(ranks, lines) for ranks in TREE_RANKS}
    told = ", ".join(
        f"{ranks:,} ranks {alone_s * 1e6 / lines:.0f} µs ({shown_s * 1e6 / lines:.0f} µs)"
        for ranks, (alone_s, shown_s) in found.items()
    )
    few_s, many_s = found[min(TREE_RANKS)][0], found[max(TREE_RANKS)][0]
    return Outcome(told, many_s <= 1.5 * few_s, "8 ranks", f"{many_s / few_s:.2f} times")


def _of_tree(ranks: int, lines: int) -> tuple[float, float]:
    """Return what the client spends on lines of so many ranks when it shows nothing, and when it shows them."""
    messages = [*_through_a_tree(ranks, lines)]
    spent_s = []
    for alone in (True, False):
        cell = _Cell(ranks)
        began_s = time.process_time()
        for message in messages:
            if alone:
                cell.fold_alone(message)
            else:
                cell.take_in(message)
                cell.printed_s += _PIECE_S
        if not alone:
            cell.close()
        spent_s.append(time.process_time() - began_s)
    return spent_s[0], spent_s[1]


def _through_a_tree(ranks: int, lines: int) -> Iterator[bytes]:
    """Yield what the first node of a tree sends: a line of all ranks at a time."""
    numbers = random.Random(0)
    for step in range(lines):
        level = []
        for first in range(0, ranks, RANKS):
            outputs = [
                pb.RankOutput(rank=rank, items=[pb.OutputItem(stdout=_line(step, numbers).encode())])
                for rank in range(first, first + RANKS)
            ]
            level.append(pb.SessionEvent(output=pb.Output(run_id="run", ranks=pack(outputs))))
        while len(level) > 1:
            level = [fold(level[at : at + 2])[0][0] for at in range(0, len(level), 2)]
        yield level[0].output.SerializeToString()


def _processor_s(messages: Iterable[bytes]) -> float:
    cell, made = _Cell(MANY_RANKS), list(messages)
    began_s = time.process_time()
    for message in made:
        cell.take_in(message)
        cell.printed_s += _PIECE_S * RANKS / MANY_RANKS
    cell.close()
    return time.process_time() - began_s


def _messages(lines: int, *, are_equal: bool, are_joined: bool) -> Iterator[bytes]:
    """Yield what comes from nodes of 8 ranks in turn, some lines of each rank at a time."""
    of_each = random.Random(0)
    for start in range(0, lines, _PIECE_LINES):
        steps = range(start, min(lines, start + _PIECE_LINES))
        for first in range(0, MANY_RANKS, RANKS):
            outputs = []
            for rank in range(first, first + RANKS):
                text = "".join(_line(step, random.Random(step) if are_equal else of_each) for step in steps)
                outputs.append(pb.RankOutput(rank=rank, items=[pb.OutputItem(stdout=text.encode())]))
            if are_joined:
                outputs = pack(joined_alike([(each.rank, list(each.items), each.cursor) for each in outputs]))
            yield pb.Output(run_id="run", ranks=outputs).SerializeToString()


def _line(step: int, numbers: random.Random) -> str:
    """Return a line as TorchTitan logs it."""
    return (
        f"[titan] 2026-11-26 11:{step // 60 % 60:02}:{step % 60:02},{numbers.randrange(1000):03} - root - INFO - "
        f"step: {step:5}  loss: {numbers.uniform(7, 8):8.4f}  grad_norm: {numbers.uniform(0.5, 1):.4f}  "
        f"memory:  1.18GiB(3.71%)  tps: {numbers.randrange(9000, 11000):,}  mfu: {numbers.uniform(30, 34):.2f}%\n"
    )


ROWS = [
    Row(
        "fold",
        f"{MANY_RANKS} ranks printing {LINES:,} lines each whose numbers differ",
        "the client's processor time at most 1.5 times that of equal lines, each rank's by itself",
        "In this process: messages as 16 nodes send them, 25 lines of each of their 8 ranks at a time, are read, "
        "decoded and folded, and shown as a cell does, which spends a tenth of its time on that. No flood is elided. "
        "Three "
        "times: with equal lines of which each rank's is a text of its own, with equal lines that nodes have joined, "
        "and with lines in which each rank has its own loss, speed and time of day.",
        measure,
    ),
    Row(
        "fold-tree",
        "a line of 8, 128 and 1,024 ranks whose numbers differ, through a tree: the client's processor time",
        "to take in a line of 1,024 ranks at most 1.5 times what one of 8 takes",
        f"In this process: each message has one line of all ranks, as the first node of a tree sends it. {TREE_LINES} "
        "lines are read, decoded and folded. In brackets: the same with all that a cell does to show them, which is "
        "a tenth of its time at most while it runs.",
        measure_tree,
    ),
]
