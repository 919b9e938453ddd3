"""Tables, the status and stacks, as text and HTML."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.pools.infos import RankInfo, ReservationInfo, RunInfo
from monarch_nb.client.reservations.lists import Holdings
from monarch_nb.notebook.output.tables import reservations_table, stacks_view, status_table, table


def test_tables_leave_out_empty_columns_and_escape() -> None:
    shown = table("a<b", ["x", "y", "z"], [["1", "", "<i>"], ["22", "", "3"]], ["note & more"])
    assert shown.plain == "a<b\n  x   z\n  1   <i>\n  22  3\nnote & more"
    assert "&lt;i&gt;" in shown.html
    assert "<i>" not in shown.html
    assert "a&lt;b" in shown.html
    assert "note &amp; more" in shown.html


def rank_info(rank: int, **changes: Any) -> RankInfo:
    return replace(RankInfo(rank, f"node{rank // 4}", 100 + rank, "idle"), **changes)


def run_info(**changes: Any) -> RunInfo:
    return replace(RunInfo("r", 12, "train()", tuple(range(8)), (), False, 0.0, 7), **changes)


class Held:
    name, nodes, procs, gpus, is_mine = "dev", 2, 4, 0, True


class Main:
    name, flag, reservation = "main", "", Held()


def status(ranks: Sequence[RankInfo], runs: Sequence[RunInfo] = (), **facts: Any) -> list[str]:
    """Return the lines of a status."""
    return status_table(Main(), ranks, runs, **facts).plain.splitlines()  # type: ignore[arg-type]


def test_status_says_how_much_memory_each_rank_has() -> None:
    sizes = [300, 300, 300, 300, 210, 1500, 0]
    _, headers, *rows = status([rank_info(rank, memory_bytes=size << 20) for rank, size in enumerate(sizes)])
    assert headers == "  ranks  host   state  memory per rank"
    assert rows == ["  0-3    node0  idle   300 MiB", "  4-6    node1  idle   210 to 1,500 MiB"]


def test_a_rank_whose_actor_computes_is_not_idle() -> None:
    actors = [
        ActorInfo("main", 0, "e", "E", "e-1", running="sleep", running_s=12.0),
        ActorInfo("main", 0, "e", "E", "e-1", running="load", running_s=3.0),
        ActorInfo("main", 1, "e", "E", "e-1"),
    ]
    _, _, *rows = status([rank_info(0), rank_info(1)], actors=actors)
    assert [row.split(maxsplit=2)[2] for row in rows] == ["running e.sleep  12 s", "idle"]


def test_what_is_known_of_a_reservation_stands_around_its_ranks() -> None:
    waits = "bob (1 node × 2 procs)"
    for facts, line, end in (
        ({"waiting": [waits]}, -1, f"{waits} waits in line for nodes like yours: %mesh release gives them back"),
        ({"bare": ["node3: held, no ranks"]}, -1, "node3: held, no ranks"),
        ({"left": "3 h", "price_per_hour": 12.4}, 0, " · 1 of 1 ranks alive · 3 h left · ≈ $12.40 an hour"),
    ):
        assert status([rank_info(0)], **facts)[line].endswith(end)


def test_nodes_that_do_not_answer_are_named_once_with_what_to_do() -> None:
    lost = rank_info(1, state="unreachable", absence="host2 does not answer; the job was preempted")
    absences = ["host2 does not answer", "host3 does not answer"]
    lines = status([rank_info(0), lost], absences=absences)
    assert lines[-2:] == ["host2 does not answer; the job was preempted", "host3 does not answer"]
    away = [rank_info(rank, state="unreachable", absence="host2 unreachable") for rank in range(4, 8)]
    lines = status([*map(rank_info, range(4)), *away], way_on="replace them")
    assert lines[-2:] == ["host2 unreachable", "replace them"]
    assert lines[0].endswith("4 of 8 ranks alive")
    assert "replace them" not in status([rank_info(0)], way_on="replace them")
    run = run_info(run_id="a", number=46, running=(0,))
    shown = status([rank_info(0, state="unreachable", run_id="a", running_s=90.0)], [run])
    assert "no node answers" in shown[0]
    assert "unreachable, was running run 46" in "".join(shown)
    assert "1 min 30 s" in "".join(shown)


def test_what_is_known_of_the_price_and_of_jobs_that_nobody_holds_is_shown() -> None:
    facts: dict[str, Any] = {"nodes": 1, "procs": 1, "gpus": 0, "notebook": "", "created_at": time.time(), "ranks": ()}
    infos = [ReservationInfo(name, f"id-{name}", "me", nodes_answering=1, **facts) for name in ("dev", "eval")]
    below = ["dev: Slurm job 7 waits", "lab: host1 does not answer"]
    held = Holdings(("lab",), infos, {}, (below[0],), (below[1],))
    headers, dev, other, *rest = reservations_table(held, None, {"id-dev": 12.4}).plain.splitlines()
    assert dev[headers.index("costs") :].strip() == "≈ $12.40 an hour"
    assert len(other) <= headers.index("costs")
    assert rest == below
    assert "costs" not in reservations_table(held, None).plain


def test_a_long_death_stands_below_the_table() -> None:
    death = "killed by signal 9 (SIGKILL): killed by another process or, with a memory limit, by its OOM killer"
    odd = "could not be restarted because of something that nobody could have thought of before"
    ranks = [rank_info(rank, state="dead", death=death) for rank in (0, 1)] + [rank_info(2, state="dead", death=odd)]
    _, _, first, second, *notes = status(ranks)
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
    assert status(ranks, runs) == [
        "dev · 2 nodes × 4 procs · 7 of 8 ranks alive",
        "  ranks  host   state                               for",
        "  0-3    node0  running run 12, cell [7] (train())  12 s",
        "  4-6    node1  running run 12, cell [7] (train())  12 s",
        "  7      node1  dead: killed by SIGKILL",
        "%mesh restart -t 7 starts a fresh rank 7; other ranks keep their variables",
        "queued: run 14, cell [7] (train()) · ranks 0-7 · 1 min 30 s",
        "run 13, cell [7] (train()) finished and nobody has seen it: %mesh attach --run 13 shows it",
    ]


def test_status_shows_the_last_words_of_the_dead_equal_ones_once() -> None:
    dead: dict[str, Any] = {"state": "dead", "death": "killed", "stderr_tail": ("CUDA error", "  in kernel")}
    ranks = [rank_info(0), rank_info(1, **dead), rank_info(2, **dead), rank_info(3, state="dead", death="killed")]
    lines = status(ranks)
    assert lines[4:] == [
        "last words of ranks 1-2:",
        "    CUDA error",
        "      in kernel",
        "%mesh restart -t 1-3 starts fresh ranks 1-3; other ranks keep their variables",
    ]


def test_stacks_show_the_largest_group_first() -> None:
    shown = stacks_view([((3,), "c\n"), ((0, 1, 2), "a <module>\nb\n")])
    assert shown.plain == "ranks 0-2\n  a <module>\n  b\n\nrank 3\n  c"
    assert "&lt;module&gt;" in shown.html
    assert "no answer" in stacks_view([((5,), "")]).plain
