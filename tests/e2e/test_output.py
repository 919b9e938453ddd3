"""What ranks print, draw and return, as a person sees it in JupyterLab."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.lab import OpenNotebook
from integration.live import Gate

MAX_STORED_BYTES = 200_000


@pytest.mark.quick
def test_output_folds_by_ranks(open_notebook: OpenNotebook) -> None:
    figure = "import matplotlib.pyplot as plt\nif rank == 1:\n    plt.plot([1, 2])"
    notebook = open_notebook(
        "%%mesh\nprint('hello')\nprint('I am', rank)", "%%mesh\nrank % 2", f"%%mesh\n{figure}", "%%mesh\n1 / (rank - 1)"
    )
    assert re.match(r"dev: 2 nodes × 2 procs, 4 ranks ready in [\d.]+ s\nfiles: every node sees ", notebook.text(0))
    lines = ["[0-3] hello", "[0] I am 0", "[1] I am 1", "[2] I am 2", "[3] I am 3"]
    assert [line.strip() for line in notebook.run(1).splitlines()] == lines
    assert notebook.run(2).splitlines() == ["Out[0,2]: 0", "Out[1,3]: 1"]
    assert notebook.run(3).splitlines()[0].strip() == "[1]"
    drawn = notebook.output(3).locator("img")
    expect(drawn).to_have_count(1)
    assert drawn.evaluate("image => image.naturalWidth") > 200
    assert "1 of 4 ranks failed" in notebook.run(4)
    assert "ZeroDivisionError" in notebook.text(4)


def test_how_a_cell_scales_is_a_table_and_a_picture(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("%%mesh --scale 1,2,4 --per tokens\nprint('tokens: 1,000')")
    shown = notebook.run(1)
    assert "tokens/s\tefficiency\n1\t" in shown
    assert "3 runs measured in" in shown
    assert "[0-3] tokens: 1,000" in shown, "of the last run"
    assert "[0-1] tokens" not in shown, "what earlier runs print goes with them"
    drawn = notebook.output(1).locator("img")
    expect(drawn).to_have_count(1)
    assert drawn.evaluate("image => image.naturalWidth") > 400
    table, picture, *_ = notebook.save().cells[1].outputs
    assert "<table" in table.data["text/html"]
    assert picture.data["image/svg+xml"].startswith("<svg")
    assert "100 %" in picture.data["text/plain"]


def test_json_stands_between_the_lines_and_is_updated_from_later_cells(open_notebook: OpenNotebook) -> None:
    show = "print('above')\n    chart = display(JSON({'a': 'old'}), display_id=True)"
    notebook = open_notebook(
        f"%%mesh -t 0\nfrom IPython.display import JSON\nif 'chart' not in vars():\n    {show}\nprint('below')",
        "%%mesh -t 0\nchart.update(JSON({'a': 'new'}))\nprint('updated')",
    )
    lines = [line.strip() for line in notebook.run(1).splitlines() if line.startswith("[")]
    assert lines == ["[0] above", "[0]", "[0] below"], "and the chart beside its rank"
    expect(notebook.output(1).locator(".jp-RenderedJSON")).to_have_count(1)
    assert notebook.run(2) == "[0] updated"
    expect(notebook.output(1).locator(".jp-RenderedJSON")).to_contain_text("new")
    _, shown, _ = notebook.save().cells[1].outputs
    assert shown.data["application/json"] == {"a": "new"}
    assert notebook.run(1) == "[0] below", "which it is no more"
    notebook.run(2)
    expect(notebook.output(2).locator(".jp-RenderedJSON")).to_have_count(1)


def test_lines_and_progress_bars_show_while_the_cell_runs(
    open_notebook: OpenNotebook, make_gate: Callable[[], Gate]
) -> None:
    gate, steps = make_gate(), [make_gate() for _ in range(4)]
    waits = [f"{'if' if step == 0 else 'elif'} step == {step}:\n        {gate.wait}" for step, gate in enumerate(steps)]
    loop = "\n    ".join(["for step in tqdm(range(4), desc='train', mininterval=0):", *waits])
    notebook = open_notebook(
        f"%%mesh\nprint('first')\n{gate.wait}\nprint('second', rank)", f"%%mesh\nfrom tqdm import tqdm\n{loop}"
    )
    notebook.start(1)
    notebook.wait_for_text(1, "[0-3] first")
    notebook.wait_for_text(1, "running on 4 ranks")
    assert notebook.is_running(1)
    gate.open(4)
    notebook.wait_for_end(1)
    notebook.wait_for_text(1, "[3] second 3")
    notebook.start(2)
    for step in range(4):
        notebook.wait_for_text(2, re.compile(rf"train:\s+{25 * step}%\|[^|]*\| {step}/4 "))
        expect(notebook.output(2)).not_to_contain_text(f" {step - 1}/4 ")  # on any rank
        assert notebook.is_running(2)
        steps[step].open(4)
    notebook.wait_for_end(2)
    assert "100%" in notebook.text(2)
    assert " 75%" not in notebook.text(2)


def test_a_flood_leaves_the_page_responsive_and_the_file_small(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("%%mesh\nfor i in range(200_000):\n    print('line', i, 'of rank', rank)", "pass")
    notebook.start(1)
    notebook.wait_for_text(1, re.compile(r"line \d+ of rank"))
    frames = 0
    while notebook.is_running(1):
        _draw_frame(notebook.page)
        frames += 1
    assert frames > 3, "a frozen page draws none until the flood is over"
    for rank in range(4):
        notebook.wait_for_text(1, f"line 199999 of rank {rank}")
    assert re.search(r"… [\d,]+ lines on rank.* not shown; %mesh logs --run \d+ -n 0 has them", notebook.text(1))
    notebook.save()
    assert notebook.path.stat().st_size < MAX_STORED_BYTES


def _draw_frame(page: Page) -> None:
    """Wait until the page has drawn its next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
