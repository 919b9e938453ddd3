"""What ranks wrote, run after run: folded, with how runs failed, and nothing is left out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.infos import RunInfo
from monarch_nb.errors import RankFailure
from monarch_nb.ground import escapes
from monarch_nb.notebook.output.logs import Endings, earlier_lines, folded_lines


def test_logs_fold_and_lose_nothing() -> None:
    def records(run: int, ranks: int, lines: int) -> list[LogRecord]:
        return [
            LogRecord(r, "stdout", run, f"{'same' if i % 2 else r} {i}\n") for r in range(ranks) for i in range(lines)
        ]

    def lines_of(batches: list[list[LogRecord]]) -> list[str]:
        return list(folded_lines(batches, Endings(list, range(8))))

    lines = lines_of([[*records(1, 2, 2), *records(2, 1, 1)]])
    assert lines == ["── run 1 ──", "[0] 0 0", "[1] 1 0", "[0-1] same 1", "── run 2 ──", "[0] 0 0"]
    many = lines_of([records(3, 8, 400)])
    assert len(many) == 1 + 200 + 8 * 200
    assert lines_of([]) == []
    assert lines_of([records(1, 2, 1), records(1, 2, 1), records(2, 1, 1)])[3:] == [
        "[0] 0 0",
        "[1] 1 0",
        "── run 2 ──",
        "[0] 0 0",
    ]
    assert lines_of([[LogRecord(0, "stderr", 1, "no line end")]])[1:] == ["[0] no line end"]


def test_lines_are_whole_however_long_and_in_how_many_pieces() -> None:
    line = "".join(f"{number} " for number in range(30_000))
    pieces = [line[start : start + 65_536] for start in range(0, len(line), 65_536)]
    for colour in ("", "\x1b[31m"):
        texts = [colour + pieces[0], *pieces[1:-1], pieces[-1] + "\n"]
        records = [LogRecord(rank, "stdout", 1, text) for rank in range(2) for text in texts]
        shown = list(folded_lines([records], Endings(list, range(2))))[-1]
        assert escapes.strip(shown) == f"[0-1] {line}"


def test_who_sees_the_newest_lines_only_is_told_how_many_there_are_besides() -> None:
    written = Counter({0: 120, 1: 119, 2: 7})
    assert list(earlier_lines(Counter({0: 50, 1: 50, 2: 7}), written, is_all=True)) == [
        "… 139 earlier lines on ranks 0-1 not shown: `%mesh logs -n 0` shows all"
    ]
    assert list(earlier_lines(Counter({0: 119}), Counter({0: 120}), is_all=False)) == [
        "… at least 1 earlier line on rank 0 not shown: `%mesh logs -n 0` shows all"
    ]
    assert list(earlier_lines(Counter({0: 50}), Counter({0: 50}), is_all=True)) == [], "it printed just as many"
    assert list(earlier_lines(Counter({0: 50}), Counter(), is_all=False)) == [
        "… earlier lines are not shown: `%mesh logs -n 0` shows all"
    ]


def failed(rank: int, message: str = "boom", rendered: str = "") -> RankFailure:
    return RankFailure(rank, "node0", "error", "ValueError", message, rendered, "Cell In[12]:3")


class TestEndings:
    RUNS: ClassVar = [
        RunInfo("a", 1, "load()", (0, 1), (0, 1), True, 0.0, 11, failures=(failed(0), failed(1))),
        RunInfo(
            "b", 2, "train()", (0, 1), (0, 1), True, 0.0, 12, failures=(failed(1, "odd\nmore", "Traceback\n  odd"),)
        ),
        RunInfo("c", 3, "pass", (0, 1), (0, 1), True, 0.0, 0),
        RunInfo(
            "d", 4, "exit", (0, 1), (0, 1), True, 0.0, 13, failures=(RankFailure(0, "n", "died", "RankDied", "killed"),)
        ),
    ]

    def shown(
        self, *numbers: int, only: int | None = None, ranks: Sequence[int] = (0, 1), cut_off: bool = False
    ) -> str:
        endings = Endings(lambda: self.RUNS, ranks, only, cut_off)
        records = [LogRecord(0, "stdout", number, "hello\n") for number in numbers]
        return "\n".join(folded_lines([records] if records else [], endings))

    def test_a_run_is_called_by_its_number_and_its_cells_and_tells_how_it_failed(self) -> None:
        assert self.shown(2, cut_off=True) == (
            "── run 2, cell [12] (train()) ──\n"
            "[0] hello\n"
            "[1] failed: ValueError: odd (Cell In[12]:3)\n"
            "Traceback\n  odd\n"
            "── run 4, cell [13] (exit) ──\n"
            "[0] died: killed"
        )

    def test_a_message_that_says_where_it_was_is_not_told_so_again(self) -> None:
        message = "invalid syntax (Cell In[20], line 1)"
        failure = RankFailure(0, "n", "error", "SyntaxError", message, "trace", where="Cell In[20]:1")
        run = replace(self.RUNS[0], failures=(failure,))
        lines = list(folded_lines([], Endings(lambda: [run], [0])))
        assert lines[1] == f"[0] failed: SyntaxError: {message}"

    def test_those_before_the_newest_lines_are_left_out(self) -> None:
        assert "run 1" in self.shown(3)
        assert self.shown(3, cut_off=True).startswith("── run 3 (pass) ──")
        assert self.shown(cut_off=True).startswith("── run 1, cell [11]")

    def test_where_a_traceback_is_to_be_found_is_said_where_it_is_not_shown_and_there_is_one(self) -> None:
        how = "`%mesh logs --run 1` shows the traceback"
        assert how in self.shown(1)
        assert how not in self.shown(1, only=1), "this is what that shows"
        left = RankFailure(0, "n", "error", "SystemExit", "exited with code 2", where="train.py:71")
        run = replace(self.RUNS[0], failures=(left,))
        lines = list(folded_lines([], Endings(lambda: [run], [0])))
        assert lines[1] == "[0] failed: SystemExit: exited with code 2 (train.py:71)"

    def test_ranks_that_are_not_asked_for_are_left_out(self) -> None:
        assert self.shown(ranks=[0]).count("failed") == 1

    def test_what_was_forgotten_has_its_number_only(self) -> None:
        assert "── run 9 ──" in self.shown(9)

    def test_a_run_that_goes_on_is_asked_for_again(self) -> None:
        going = replace(self.RUNS[0], finished=(0,), failures=())
        answers = iter([[going], [self.RUNS[0]]])
        endings = Endings(lambda: next(answers), [0, 1])
        assert [*endings.until(1), *endings.until(None)][-1].startswith("[0-1] failed: ValueError")
