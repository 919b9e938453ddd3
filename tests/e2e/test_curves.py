"""Curves of what ranks print: live in JupyterLab, and in the notebook that is saved."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from e2e.lab import Lab, OpenNotebook
from e2e.panel import PanelPage
from integration.live import Gate, started
from monarch_nb.client.reservations.reservation import Reservation

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
    width = charts.nth(1).evaluate("chart => chart.clientWidth")  # as wide as the cell
    gate.open(4)
    charts.nth(1).hover(position={"x": width - 40, "y": 80})
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


def test_the_panel_shows_curves_as_a_tab_live_and_by_keyboard(
    panel: PanelPage, held: Reservation, make_gate: Callable[[], Gate]
) -> None:
    page, gate = panel.page, make_gate()
    code = TRAINING.format(gate=gate.wait).removeprefix("%%mesh --noblock\n")
    loaded: list[str] = []
    page.on("request", lambda asked: loaded.append(asked.url))
    run, _ = started(held.mesh, code)
    panel.button("Curves").click()
    root = page.locator(".mnb-curves:visible")
    charts = root.locator(".uplot")
    expect(root.locator(".u-title")).to_have_text(["loss"])
    root.get_by_role("button", name="tps", exact=True).focus()
    page.keyboard.press("Enter")
    expect(root.locator(".u-title")).to_have_text(["loss", "tps"])
    chunks = [url for url in loaded if "extensions/monarch-nb/static" in url]
    assert chunks, "what draws is loaded when it is needed"

    tps, legend = charts.nth(1), charts.nth(1).locator(".u-legend")
    tps.focus()
    page.keyboard.press("End")
    expect(legend).to_contain_text("9,199")
    gate.open(4)
    run.wait()
    tps.press("Escape")
    tps.press("End")
    expect(legend).to_contain_text("9,399", timeout=60_000)
    page.keyboard.press("ArrowLeft")
    expect(legend).to_contain_text("9,395")
    expect(charts.nth(0).locator(".u-legend")).to_contain_text("greatest")

    other, _ = started(held.mesh, "print('step: 1  accuracy: 0.5')\nprint('step: 9  accuracy: 0.75')")
    other.wait()
    expect(root.locator(".u-title")).to_have_text(["accuracy"], timeout=60_000)
    root.get_by_label("Run", exact=True).select_option(str(run.number))
    expect(root.locator(".u-title")).to_have_text(["loss", "tps"])
