"""Windows over logs: what nodes have becomes numbered rows, folded, filtered, searched and followed."""

from __future__ import annotations

import asyncio
import hashlib
import re
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from monarch_nb.client.logs.lines import LogChange, LogLine, LogPart, LogRun, LogWindow
from monarch_nb.errors import MeshNotFound, MonarchNbError, NodeUnreachable, RankFailure, UsageError
from monarch_nb.lines.logged import keys_of
from monarch_nb.lines.templates import FoldBy
from monarch_nb.panel.logs import log as log_module
from monarch_nb.panel.logs import reading
from monarch_nb.panel.logs.log import Log, LogRequest, Logs


class FakeLines:
    """What ranks wrote: lines by run and rank, `!` before those of stderr."""

    def __init__(self, texts: dict[int, dict[int, list[str]]]) -> None:
        self.texts = texts
        self.changes: asyncio.Queue[LogChange | MonarchNbError] = asyncio.Queue()
        self.finished = True
        self.failures: dict[int, tuple[RankFailure, ...]] = {}
        """By run."""
        self.away: set[str] = set()
        """Nodes, each of one rank, that do not answer."""
        self.hung: set[str] = set()
        """Nodes that never say anything."""
        self.asked: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """Called while lines are read."""

    def tell(self, **facts: Any) -> None:
        """Let the watchers know of all there is."""
        parts = tuple(
            LogPart(run, rank, len(self._lines(run, rank, "stdout")), len(self._lines(run, rank, "stderr")), 0)
            for run, ranks in self.texts.items()
            for rank in ranks
        )
        runs = tuple(
            LogRun(run, f"title {run}", 10 + run, self.finished, f"/home/u/a/{run}.ipynb", self.failures.get(run, ()))
            for run in sorted({*self.texts, *self.failures})
        )
        self.changes.put_nowait(LogChange(parts, runs, **{"complete": True, **facts}))

    def _lines(self, run: int, rank: int, streams: str) -> list[str]:
        lines = self.texts[run][rank]
        return [each for each in lines if streams == "both" or each.startswith("!") == (streams == "stderr")]

    async def watch(self, ranks: Iterable[int], run: int | None) -> AsyncGenerator[LogChange, None]:
        if self.hung & {self.node_of(rank) for rank in ranks}:
            await asyncio.Event().wait()
        while True:
            change = await self.changes.get()
            if isinstance(change, MonarchNbError):
                raise change
            wanted = tuple(part for part in change.parts if part.rank in ranks and run in (None, part.run))
            yield LogChange(wanted, change.runs, change.complete, change.silent)

    def node_of(self, rank: int) -> str:
        return f"node{rank}"

    def _window(self, window: LogWindow, streams: str) -> list[str]:
        if (node := self.node_of(window.rank)) in self.away:
            raise NodeUnreachable(f"{node} does not answer", node)
        return self._lines(window.run, window.rank, streams)[window.first : window.first + window.count]

    async def read(self, windows: Sequence[LogWindow], streams: str, *, max_line_bytes: int) -> list[list[LogLine]]:
        self.asked.append("read")
        return [
            [
                LogLine("stderr" if text.startswith("!") else "stdout", text[:max_line_bytes], len(text))
                for text in self._window(window, streams)
            ]
            for window in windows
        ]

    async def digests(self, windows: Sequence[LogWindow], streams: str, by: FoldBy) -> list[array[int]]:
        self.asked.append("digests")
        self.meanwhile()
        hashes = lambda key: int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())  # noqa: E731
        texts = ([text.encode() for text in self._window(window, streams)] for window in windows)
        return [array("Q", map(hashes, keys_of(lines, by))) for lines in texts]

    async def search(
        self, text: str, windows: Sequence[LogWindow], streams: str, *, regex: bool, ignore_case: bool
    ) -> list[array[int]]:
        self.asked.append("search")
        self.meanwhile()
        try:
            pattern = re.compile(text if regex else re.escape(text), re.IGNORECASE if ignore_case else 0)
        except re.error as error:
            raise UsageError(f"no regular expression: {error}") from None
        return [
            array("Q", [w.first + i for i, each in enumerate(self._window(w, streams)) if pattern.search(each)])
            for w in windows
        ]


