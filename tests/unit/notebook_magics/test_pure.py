"""What the magics decide without a shell and without a client: mode, completion places, sessions, texts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from monarch_nb import config
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.infos import RankInfo, RunInfo
from monarch_nb.client.pools.memory import Memory, choose, choose_unnamed, recall, remember
from monarch_nb.errors import RankFailure, UsageError
from monarch_nb.notebook.assist.completion import InBody, InLine, locate, target_words
from monarch_nb.notebook.output.logs import Endings, folded_lines
from monarch_nb.notebook.commands.subcommands import push_items, read_environment
from monarch_nb.notebook.mode import ANNOUNCE, MeshMode
from monarch_nb.notebook.output.tables import stacks_view, status_table, table
from monarch_nb.notebook.session import bounded, notebook_path
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from monarch_nb.shape import Extent


@dataclass
class Info:
    """As a ReservationInfo, as far as `choose` looks."""

    name: str
    notebook: str = ""
    created_at: float = 0.0
    held_by_me: bool = True
    reservation_id: str = field(default="")
    directory: str = "/here"

    def __post_init__(self) -> None:
        self.reservation_id = self.reservation_id or f"id-{self.name}"


# ---- %mesh on ----


def transformed(mode: MeshMode, cell: str) -> str:
    return "".join(mode(cell.splitlines(keepends=True)))


def test_off_changes_nothing() -> None:
    assert transformed(MeshMode(), "x = 1\n") == "x = 1\n"


def test_on_puts_the_magic_before_every_cell() -> None:
    mode = MeshMode()
    mode.start(None)
    assert transformed(mode, "x = 1\ny\n") == f"%%mesh {ANNOUNCE}\nx = 1\ny\n"
    mode.start("0, 2-3")
    assert transformed(mode, "%%time\nx\n") == f"%%mesh {ANNOUNCE} --targets=0,2-3\n%%time\nx\n"
    mode.stop()
    assert transformed(mode, "x\n") == "x\n"


@pytest.mark.parametrize(
    "cell",
    [
        "%%mesh -t 0\nx\n",
        "%mesh off\n",
        "# back\n\n%mesh off\n",
        "%mesh?\n",
        "losses = %mesh pull losses\n",
        "%reload_ext monarch_nb\n",
        "# only a comment\n",
    ],
)
def test_our_own_cells_stay_in_the_kernel(cell: str) -> None:
    mode = MeshMode()
    mode.start(None)
    assert transformed(mode, cell) == cell


@pytest.mark.parametrize("on", [True, False])
def test_local_is_an_ordinary_cell(on: bool) -> None:
    mode = MeshMode()
    if on:
        mode.start(None)
    assert transformed(mode, "%%local\nx = 1\n") == "\nx = 1\n"
    assert transformed(mode, "%%local\n%%time\nx\n") == "%%time\nx\n"
    assert transformed(mode, "%%local x\ny\n").endswith("%%local x\ny\n")


def test_code_inside_a_cell_is_not_a_cell() -> None:
    mode = MeshMode()
    mode.start(None)
    mode.pre_execute()
    assert transformed(mode, "x\n") == "x\n"
    mode.pre_execute()
    mode.post_execute()
    assert transformed(mode, "x\n") == "x\n"
    mode.post_execute()
    mode.post_execute()  # an empty cell ends without having begun
    assert transformed(mode, "x\n") != "x\n"


# ---- completion ----

CELL_TEXT = "%%mesh -t 2 --no\nimport torch\nmodel.to"


@pytest.mark.parametrize(
    ("cell", "line", "column", "place"),
    [
        ("%mesh rel", 0, 9, InLine(MESH, " rel")),
        ("x = 1\n%mesh release d", 1, 15, InLine(MESH, " release d")),
        ("out = %mesh pull lo", 0, 19, InLine(MESH, " pull lo")),
        ("%mesh", 0, 5, None),
        ("%meshes x", 0, 9, None),
        ("print(x)", 0, 8, None),
        (CELL_TEXT, 0, 16, InLine(CELL, " -t 2 --no")),
        (CELL_TEXT, 0, 4, None),
        (CELL_TEXT, 1, 3, InBody("import torch\nmodel.to", 3, "2")),
        (CELL_TEXT, 2, 8, InBody("import torch\nmodel.to", 21, "2")),
        ("\n%%mesh --targets=0:2\nx", 2, 1, InBody("x", 1, "0:2")),
        ("%%mesh -o 'x\ny", 1, 1, InBody("y", 1, None)),
        ("%%time\nx", 1, 1, None),
    ],
)
def test_what_is_being_completed(cell: str, line: int, column: int, place: InLine | InBody | None) -> None:
    assert locate(cell, line, column, MeshMode()) == place


def test_what_is_being_completed_while_on() -> None:
    mode = MeshMode()
    mode.start("3")
    assert locate("import os\nos.pa", 1, 5, mode) == InBody("import os\nos.pa", 15, "3")
    assert locate("%%local\nx", 1, 1, mode) is None
    assert locate("%mesh o", 0, 7, mode) == InLine(MESH, " o")


def test_targets_complete() -> None:
    extent = Extent({"hosts": 2, "procs": 2})
    assert target_words(extent, "") == ["all", "hosts=", "procs=", "0", "1", "2", "3"]
    assert target_words(extent, "0,") == ["0,0", "0,1", "0,2", "0,3"]
    assert target_words(extent, "hosts=0,p") == ["hosts=0,procs="]
    assert target_words(Extent({"hosts": 16, "procs": 8}), "1") == []


# ---- what a notebook holds ----


def test_notebook_path() -> None:
    assert notebook_path({}, {}) is None
    assert notebook_path({}, {"JPY_SESSION_NAME": "/a/b.ipynb"}) == "/a/b.ipynb"
    assert notebook_path({"__vsc_ipynb_file__": "/c.ipynb"}, {"JPY_SESSION_NAME": ""}) == "/c.ipynb"


def test_choose() -> None:
    def name(infos: list[Info], notebook: str, memory: Memory | None = None) -> str | None:
        found: Any = choose(infos, notebook, memory)  # type: ignore[arg-type]
        return found.name if found else None

    dev, other, alien = Info("dev", "/a", 1.0), Info("other", "/b", 2.0), Info("alien", "/a", 9.0, held_by_me=False)
    assert name([dev, other, alien], "/a") == "dev"
    assert name([dev], "/elsewhere") is None
    assert name([dev, Info("newer", "/a", 3.0)], "/a") == "newer"
    assert name([dev, other], "/a", Memory("/a", "id-other")) == "other"
    assert name([dev, other], "/a", Memory("/a", "id-gone")) == "dev"
    assert name([dev, other], "/a", Memory("/a", "")) is None


def test_a_kernel_that_does_not_know_its_notebook_takes_nobodys_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv(config.HOME_VARIABLE, str(home))

    def name(*infos: Info) -> str | None:
        found: Any = choose_unnamed(infos, "/here")  # type: ignore[type-var]
        return found.name if found else None

    headless = Info("headless")
    assert name() is None
    assert name(headless, Info("alien", held_by_me=False), Info("other", directory="/elsewhere")) == "headless"
    assert name(headless, Info("second")) is None
    assert name(Info("dev", "/here/train.ipynb")) is None
    remember(Memory("/here/train.ipynb", headless.reservation_id))
    assert name(headless) is None, "a notebook holds it"


def test_memory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv(config.HOME_VARIABLE, str(home))
    assert recall(None) is None
    assert recall("/a.ipynb") is None
    remember(Memory("/a.ipynb", "id", "local"))
    assert recall("/a.ipynb") == Memory("/a.ipynb", "id", "local")
    remember(Memory("/a.ipynb", ""))
    assert recall("/a.ipynb") == Memory("/a.ipynb", "")
    for file in (home / "notebooks").iterdir():
        file.write_text("{broken")
    assert recall("/a.ipynb") is None


def test_bounded() -> None:
    import threading

    def fail() -> None:
        raise UsageError("no")

    assert bounded(lambda: 7, 5.0) == 7
    with pytest.raises(UsageError, match="no"):
        bounded(fail, 5.0)
    release = threading.Event()
    with pytest.raises(TimeoutError):
        bounded(release.wait, 0.01)
    release.set()


# ---- texts ----


def test_push_items() -> None:
    assert push_items(["x", "lr=3e-4", "d={'a': 1}", "f=a==b"]) == [
        ("x", None),
        ("lr", "3e-4"),
        ("d", "{'a': 1}"),
        ("f", "a==b"),
    ]
    for wrong in ("3", "a.b", "x=", "=", "=1", "x==1", "class"):
        with pytest.raises(UsageError, match="without blanks around ="):
            push_items([wrong])


def test_read_environment() -> None:
    assert read_environment(["A=1", "B=x=y", "C=", "HOME"]) == {"A": "1", "B": "x=y", "C": "", "HOME": None}
    for wrong in ("=1", "A-B=1", "1A"):
        with pytest.raises(UsageError, match="--env is NAME or NAME=VALUE"):
            read_environment([wrong])


def test_tables_leave_out_empty_columns_and_escape() -> None:
    shown = table("a<b", ["x", "y", "z"], [["1", "", "<i>"], ["22", "", "3"]], ["note & more"])
    assert shown.plain == "a<b\n  x   z\n  1   <i>\n  22  3\nnote & more"
    assert "&lt;i&gt;" in shown.html
    assert "<i>" not in shown.html
    assert "a&lt;b" in shown.html
    assert "note &amp; more" in shown.html


def rank_info(rank: int, **changes: Any) -> RankInfo:
    facts: dict[str, Any] = {
        "rank": rank,
        "host": f"node{rank // 4}",
        "pid": 100 + rank,
        "state": "idle",
        "gpu_indices": (),
        "memory_bytes": 0,
        "run_id": "",
        "running_s": 0.0,
        "death": None,
    }
    return RankInfo(**{**facts, **changes})


def run_info(**changes: Any) -> RunInfo:
    facts: dict[str, Any] = {
        "run_id": "r",
        "number": 12,
        "title": "train()",
        "ranks": tuple(range(8)),
        "finished": (),
        "collected": False,
        "submitted_at": 0.0,
        "cell_number": 7,
    }
    return RunInfo(**{**facts, **changes})


class Held:
    name, nodes, procs, gpus = "dev", 2, 4, 0


def test_status_says_how_much_memory_each_rank_has() -> None:
    sizes = [300, 300, 300, 300, 210, 1500, 0]
    ranks = [rank_info(rank, memory_bytes=size << 20) for rank, size in enumerate(sizes)]
    _, headers, *rows = status_table(Held(), ranks, []).plain.splitlines()  # type: ignore[arg-type]
    assert headers == "  ranks  host   state  memory per rank"
    assert rows == ["  0-3    node0  idle   300 MiB", "  4-6    node1  idle   210 to 1,500 MiB"]


def test_a_long_death_stands_below_the_table() -> None:
    death = "killed by signal 9 (SIGKILL): killed by another process or, with a memory limit, by its OOM killer"
    odd = "could not be restarted because of something that nobody could have thought of before"
    ranks = [rank_info(rank, state="dead", death=death) for rank in (0, 1)] + [rank_info(2, state="dead", death=odd)]
    _, _, first, second, *notes = status_table(Held(), ranks, []).plain.splitlines()  # type: ignore[arg-type]
    assert first.split(maxsplit=2)[2] == "dead: killed by signal 9 (SIGKILL)"
    assert second.endswith("dead: could not be restarted because of something tha…")
    assert notes[:2] == [f"ranks 0-1: {death}", f"rank 2: {odd}"]


def test_status_folds_equal_ranks() -> None:
    running: dict[str, Any] = {"state": "running", "run_id": "r", "running_s": 12.3}
    ranks = [rank_info(rank, **running) for rank in range(7)] + [rank_info(7, state="dead", death="killed by SIGKILL")]
    runs = [
        run_info(running=tuple(range(7))),
        run_info(run_id="s", number=13, finished=tuple(range(8))),
        run_info(run_id="t", number=14, submitted_at=time.time() - 90.0),
    ]
    seen = status_table(Held(), ranks, runs)  # type: ignore[arg-type]
    assert seen.plain.splitlines() == [
        "dev · 2 nodes × 4 procs · 7 of 8 ranks alive",
        "  ranks  host   state                               for",
        "  0-3    node0  running run 12, cell [7] (train())  12 s",
        "  4-6    node1  running run 12, cell [7] (train())  12 s",
        "  7      node1  dead: killed by SIGKILL",
        "%mesh restart -t 7 gives rank 7 anew",
        "queued: run 14, cell [7] (train()) · ranks 0-7 · 1 min 30 s",
        "run 13, cell [7] (train()) finished and nobody has seen it: %mesh attach --run 13 shows it",
    ]


def test_status_shows_the_last_words_of_the_dead_equal_ones_once() -> None:
    dead: dict[str, Any] = {"state": "dead", "death": "killed", "stderr_tail": ("CUDA error", "  in kernel")}
    ranks = [rank_info(0), rank_info(1, **dead), rank_info(2, **dead), rank_info(3, state="dead", death="killed")]
    lines = status_table(Held(), ranks, []).plain.splitlines()  # type: ignore[arg-type]
    assert lines[4:] == [
        "last words of ranks 1-2:",
        "    CUDA error",
        "      in kernel",
        "%mesh restart -t 1-3 gives ranks 1-3 anew",
    ]


def test_status_does_not_count_ranks_alive_of_which_nothing_is_known() -> None:
    ranks = [rank_info(rank, state="unreachable" if rank > 3 else "idle") for rank in range(8)]
    lines = status_table(Held(), ranks, []).plain.splitlines()  # type: ignore[arg-type]
    assert lines[0].endswith("4 of 8 ranks alive")
    assert lines[-1] == ("node1 does not answer; its ranks are as they were: monarch-nb up starts its allocator again")


def test_stacks_show_the_largest_group_first() -> None:
    shown = stacks_view([((3,), "c\n"), ((0, 1, 2), "a <module>\nb\n")])
    assert shown.plain == "ranks 0-2\n  a <module>\n  b\n\nrank 3\n  c"
    assert "&lt;module&gt;" in shown.html
    assert "no answer" in stacks_view([((5,), "")]).plain


def test_logs_fold_and_lose_nothing() -> None:
    def records(run: int, ranks: int, lines: int) -> list[LogRecord]:
        return [
            LogRecord(r, "stdout", run, f"{'same' if i % 2 else r} {i}\n") for r in range(ranks) for i in range(lines)
        ]

    def lines_of(batches: list[list[LogRecord]]) -> list[str]:
        return list(folded_lines(batches, Endings(list, range(8))))

    lines = lines_of([[*records(1, 2, 2), *records(2, 1, 1)]])
    assert lines == ["── run 1 ──", "[0] 0 0", "[1] 1 0", "[0-1] same 1", "── run 2 ──", "[0] 0 0"]
    many = lines_of([records(3, 8, 2000)])
    assert len(many) == 1 + 1000 + 8 * 1000
    assert lines_of([]) == []
    assert lines_of([records(1, 2, 1), records(1, 2, 1), records(2, 1, 1)])[3:] == [
        "[0] 0 0",
        "[1] 1 0",
        "── run 2 ──",
        "[0] 0 0",
    ]
    assert lines_of([[LogRecord(0, "stderr", 1, "no line end")]])[1:] == ["[0] no line end"]


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

    def test_one_that_printed_nothing_says_that_it_failed(self) -> None:
        assert self.shown(only=1) == (
            "── run 1, cell [11] (load()) ──\n"
            "[0-1] failed: ValueError: boom (Cell In[12]:3); --run 1 shows the traceback"
        )
        assert self.shown(only=3) == ""

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

    def test_ranks_that_are_not_asked_for_are_left_out(self) -> None:
        assert self.shown(ranks=[0]).count("failed") == 1

    def test_what_was_forgotten_has_its_number_only(self) -> None:
        assert "── run 9 ──" in self.shown(9)

    def test_a_run_that_goes_on_is_asked_for_again(self) -> None:
        going = replace(self.RUNS[0], finished=(0,), failures=())
        answers = iter([[going], [self.RUNS[0]]])
        endings = Endings(lambda: next(answers), [0, 1])
        assert [*endings.until(1), *endings.until(None)][-1].startswith("[0-1] failed: ValueError")


# ---- the package's names ----


def test_public_names_all_resolve() -> None:
    import monarch_nb
    from monarch_nb import errors

    for name in monarch_nb.__all__:
        assert getattr(monarch_nb, name) is not None
        assert name in dir(monarch_nb)
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds <= set(monarch_nb.__all__), "every error is public"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        monarch_nb.nothing  # noqa: B018
