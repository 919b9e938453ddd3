"""Curves of what ranks print: live in JupyterLab, and in the notebook that is saved."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from e2e.lab import Lab, OpenNotebook
from integration.live import Gate

OUTPUT = "jupyterapp.shell.currentWidget.content.widgets[2].outputArea.model.get(0)"
"""What the cell of the curves holds."""
TRAINING = """%%mesh --noblock
for step in range(200):
    print(f"step: {{step}}  loss: {{5 / (step + 1) + rank:.4f}}  tps: {{9000 + step:,}}")
{gate}
for step in range(200, 400):
    print(f"step: {{step}}  loss: {{5 / (step + 1) + rank:.4f}}  tps: {{9000 + step:,}}")
"""


def test_curves_grow_can_be_read_under_the_mouse_and_stay_in_the_notebook(
    open_notebook: OpenNotebook, lab: Lab, make_gate: Callable[[], Gate]
) -> None:
    gate = make_gate()
    notebook = open_notebook(TRAINING.format(gate=gate.wait), "%mesh plot loss tps")
    notebook.run(1)
    notebook.run(2)
    view = notebook.output(2).locator(".mnb-curves-view")
    charts = view.locator(".uplot")
    expect(charts).to_have_count(2)
    expect(view.locator(".u-title")).to_have_text(["loss", "tps"])
    legend = charts.nth(0).locator(".u-legend")
    last = re.compile(r"step\W*199.*loss\W*0\.025")
    expect(legend, "the last values, where the mouse is elsewhere").to_contain_text(last)
    charts.nth(1).hover(position={"x": 300, "y": 80})
    expect(charts.nth(1).locator(".u-legend")).to_contain_text("9,")
    gate.open(4)
    box = charts.nth(1).bounding_box()
    assert box is not None
    charts.nth(1).hover(position={"x": box["width"] - 40, "y": 80})  # charts are as wide as the cell
    expect(charts.nth(1).locator(".u-legend")).to_contain_text("9,3", timeout=60_000)
    last = "loss: 0.0125 at step 399 on rank 0; last 0.0125 (rank 0) to 3.0125 (rank 3)"
    notebook.page.wait_for_function(f"() => ({OUTPUT}).data['text/plain'].includes({last!r})")
    [output] = notebook.save().cells[2].outputs
    assert output.data["image/svg+xml"].startswith("<svg")
    assert len(str(output)) < 60_000
    expect(charts).to_have_count(2)
    lab.shut_kernels_down()
    notebook.page.reload()
    expect(notebook.output(2).locator("img")).to_be_visible()