TWO_RUNS = {
    1: {0: ["start", "loss 1", "end"], 1: ["start", "loss 2", "!careful", "end"]},
    2: {0: ["second"], 1: ["second"]},
}


@pytest.fixture(autouse=True)
def are_closed() -> Iterator[None]:
    """Every log that a test opens ends with it."""
    yield
    while OPEN:
        OPEN.pop().close()


OPEN: list[Log] = []


async def opened(lines: FakeLines, grown: asyncio.Event | None = None, **request: Any) -> Log:
    """Open a log; `grown` is set whenever it has grown after that."""
    log = Log(lines, LogRequest(**{"ranks": (0, 1), **request}), lambda _: grown and grown.set())  # type: ignore[arg-type]
    OPEN.append(log)
    lines.tell()
    await log.opened(10)
    if grown:
        grown.clear()
    return log


async def kept(logs: Logs, lines: FakeLines, *ranks: int, **request: Any) -> dict[str, Any]:
    """Open a log as a browser does, and return what it is told."""
    lines.tell()
    return await logs.open(lines, LogRequest(ranks or (0, 1), **request))  # type: ignore[arg-type]


async def shown(log: Log, first: int = 0, count: int = 100) -> list[str]:
    """Return the rows, but for those that only say which run begins."""
    rows = (await log.read(first, count))["rows"]
    assert [row["row"] for row in rows] == list(range(first, first + len(rows)))
    begun = [row["run"] for row in rows if row.get("kind") == "run"]
    assert first > 0 or begun == list(dict.fromkeys(row["run"] for row in rows))
    return [f"{row['run']} [{row['ranks']}] {row['text']}" for row in rows if row.get("kind") != "run"]


async def test_runs_say_where_they_begin() -> None:
    lines = FakeLines(TWO_RUNS)
    log = Log(lines, LogRequest((0, 1)), lambda _: None, root="/home/u")  # type: ignore[arg-type]
    lines.tell()
    await log.opened(10)
    first, second = log.describe_runs()
    assert (first["title"], first["cell_number"], first["notebook_path"]) == ("title 1", 11, "a/1.ipynb")
    assert (second["number"], second["first_row"]) == (2, 6)
    assert [run["number"] for run in (await log.read(6, 1))["runs"]] == [2]
    log.close()
    for search in ("", "nothing that is there"):
        log = await opened(FakeLines(TWO_RUNS), search=search)
        assert log.describe()["notebooks"] == ["/home/u/a/1.ipynb", "/home/u/a/2.ipynb"]


FAILURES = (
    RankFailure(0, "node0", "interrupted", "KeyboardInterrupt", ""),
    RankFailure(1, "node1", "error", "ValueError", "bad batch\nand more", where="train.py:41"),
)


async def test_a_log_says_how_its_runs_failed_also_those_that_printed_nothing() -> None:
    lines = FakeLines(TWO_RUNS)
    lines.failures = {1: FAILURES, 3: FAILURES[1:]}
    log = await opened(lines)
    assert (await shown(log))[-5:] == [
        "1 [0-1] end",
        "1 [1] failed: ValueError: bad batch (train.py:41)",
        "1 [0] KeyboardInterrupt",
        "2 [0-1] second",
        "3 [1] failed: ValueError: bad batch (train.py:41)",
    ]
    everything = [text for row in range(len(log)) for text in await shown(log, row, 1)]
    assert everything == await shown(log), "also by windows of one row"
    assert await log.find("second", regex=False, start=0, backwards=False) == 9


async def test_how_runs_failed_is_not_told_where_nobody_asks() -> None:
    for request in ({"search": "s.*t", "regex": True}, {"ranks": (0,), "run": 2}):
        lines = FakeLines(TWO_RUNS)
        lines.failures = {1: FAILURES, 2: FAILURES[1:], 3: FAILURES}
        assert len(await shown(await opened(lines, **request))) == 1


