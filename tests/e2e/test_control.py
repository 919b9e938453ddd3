"""Interrupts, lost kernels and Tab, in JupyterLab."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from e2e.lab import OpenNotebook


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
