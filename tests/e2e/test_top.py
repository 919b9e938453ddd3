"""Where ranks are, in JupyterLab: the panel's tab beside a cell that runs, and the flame graph below one."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from e2e.lab import OpenNotebook
from e2e.panel import PanelPage
from integration.live import TIMEOUT_S, eventually, started
from monarch_nb.client.reservations.reservation import Reservation

LATE = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
def load():
    time.sleep(0.05 if rank == 1 else 0)
while True:
    load()
    dist.all_reduce(torch.ones(4))
"""
BUSY = """%%mesh --profile=python
import time
def busy():
    end = time.monotonic() + 1
    while time.monotonic() < end:
        sum(range(999))
busy()"""


def test_the_panel_names_who_is_waited_for_in_a_tab_while_it_can_be_seen(panel: PanelPage, held: Reservation) -> None:
    page = panel.page
    run, _ = started(held.mesh, LATE)
    try:
        panel.button("Top").click()
        root = page.locator(".mnb-top:visible")
        sentence = root.get_by_role("status")
        expect(sentence).to_contain_text("Slow: rank 1 ", timeout=60_000)
        expect(sentence).to_contain_text("ranks 0,2-3 wait for it in all_reduce")
        expect(root.locator("tbody tr")).to_have_count(4)
        late = root.locator("tbody tr.mnb-top-late")
        expect(late.locator("th")).to_have_text("1 ←")
        expect(late.locator(".mnb-top-where")).to_contain_text(f"Run {run.number}:")
        bar = root.locator("tbody tr").first.locator("i[data-kind=collective]").first
        eventually(lambda: bar.evaluate("bar => bar.getBoundingClientRect().width") > 40)  # it shows the share
        page.wait_for_event("request", lambda request: "/monarch-nb/api/top" in request.url)
        page.get_by_role("tab", name=re.compile("dev top")).locator(".lm-TabBar-tabCloseIcon").click()
        expect(root).to_have_count(0)
    finally:
        run.interrupt()
        assert run.wait(TIMEOUT_S)
    panel.button("Top").click()
    expect(sentence).to_have_text("nothing runs on these ranks", timeout=60_000)


def test_a_flame_graph_is_a_picture_in_the_cell_and_in_the_saved_notebook(
    open_notebook: OpenNotebook,
) -> None:
    notebook = open_notebook(BUSY)
    notebook.run(1)
    picture = notebook.output(1).locator("img, svg.mnb-flames").first
    expect(picture).to_be_visible()
    expect(notebook.output(1)).to_contain_text("open it at www.speedscope.app")
    expect(notebook.output(1).locator("a").first).to_have_text(re.compile(r"^traces/run\d+\.speedscope\.json$"))
    outputs = notebook.save().cells[1].outputs
    [drawn] = [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert "busy" in drawn
    assert len(drawn) < 60_000