async def test_rows_are_settled_when_nothing_can_come_before_them() -> None:
    """While the first run may go on, the second is after it."""
    for finished, settled in ((False, 1), (True, 8)):
        lines = FakeLines(TWO_RUNS)
        lines.finished = finished
        assert (await (await opened(lines)).read(0, 1))["settled"] == settled


async def test_a_long_log_is_folded_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LINES_AT_ONCE", 100)
    texts = [f"step {number}" for number in range(1000)]
    lines = FakeLines({1: {0: texts, 1: [*texts[:500], "extra", *texts[500:]]}})
    log = await opened(lines)
    assert len(log) == 1002
    assert await shown(log, 500, 3) == ["1 [0-1] step 499", "1 [1] extra", "1 [0-1] step 500"]


async def test_what_ranks_go_on_to_print_is_followed() -> None:
    lines, grown = FakeLines({1: {0: ["a"], 1: ["a"]}}), asyncio.Event()
    lines.finished = False
    log = await opened(lines, grown)
    assert await shown(log) == ["1 [0-1] a"]
    lines.texts[1][0] += ["b", "c"]
    lines.texts[1][1] = ["a much longer"]
    lines.tell()
    await asyncio.wait_for(grown.wait(), 10)
    assert await shown(log) == ["1 [0] a", "1 [1] a much longer", "1 [0] b", "1 [0] c"]


async def test_a_filtered_log_is_followed() -> None:
    lines, grown = FakeLines({1: {0: ["a loss", "b"], 1: ["c"]}}), asyncio.Event()
    lines.finished = False
    log = await opened(lines, grown, search="loss")
    lines.texts[1][1][0] = "c loss"  # the newest line has grown
    lines.texts[1][0].append("d loss")
    lines.tell()
    await asyncio.wait_for(grown.wait(), 10)
    assert await shown(log) == ["1 [0] a loss", "1 [1] c loss", "1 [0] d loss"]


async def test_nothing_is_folded_before_all_nodes_have_counted() -> None:
    lines, told = FakeLines(TWO_RUNS), asyncio.Event()
    log = Log(lines, LogRequest((0, 1)), lambda _: told.set())  # type: ignore[arg-type]
    lines.tell(complete=False)
    await asyncio.wait_for(told.wait(), 10)
    assert (len(log), log.complete) == (0, False)
    lines.tell()
    await log.opened(10)
    assert (len(log), log.complete) == (8, True)
    log.close()


async def test_lines_of_nodes_that_answer_are_shown_without_the_others() -> None:
    lines = FakeLines(TWO_RUNS)
    log = await opened(lines)
    lines.away = {"node0"}
    told = await log.read(0, 10)
    rows = [row for row in told["rows"] if "kind" not in row]
    assert [(row["ranks"], row["text"], row.get("away", False)) for row in rows] == [
        ("0-1", "start", False),
        ("0", "", True),
        ("1", "loss 2", False),
        ("1", "!careful", False),
        ("0-1", "end", False),
        ("0-1", "second", False),
    ]
    assert told["missing"] == "rank 0: node0 does not answer"
    assert await log.find("loss", regex=False, start=0, backwards=False) == 3


async def test_a_log_goes_on_while_a_node_is_away() -> None:
    for search in ("", "s"):
        lines, grown = FakeLines(TWO_RUNS), asyncio.Event()
        log = await opened(lines, grown, search=search)
        rows = len(log)
        lines.texts = {**TWO_RUNS, 2: {0: ["second"], 1: ["second", "third s"]}}
        lines.away = {"node0"}
        lines.tell(silent=("node0",))
        await asyncio.wait_for(grown.wait(), 10)
        assert (len(log), (await shown(log))[-1]) == (rows + 1, "2 [1] third s")


