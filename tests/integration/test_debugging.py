"""The debugger in the cell that waits, in another cell, after a kernel restart and in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually
from integration.stopped import DBG, PDB, all_asked, type_in
from integration.terminals import AtTerminal
from monarch_nb.client.debug.debugger import Debugger
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RunFailed, UsageError

STEPS = "%%mesh\ndef f(x):\n    breakpoint()\n    return x + 1\nprint('begin')\ny = f(rank * 10)\nprint('end', y)"


def test_a_cell_asks_below_its_output(kernel: Kernel) -> None:
    cell = kernel.start(STEPS)
    shown = all_asked(kernel, cell, 4)
    assert "[0-3] begin" in kernel.text(cell)
    assert "| Actor Name | Rank | Coords" in shown
    assert shown.count("| cell ") == 4
    assert "{'hosts': 1, 'procs': 1}" in shown
    attached = type_in(kernel, cell, "attach cell 2", PDB)
    assert "Attached to debug session for cell 2" in attached
    assert "-> breakpoint()" in attached
    assert "20" in type_in(kernel, cell, "x", PDB)
    assert "-> return x + 1" in type_in(kernel, cell, "n", PDB)
    assert "Detached from debug session for cell 2" in type_in(kernel, cell, "detach", DBG)
    assert "[0-1] > Cell In" in type_in(kernel, cell, "cast cell ranks(0,1) n", DBG).replace("\n>", " >")
    assert "[0] 0\n[1] 10\n[2] 20\n[3] 30" in type_in(kernel, cell, "cast cell ranks(:) p x", DBG)
    assert "[2] 20\n[3] 30" in type_in(kernel, cell, "cast cell ranks(hosts=1) p x", DBG)
    assert "no rank 9" in type_in(kernel, cell, "attach cell 9", DBG)
    kernel.answer("continue")
    text = kernel.wait(cell)
    assert "[3] end 31" in text
    assert kernel.run("%%mesh\nprint('again')").startswith("[0-3] again")


def test_a_line_that_takes_long_is_not_waited_for(kernel: Kernel) -> None:
    kernel.run("%%mesh\nimport threading\ngo_on = threading.Event()")
    cell = kernel.start("%%mesh\ndef f():\n    breakpoint()\n    go_on.wait()\n    return 'done'\nf()")
    all_asked(kernel, cell, 4)
    type_in(kernel, cell, "n", DBG)
    assert "[0] (still executes it)" in type_in(kernel, cell, "cast 0 n", DBG)
    assert type_in(kernel, cell, "list", DBG).count("(running)") == 1
    shown = type_in(kernel, cell, "p rank", DBG)
    assert "[0]\nnot executed: the line before is not done yet" in shown
    assert "[1] 1" in shown
    kernel.interrupt()
    kernel.wait(cell, "stay where they are")
    kernel.interrupt()
    assert "KeyboardInterrupt" in kernel.wait(cell)


def test_tab_completes_in_a_terminal(kernel: Kernel, tmp_path: Path) -> None:
    cell = kernel.start(STEPS)
    all_asked(kernel, cell, 4)
    kernel.answer("quit")
    kernel.wait(cell, "stay where they are")
    terminal = AtTerminal([sys.executable, "-m", "monarch_nb.cli.main", "debug", "dev"], tmp_path)
    terminal.shows(DBG)
    terminal.type("cast ce\t3 p x")
    terminal.shows("[3] 30")
    terminal.shows(DBG)
    terminal.type("cont\t")
    terminal.shows("told to continue")
    assert terminal.end() == 0
    assert "[3] end 31" in kernel.wait(cell)


def test_who_leaves_the_prompt_can_come_back(kernel: Kernel) -> None:
    cell = kernel.start(STEPS)
    all_asked(kernel, cell, 4)
    kernel.answer("quit")
    kernel.wait(cell, "stay where they are, and this cell waits for them: monarch-nb debug dev")
    typed = "cast cell ranks(:) p x\nattach cell 1\nw\nc\ncontinue\n"
    command = [sys.executable, "-m", "monarch_nb.cli.main", "debug", "dev"]
    told = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert "[1] 10" in told.stdout
    assert "Detached from debug session for cell 1" in told.stdout
    assert "told to continue" in told.stdout
    assert "[2] end 21" in kernel.wait(cell)


def test_ctrl_c_leaves_the_prompt_and_another_interrupts(kernel: Kernel) -> None:
    cell = kernel.start(STEPS)
    all_asked(kernel, cell, 4)
    kernel.interrupt()
    kernel.wait(cell, "stay where they are")
    kernel.interrupt()
    assert "KeyboardInterrupt" in kernel.wait(cell)
    assert "no rank has stopped" in kernel.run("%mesh debug")


def test_headless_cells_go_on_or_fail(kernel: Kernel) -> None:
    text = kernel.run(STEPS, headless=True)
    assert "[stderr:0-3] breakpoint() at Cell In[3]:2 was passed: nobody can answer here" in text
    assert "[1] end 11" in text
    text = kernel.run(STEPS.replace("%%mesh", "%%mesh --on-breakpoint=error"), headless=True)
    assert "the run fails there (--on-breakpoint=error)" in text
    assert "passed: nobody can answer here" in kernel.run(STEPS.replace("%%mesh", "%%mesh --on-breakpoint=go-on"))


def test_after_an_error(kernel: Kernel) -> None:
    assert "no error to look at" in kernel.run("%mesh debug --post-mortem")
    kernel.run("%%mesh\ndef bad(batch):\n    raise ValueError('bad rank')\nif rank % 2: bad(rank)")
    cell = kernel.start("%mesh debug --post-mortem")
    shown = kernel.asked(cell, DBG)
    assert shown.count("bad (error)") == 2
    assert "[1] 1\n[3] 3" in type_in(kernel, cell, "cast cell ranks(:) p batch", DBG)
    assert "-> raise ValueError" in type_in(kernel, cell, "attach cell 3", PDB)
    type_in(kernel, cell, "detach", DBG)
    kernel.answer("quit")
    kernel.wait(cell)
    assert "no rank has stopped" in kernel.run("%mesh debug")


def test_quitting_in_pdb_fails_that_rank(kernel: Kernel) -> None:
    cell = kernel.start(STEPS)
    all_asked(kernel, cell, 4)
    type_in(kernel, cell, "attach cell 1", PDB)
    type_in(kernel, cell, "q", DBG)
    kernel.answer("continue")
    text = kernel.wait(cell)
    assert "quit in the debugger" in text
    assert "[0] end 1" in text


def test_from_python(mesh: Mesh) -> None:
    debugger = Debugger(mesh)
    assert debugger.stops() == []
    run = mesh.submit("x = rank\nbreakpoint()\nx * 2", on_breakpoint="stop")
    eventually(lambda: [stop.rank for stop in debugger.stops()] == list(range(8)))
    assert debugger.cast("1:8:3", "p x") == {1: "1\n", 4: "4\n", 7: "7\n"}
    with pytest.raises(UsageError, match="No debug sessions for actor trainers; stopped are cell"):
        debugger.cast("all", "p x", "trainers")
    with pytest.raises(UsageError, match="no stopped rank of cell is among these; there are 0-2"):
        Debugger(mesh.slice(hosts=0, procs=slice(0, 3))).cast("3:", "p x")
    with pytest.raises(UsageError, match="attach talks to one rank, not to 0-3"):
        debugger.attach("0-3")
    attached = debugger.attach("5")
    assert "-> breakpoint()" in attached.look()
    assert attached.send("x = 50") == ""
    debugger.continue_all()
    assert run.result() == [0, 2, 4, 6, 8, 100, 12, 14]
    run = mesh.submit("breakpoint()", on_breakpoint="error")
    with pytest.raises(RunFailed, match="breakpoint"):
        run.result()


def test_a_script_stops_too(mesh: Mesh, tmp_path: Path) -> None:
    path = tmp_path / "stopping.py"
    path.write_text("import os\nrank = int(os.environ['RANK'])\nif rank == 2: breakpoint()\nprint('end', rank)\n")
    run = mesh.submit_script(str(path))
    run.wait(TIMEOUT_S)
    assert "passed: nobody can answer here" in "".join(record.text for record in run.logs())
    assert os.path.exists(path)
