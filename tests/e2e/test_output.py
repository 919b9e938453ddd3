"""What ranks print, draw and return, as a person sees it in JupyterLab."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from e2e.lab import OpenNotebook, Signals

RESPONSIVE_MS = 2_000
"""How long the page may take to draw a frame at any time (a frozen page takes tens of seconds)."""
MAX_STORED_BYTES = 200_000


def test_output_folds_by_ranks(open_notebook: OpenNotebook) -> None:
    figure = "import matplotlib.pyplot as plt\nif rank == 1:\n    plt.plot([1, 2])"
    notebook = open_notebook(
        "%%mesh\nprint('hello')\nprint('I am', rank)", "%%mesh\nrank % 2", f"%%mesh\n{figure}", "%%mesh\n1 / (rank - 1)"
    )
    assert re.match(r"dev: 2 nodes × 2 procs, 4 ranks ready in [\d.]+ s$", notebook.text(0))
    lines = ["[0-3] hello", "[0] I am 0", "[1] I am 1", "[2] I am 2", "[3] I am 3"]
    assert [line.strip() for line in notebook.run(1).splitlines()] == lines
    assert notebook.run(2).splitlines() == ["Out[0,2]: 0", "Out[1,3]: 1"]
    assert notebook.run(3).splitlines()[0].strip() == "[1]"
    drawn = notebook.output(3).locator("img")
    expect(drawn).to_have_count(1)
    assert drawn.evaluate("image => image.naturalWidth") > 200
    assert "1 of 4 ranks failed" in notebook.run(4)
    assert "ZeroDivisionError" in notebook.text(4)


def test_lines_and_progress_bars_show_while_the_cell_runs(open_notebook: OpenNotebook, signals: Signals) -> None:
    bar = "from tqdm import tqdm\nfor step in tqdm(range(4), desc='train', mininterval=0):\n    wait_for(step)"
    notebook = open_notebook(
        f"%%mesh\n{signals.code}", "%%mesh\nprint('first')\nwait_for('second')\nprint('second', rank)", f"%%mesh\n{bar}"
    )
    notebook.run(1)
    notebook.start(2)
    notebook.wait_for_text(2, "[0-3] first")
    notebook.wait_for_text(2, "running on 4 ranks")
    assert notebook.is_running(2)
    signals.give("second")
    notebook.wait_for_end(2)
    notebook.wait_for_text(2, "[3] second 3")
    notebook.start(3)
    for step in range(4):
        notebook.wait_for_text(3, re.compile(rf"train:\s+{25 * step}%.* {step}/4 "))
        assert notebook.is_running(3)
        signals.give(str(step))
    notebook.wait_for_end(3)
    assert "100%" in notebook.text(3)
    assert " 25%" not in notebook.text(3)


def test_output_lands_in_the_cell_that_caused_it(open_notebook: OpenNotebook, signals: Signals) -> None:
    thread = "import threading\ndef later():\n    wait_for('thread')\n    print('from the thread', rank)"
    notebook = open_notebook(
        f"%%mesh --local\n{signals.code}",
        "%%mesh --noblock\nprint('begun')\nwait_for('go on')\nprint('still here')\nwait_for('finish')\nrank + 40",
        "print('in the kernel')\nwait_for('kernel')",
        f"%%mesh\n{thread}\nthreading.Thread(target=later).start()\nprint('started')",
        "%%mesh\nprint('another cell')",
    )
    notebook.run(1)
    notebook.run(2)
    notebook.wait_for_text(2, "[0-3] begun")
    notebook.start(3)
    notebook.wait_for_text(3, "in the kernel")
    signals.give("go on")
    notebook.wait_for_text(2, "[0-3] still here")
    assert notebook.is_running(3)
    signals.give("kernel")
    notebook.wait_for_end(3)
    signals.give("finish")
    notebook.wait_for_text(2, "Out[3]: 43")
    assert notebook.text(3) == "in the kernel"

    notebook.run(4)
    notebook.run(5)
    signals.give("thread")
    notebook.wait_for_text(4, "[2] from the thread 2")
    assert notebook.text(4).splitlines()[0] == "[0-3] started"
    assert notebook.text(5) == "[0-3] another cell"


def test_a_flood_leaves_the_page_responsive_and_the_file_small(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("%%mesh\nfor i in range(200_000):\n    print('line', i, 'of rank', rank)", "pass")
    notebook.start(1)
    notebook.wait_for_text(1, re.compile(r"line \d+ of rank"))
    slowest_ms = frames = 0
    while notebook.is_running(1):
        slowest_ms = max(slowest_ms, _frame_ms(notebook.page))
        frames += 1
    assert frames > 3
    assert slowest_ms < RESPONSIVE_MS
    notebook.wait_for_text(1, "line 199999 of rank 3")
    assert re.search(r"… [\d,]+ lines on rank.* not shown; %mesh logs has them", notebook.text(1))
    notebook.save()
    assert notebook.path.stat().st_size < MAX_STORED_BYTES


def _frame_ms(page: Page) -> int:
    """How long the page takes to draw its next frame."""
    return page.evaluate(
        "() => new Promise(done => { const began = performance.now();"
        " requestAnimationFrame(() => setTimeout(() => done(Math.round(performance.now() - began)))); })"
    )