async def test_a_node_that_the_pool_misses_is_not_waited_for() -> None:
    lines = FakeLines(TWO_RUNS)
    lines.hung = lines.away = {"node1"}
    log = Log(lines, LogRequest((0, 1)), lambda _: None, lines.away.__contains__)  # type: ignore[arg-type]
    lines.tell()
    await log.opened(10)
    assert await shown(log) == ["1 [0] start", "1 [0] loss 1", "1 [0] end", "2 [0] second"]
    assert (log.complete, log.missing) == (True, "rank 1: node1 does not answer")
    log.close()


async def test_a_node_that_is_back_is_read_also_when_the_pool_hears_of_it_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LOOK_AGAIN_S", 0.01)
    lines, told, silent = FakeLines({}), asyncio.Event(), set[str]()
    log = Log(lines, LogRequest((0, 1)), lambda _: told.set(), silent.__contains__)  # type: ignore[arg-type]
    lines.tell()
    await log.opened(10)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                told.clear()
                await told.wait()

    lines.texts = TWO_RUNS
    lines.away = {"node1"}
    silent.add("node1")
    lines.tell(silent=("node1",))
    await until(lambda: len(log) > 0)
    assert (len(log), log.missing) == (6, "rank 1: node1 does not answer")
    told.clear()
    await asyncio.wait_for(told.wait(), 10)  # it has looked again
    lines.away.clear()
    lines.changes.put_nowait(LogChange(complete=True))
    await until(lines.changes.empty)
    silent.clear()
    await until(lambda: len(log) == 8)
    assert log.missing == ""
    log.close()


async def test_a_node_that_was_gone_for_so_short_that_nobody_was_told_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LOOK_AGAIN_S", 0.01)
    lines, told = FakeLines(TWO_RUNS), asyncio.Event()
    lines.away = {"node1"}
    log = Log(lines, LogRequest((0, 1)), lambda _: told.set(), lambda _: False)  # type: ignore[arg-type]
    lines.tell()
    await log.opened(10)
    assert (len(log), log.missing) == (0, "")
    lines.away.clear()
    async with asyncio.timeout(10):
        while len(log) < 8:
            told.clear()
            await told.wait()
    log.close()


