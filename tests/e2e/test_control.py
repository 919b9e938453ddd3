"""Interrupts, lost kernels and Tab, in JupyterLab."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

from playwright.sync_api import expect

from e2e.lab import WAIT_MS, Lab, OpenNotebook
from integration.live import Gate
from leaks import wait_for_end


def test_the_stop_button_frees_ranks_that_hang_in_a_collective(open_notebook: OpenNotebook) -> None:
    init = "%%mesh\nimport torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    reduce = "x = torch.ones(1) * rank\ndist.all_reduce(x)\nx.item()"
    notebook = open_notebook(
        f"{init}kept = {{'steps': 7}}\n{reduce}",
        "%%mesh --on-error wait\nif rank == 0:\n    raise ValueError('bad batch')\ndist.all_reduce(x)",
        f"{init}{reduce}",
        "%mesh pull kept['steps']",
    )
    assert notebook.run(1).splitlines()[-1] == "Out[0-3]: 6.0"
    notebook.start(2)
    notebook.wait_for_text(2, re.compile(r"ranks 1-3 wait in all_reduce.*for rank 0, which raised ValueError"))
    assert notebook.is_running(2)
    notebook.interrupt()
    notebook.wait_for_end(2)
    assert "ValueError: bad batch" in notebook.text(2)
    assert notebook.run(3).splitlines()[-1] == "Out[0-3]: 6.0"
    assert notebook.run(4) == "[7, 7, 7, 7]"


def test_a_lost_kernel_gets_its_mesh_and_its_running_cell_back(
    lab: Lab, open_notebook: OpenNotebook, make_gate: Callable[[], Gate]
) -> None:
    lost, attached = make_gate(), make_gate()
    notebook = open_notebook(
        "import os\nprint(os.getpid())\n%mesh push answer=42",
        f"%%mesh\nprint('step 0')\n{lost.wait}\nprint('step 1')\n{attached.wait}\nprint('trained')\nrank % 2",
        "%load_ext monarch_nb",
        "%mesh attach",
        "%mesh pull answer",
    )
    pid = int(notebook.run(1).splitlines()[0])
    notebook.start(2)
    notebook.wait_for_text(2, "[0-3] step 0")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid, WAIT_MS / 1000)
    notebook.accept("Kernel Restarting")
    lost.open(4)
    lab.wait_for_kernel()  # Jupyter is done with its own restart
    notebook.choose("Kernel", "Restart Kernel…")
    with notebook.page.expect_response(re.compile("/api/kernels/.*/restart"), timeout=WAIT_MS):
        notebook.accept("Restart Kernel?")
    notebook.wait_for_kernel()
    told = notebook.run(3)
    alive = "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert told == f"{alive}, run 2, cell [3] still running: %mesh attach follows it, %mesh interrupt stops it"
    notebook.start(4)
    notebook.wait_for_text(4, "[0-3] step 1")
    assert notebook.is_running(4)
    attached.open(4)
    notebook.wait_for_end(4)
    notebook.wait_for_text(4, re.compile(r"\[0-3\] trained\s*Out\[0,2\]: 0\s*Out\[1,3\]: 1"))
    assert notebook.run(5) == "[42, 42, 42, 42]"


def test_tab_completes_names_of_a_rank_and_subcommands(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("%%mesh\nglobals()['weights' + '_of_layer_1'] = 1", "%%mesh\nprint(weig", "%mesh re")
    notebook.run(1)
    offered = notebook.page.locator(".jp-Completer .jp-Completer-match")
    notebook.focus(2)
    notebook.page.keyboard.press("Tab")
    expect(offered).to_have_text(["weights_of_layer_1"])
    notebook.page.keyboard.press("Enter")
    expect(notebook.cell(2).locator(".cm-content")).to_contain_text("print(weights_of_layer_1")
    notebook.focus(3)
    notebook.page.keyboard.press("Tab")
    expect(offered).to_have_text(["release", "replace", "reserve", "restart"])
