"""Magics that move values, look and change ranks, in a shell, against a client made of plain objects (conftest.py)."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import monarch_nb
from monarch_nb.client.logs.records import LogRecord, PastLog
from monarch_nb.errors import (
    PickleError,
    RankFailure,
    ReservationExpired,
    ReservationNotFound,
    RunFailed,
    TargetError,
    UsageError,
)
from monarch_nb.notebook.commands import printed as commands_printed
from unit.notebook.fakes import FakeClient, FakeMesh, Notebook


def test_push_and_pull(held: Notebook, client: FakeClient) -> None:
    held.ok("x, names = 5, 'x lr'\nlr = 1e-3")
    assert held.ok("%mesh push x lr=3e-4 d={'a': [1, 2]} -t 0") == "pushed x, lr, d to rank 0"
    assert client.calls[-1] == ("push", (0,), {"x": 5, "lr": 3e-4, "d": {"a": [1, 2]}})
    held.ok("%mesh push {names}")
    assert client.calls[-1] == ("push", (0, 1, 2, 3), {"x": 5, "lr": 1e-3})
    held.ok("pulled = %mesh pull loss[-1] + 1 -t 1,3")
    assert held.shell.user_ns["pulled"] == ["loss[-1] + 1@1", "loss[-1] + 1@3"]
    assert held.run("%mesh pull loss -o losses").result is None
    assert held.shell.user_ns["losses"][0] == "loss@0"
    assert str(held.error("%mesh push y=1/0")) == "%mesh push y=1/0: ZeroDivisionError: division by zero"
    assert type(held.error("%mesh push y=__import__('json').loads('{')")).__name__ == "JSONDecodeError"
    assert str(held.error("%mesh push y=[rank]")).endswith("; y = [rank] in a %%mesh cell takes the names of the ranks")


def test_a_pull_that_fails_on_some_ranks_keeps_the_other_values(
    held: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = PickleError("can not pickle the result, a generator", ranks=[1])
    lost.run = SimpleNamespace(kept_values=[10, lost, 12, 13])
    run: Any = SimpleNamespace(ranks=(0, 1, 2, 3), kept_values=[1, 2, 3, None])
    failed = RunFailed(failures=[RankFailure(3, "node0", "error", "NameError", "'x'")], run=run)
    for error, said in (
        (lost, "kept has the other ranks' values, and an error for each of these"),
        (failed, "1 of 4 ranks failed; results of the others are in kept"),
    ):
        monkeypatch.setattr(FakeMesh, "pull", Mock(side_effect=error))
        raised: Any = held.error("%mesh pull x -o kept")
        assert type(raised) is type(error)
        assert said in "\n".join(raised._render_traceback_())
        assert held.shell.user_ns["kept"] == error.run.kept_values


def test_lines_are_expanded_where_they_are_typed(held: Notebook, client: FakeClient) -> None:
    held.ok("def pull(name):\n    %mesh pull {name}\npull('inner')")
    assert client.calls[-1][2] == "inner"


def test_looking(held: Notebook, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert held.ok("%mesh stacks -t 0") == "rank 0\n  File x.py, line 1"
    held.ok("%mesh logs -t 0,2")
    assert client.calls[-1] == ("logs", (0, 2), 50, None)
    assert "[0,2] hello" in capsys.readouterr().out
    assert held.ok("%mesh logs --run 2") == "run 2 printed nothing"
    assert held.ok("%mesh logs --run 2 --follow") == "", "Ctrl-C ends it, and is no error"
    held.ok("%mesh logs -n 0 --run 3")
    assert client.calls[-1] == ("logs", (0, 1, 2, 3), None, 3)
    held.ok("%mesh logs -t 0,2 -n 1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "the last line of each rank, not of all together:", "which `tail -n 1` would show"
    held.ok("%mesh logs dev -t 1 -n 0")
    assert client.calls[-1] == ("logs", (1,), None, None)


def test_logs_of_what_has_ended(
    held: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [LogRecord(rank, "stdout", 7, "loss 1\n") for rank in (0, 1)]
    past = PastLog("old", 1e9, (0, 1), [])
    monkeypatch.setattr(PastLog, "records", lambda *_: lines)
    monkeypatch.setattr(PastLog, "past_runs", lambda *_: [])
    monkeypatch.setattr(commands_printed, "past_log", lambda name, *_: past if name == "old" else None)

    when = held.ok("%mesh logs old -t 0-1")
    assert re.fullmatch(r"old was released at 2001-09-09 \S+: this is from what it printed", when)
    assert capsys.readouterr().out.splitlines() == ["── run 7 ──", "[0-1] loss 1"]
    held.ok("%mesh logs old -n 1")
    assert capsys.readouterr().out.splitlines()[1] == "the last line of each rank, not of all together:"
    assert isinstance(held.error("%mesh logs nope"), ReservationNotFound)
    held.ok("%mesh reserve old --procs 1\n%mesh release")
    assert held.ok("%mesh logs") == when
    assert "[0-1] loss 1" in capsys.readouterr().out
    held.ok("%mesh reserve other --procs 1\n%mesh detach")
    assert "holds no mesh yet" in str(held.error("%mesh logs")), "what was released before is no news"


def test_logs_of_what_has_ended_and_printed_nothing(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names `%mesh logs`, which is what was typed."""

    def ended(*_: object, **__: object) -> None:
        shows = "%mesh logs old shows what it printed"
        raise ReservationExpired(f"old was released: {shows}", "old", "nobody used it for 2 h", time.time())

    monkeypatch.setattr(commands_printed, "past_log", lambda *_: None)
    held.ok("%mesh release")
    assert re.fullmatch(r"dev printed nothing that is kept; it was released at \d\d:\d\d", held.ok("%mesh plot"))
    monkeypatch.setattr(monarch_nb, "attach", ended)
    said = r"old printed nothing that is kept; it was released at \d\d:\d\d: nobody used it for 2 h"
    for line in ("logs old", "plot --of old"):
        assert re.fullmatch(said, held.ok(f"%mesh {line}"))