@pytest.mark.parametrize("search", ["", "s"])
async def test_a_node_that_is_back_while_others_are_read_is_read_after_them(
    search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LOOK_AGAIN_S", 0.01)
    lines, whole, silent = FakeLines({}), asyncio.Event(), set[str]()
    request, rows = LogRequest((0, 1), search=search), len(await opened(FakeLines(TWO_RUNS), search=search))
    changed = lambda log: whole.set() if len(log) == rows else None  # noqa: E731
    log = Log(lines, request, changed, silent.__contains__)  # type: ignore[arg-type]
    lines.tell()
    await log.opened(10)
    lines.texts = TWO_RUNS
    silent.add("node1")
    lines.meanwhile = silent.clear  # the pool hears of it
    lines.tell()
    await asyncio.wait_for(whole.wait(), 10)
    log.close()


STEPS = {
    rank: [f"\x1b[36mstep: {step}  loss: {7.8 + rank / 1000:.3f}\x1b[0m  07:00:{rank + 1:02}" for step in range(40)]
    for rank in range(16)
}


async def test_a_row_of_a_filtered_log_tells_each_rank_s_own_line() -> None:
    texts = {rank: ["noise", *lines[:2]] for rank, lines in STEPS.items()}
    log = await opened(FakeLines({1: texts}), ranks=tuple(range(16)), fold="numbers", search="loss")
    assert len(log) == 3
    assert (await log.read_own(0))["lines"] == [], "the run's name"
    assert [each["text"] for each in (await log.read_own(2))["lines"]] == [STEPS[rank][1] for rank in range(16)]


async def test_of_ranks_whose_node_is_away_no_numbers_are_in_the_range() -> None:
    lines = FakeLines({1: STEPS})
    log = await opened(lines, ranks=tuple(range(16)), fold="numbers")
    lines.away = {"node0", "node15"}
    [row] = (await log.read(1, 1))["rows"]
    assert (row["ranks"], row["lacking"], "7.801–7.814" in row["text"]) == ("0-15", "0,15", True)
    own = (await log.read_own(1))["lines"]
    assert [each["ranks"] for each in own if each.get("away")] == ["0", "15"]


async def test_a_line_that_went_on_since_it_was_folded_is_not_mixed_up() -> None:
    lines = FakeLines({1: {0: ["loss 1"], 1: ["loss 2"], 2: ["loss 3"]}})
    log = await opened(lines, ranks=(0, 1, 2), fold="numbers")
    lines.texts[1][1] = ["loss 2 of 7"]
    [row] = (await log.read(1, 1))["rows"]
    assert row["text"] == "loss 1–3"


async def test_of_very_many_ranks_few_rows_are_asked_for_and_lines_are_read_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LINES_AT_ONCE", 40)
    logs = Logs(lambda _: None, lambda: True)
    told = await kept(logs, FakeLines({1: STEPS}), *range(16), fold="numbers")
    assert (told["page"], told["fold"]) == (256, "numbers")
    log = logs.get(told["log"])
    assert log is not None
    assert [row["text"].count("–") for row in (await log.read(1, 20))["rows"]] == [1] * 20
    logs.close(told["log"])


async def test_the_next_row_with_a_text_is_found() -> None:
    """And each text is searched for once."""
    for fold in ("equal", "off"):
        lines = FakeLines(TWO_RUNS)
        log = await opened(lines, fold=fold)
        everything = [f"{row['run']} {row['text']}" for row in (await log.read(0, 100))["rows"]]
        for text in ("loss", "end", "second", "START"):
            rows = [row for row, each in enumerate(everything) if text.lower() in each]
            for start in range(len(everything) + 1):
                found = await log.find(text, regex=False, start=start, backwards=False)
                assert found == next((row for row in rows if row >= start), None)
                found = await log.find(text, regex=False, start=start, backwards=True)
                assert found == next((row for row in reversed(rows) if row <= start), None)
        assert lines.asked.count("search") == 4


async def test_finding_in_what_was_filtered() -> None:
    log = await opened(FakeLines(TWO_RUNS), search="s")
    assert await shown(log) == ["1 [0-1] start", "1 [0] loss 1", "1 [1] loss 2", "2 [0-1] second"]
    assert await log.find("loss 2", regex=False, start=0, backwards=False) == 3
    assert await log.find("end", regex=False, start=0, backwards=False) is None


async def test_a_very_long_line_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 10)
    log = await opened(FakeLines({1: {0: ["x" * 50]}}))
    (row,) = (await log.read(1, 1))["rows"]
    assert (row["text"], row["size"]) == ("x" * 10, 50)


async def test_a_log_that_can_not_be_opened_is_refused_and_not_kept() -> None:
    logs, lines = Logs(lambda _: None, lambda: True), FakeLines(TWO_RUNS)
    lines.changes.put_nowait(MeshNotFound("the mesh was released"))
    with pytest.raises(MeshNotFound):
        await kept(logs, lines)
    assert not logs._logs
    with pytest.raises(UsageError):
        await opened(FakeLines(TWO_RUNS), search="(", regex=True)


# ---- several logs ----


@pytest.mark.parametrize(
    ("limit", "watched", "stay"),
    [
        (("FORGOTTEN_S", 0.0), True, [True, True, True]),
        (("FORGOTTEN_S", 0.0), False, [False, False, True]),
        (("MAX_OPEN", 2), True, [False, True, True]),
    ],
)
async def test_only_so_many_logs_are_open_and_those_that_nobody_reads_are_forgotten(
    limit: tuple[str, float], watched: bool, stay: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, *limit)
    logs = Logs(lambda _: None, lambda: watched)
    ids = [(await kept(logs, FakeLines(TWO_RUNS)))["log"] for _ in range(3)]
    assert [logs.get(each) is not None for each in ids] == stay
    for each in ids:
        logs.close(each)
