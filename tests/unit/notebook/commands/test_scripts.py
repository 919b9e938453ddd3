"""`%mesh run` in a shell, against a client made of plain objects: what is asked of the mesh, and what is refused."""

import os
import re

from monarch_nb.client.scripts.script import Script
from monarch_nb.errors import UsageError
from unit.notebook.fakes import FakeClient, Notebook, hello


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
    held.ok("%mesh run --env A=1=2 --env HOME train.py --env B=3")
    environment = {"A": "1=2", "HOME": os.environ["HOME"]}
    assert script_of(client) == Script("train.py", ("--env", "B=3"), environment=environment)
    held.ok("%mesh run --rdzv-id job7 -i train.py")
    assert script_of(client) == Script("train.py", in_place=True, environment={"TORCHELASTIC_RUN_ID": "job7"})


def test_what_makes_no_sense_starts_nothing(held: Notebook, client: FakeClient) -> None:
    for line, said in (
        ("-t hosts=0 --nnodes 2 train.py", "1 node is held"),
        ("-o 1x train.py", "--out is the name of a variable"),
        ("--env A-B=1 train.py", "--env is NAME or NAME=VALUE"),
        ("", "needs SCRIPT"),
    ):
        error = held.error(f"%mesh run {line}")
        assert isinstance(error, UsageError)
        assert re.search(said, str(error))
    assert client.runs == []


def test_files_go_first(held: Notebook, client: FakeClient) -> None:
    files = client.held["dev"].files
    files.copies = True
    held.ok("%mesh run -t hosts=1 train.py")
    assert files.calls == [("sync", ["node1"], False)]
