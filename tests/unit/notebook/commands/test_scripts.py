"""`%mesh run` in a shell, against a client made of plain objects: what is asked of the mesh, and what is refused."""

import re

import pytest

from monarch_nb.client.connections.events import Text
from monarch_nb.client.scripts.script import Script
from monarch_nb.errors import RankFailure, RunFailed, UsageError
from unit.notebook.fakes import FakeClient, FakeRun, Notebook, hello, nothing


def script_of(client: FakeClient) -> Script:
    """The script that was started last."""
    script: Script = client.runs[-1].options["script"]
    return script


def test_the_line_becomes_a_script(held: Notebook, client: FakeClient) -> None:
    client.on_submit = lambda run: (hello(run), run.finish([0, 0]))  # type: ignore[func-returns-value, assignment]
    line = "-t hosts=0 --max-restarts 2 --beside -o codes -m pkg.train -- --lr {lr} $lr 'a b' --help"
    assert held.ok(f"lr = 3e-4\n%mesh run {line}") == "[0-1] hello"
    assert script_of(client) == Script(
        "pkg.train", ("--lr", "0.0003", "0.0003", "a b", "--help"), module=True, beside=True, max_restarts=2
    )
    assert client.runs[-1].ranks == (0, 1)
    assert client.runs[-1].cell_number == 2
    assert client.runs[-1].seen
    assert held.shell.user_ns["codes"] == [0, 0]
    held.ok("%mesh run --rdzv-id job7 -i train.py")
    assert script_of(client) == Script("train.py", in_place=True, environment={"TORCHELASTIC_RUN_ID": "job7"})


def test_notes_stand_above_the_output_and_other_ranks_are_left_out(held: Notebook, client: FakeClient) -> None:
    client.on_submit = lambda run: (
        run.say(*(Text(rank, "stdout", f"from {rank}\n") for rank in run.ranks)),
        run.finish(),
    )  # type: ignore[func-returns-value, assignment]
    assert held.ok("%mesh run --nnodes 2 --nproc_per_node=2 --local-ranks-filter 1 train.py").splitlines() == [
        "--local-ranks-filter 1: only the logs have the output of the other ranks",
        "[1] from 1",
        "[3] from 3",
    ]


def test_what_makes_no_sense_starts_nothing(held: Notebook, client: FakeClient) -> None:
    for line, said in (
        ("--nnodes 4 train.py", "2 nodes are held. Leave it out, or %mesh reserve dev --replace --nodes 4 --procs 2"),
        ("--nproc-per-node 8 train.py", "2 CPU ranks on each node.*--nodes 2 --procs 8 holds that many"),
        ("-t hosts=0 --nnodes 2 train.py", "1 node is held"),
        ("--node-rank 1 train.py", "one command starts the script on all nodes"),
        ("-o 1x train.py", "--out is the name of a variable"),
        ("", "needs SCRIPT"),
    ):
        error = held.error(f"%mesh run {line}")
        assert isinstance(error, UsageError)
        assert re.search(said, str(error))
    assert client.runs == []


def test_variables_of_the_kernel_count(held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "4")
    assert str(held.error("%mesh run train.py")).startswith("PET_NNODES=4 (in the environment): 2 nodes are held")
    held.ok("%mesh run --nnodes 2 train.py")
    assert len(client.runs) == 1


def test_it_fails_waits_and_goes_on_as_a_cell(held: Notebook, client: FakeClient) -> None:
    failure = RankFailure(1, "node0", "error", "ValueError", "bad batch")
    client.on_submit = lambda run: run.finish([0, 1, 0, 0], [failure])
    error = held.error("%mesh run -o codes train.py")
    assert isinstance(error, RunFailed)
    assert held.shell.user_ns["codes"] == [0, 1, 0, 0]
    client.on_submit = nothing
    assert "running on 4 ranks" in held.ok("%mesh run --noblock -o run train.py")
    run: FakeRun = held.shell.user_ns["run"]
    run.finish()
    assert "run 2, cell [3] (train.py)" in held.ok("%mesh attach --from-start")


def test_files_go_first(held: Notebook, client: FakeClient) -> None:
    files = client.held["dev"].files
    files.copies = True
    held.ok("%mesh run -t hosts=1 train.py")
    assert files.calls == [("sync", ["node1"], False)]


def test_the_mode_leaves_it_alone(held: Notebook, client: FakeClient) -> None:
    held.ok("%mesh on")
    held.ok("%mesh run train.py")
    assert script_of(client) == Script("train.py")
    held.ok("%mesh off")


def test_help_is_for_us_before_the_script(held: Notebook, client: FakeClient) -> None:
    assert "%mesh run [options] SCRIPT ARGUMENTS..." in held.ok("%mesh run --help")
    assert "%mesh run [options] SCRIPT ARGUMENTS..." in held.ok("%mesh help run")
    assert client.runs == []