def test_how_lines_fold_is_chosen_and_remembered(held: Notebook, client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").touch()
    assert held.ok("%mesh fold") == "lines that differ only in dates and times of day are one row (the default here)"
    held.ok("%mesh fold numbers\n%reload_ext monarch_nb")
    assert held.ok("%mesh fold") == "lines that differ only in numbers are one row", "the next kernel finds it"
    assert "not 'number'; did you mean numbers?" in str(held.error("%mesh fold number"))
    assert "(the default here)" in held.ok("%mesh fold default")
    (tmp_path / "pyproject.toml").write_text('[tool.monarch_nb]\nfold = "equal"\n')
    assert held.ok("%mesh fold") == "lines that are equal are one row (the default here)"
    (tmp_path / "pyproject.toml").write_text('[tool.monarch_nb]\nfold = "some"\n')
    assert "fold is one of numbers, times, equal, off, not 'some'" in str(held.error("%mesh fold"))


def test_whose_output_is_shown_is_chosen_and_remembered(held: Notebook, client: FakeClient) -> None:
    assert held.ok("%mesh show") == "cells show the output of all ranks"
    alone = "cells show the output of rank 0; %mesh show all shows every rank's again"
    assert held.ok("%mesh show 0") == alone
    held.ok("%reload_ext monarch_nb")
    assert held.ok("%mesh show") == alone, "the next kernel finds it"
    assert "9" in str(held.error("%mesh show 9"))
    assert held.ok("%mesh show") == alone, "nothing has changed"
    assert held.ok("%mesh show all") == "cells show the output of all ranks"


def test_doctor(held: Notebook) -> None:
    assert held.ok("%mesh doctor").splitlines() == [
        "dev",
        "  differs  here   there",
        "  numpy    2.4.0  1.26.4 on node1",
        "%mesh pip install numpy==2.4.0",
        "fine: clocks",
    ]


def test_values_that_can_not_come_leave_the_others(held: Notebook, client: FakeClient) -> None:
    lost = PickleError("can not pickle the result, a generator", ranks=[1])
    client.on_submit = lambda run: run.finish(values=[10, lost, 12, 13])
    error = held.error("%%mesh -o r\nx")
    assert isinstance(error, PickleError)
    assert "r has the other ranks' values" in str(error)
    assert held.shell.user_ns["r"] == [10, lost, 12, 13]
    client.on_submit = lambda run: run.finish(values=[lost] * 4)
    assert str(held.error("%%mesh -o r\nx")).endswith("r has an error in place of each value")


def test_an_empty_cell_runs_nothing(held: Notebook, client: FakeClient) -> None:
    for cell in ("%%mesh", "%%mesh -t 0\n", "%%mesh -o r\n\n  \n"):
        assert held.ok(cell) == "an empty cell: nothing was run"
    assert not client.runs
    assert isinstance(held.error("%%mesh --targts 0"), UsageError)


def test_restart(held: Notebook, client: FakeClient) -> None:
    assert "variables and imports are gone there, the others keep theirs" in held.ok("%mesh restart -t 3")
    assert client.calls[-1] == ("restart", "main", (3,))
    assert held.ok("%mesh restart").startswith("ranks 0-3 restarted in ")
    assert isinstance(held.error("%mesh restart -t 4"), TargetError)
