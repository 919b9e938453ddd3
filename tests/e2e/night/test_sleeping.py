"""A tab that sleeps: no rank and no kernel waits for it, little piles up for it, and it catches up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import BrowserContext

import monarch_nb
from e2e.lab import Lab, OpenNotebook
from e2e.panel import PanelPage
from integration.live import Gate, eventually

FLOOD = """%%mesh
print('begun')
{wait}
for number in range(40_000):
    print('x' * 1000, number)
print('the end')
"""
"""160 MB in all."""
MOST_BYTES = 64 << 20


@contextmanager
def asleep(context: BrowserContext) -> Iterator[None]:
    """All pages of a browser stand still, and take nothing from the network."""
    browser = context.browser
    assert browser is not None
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [process["id"] for process in processes if process["type"] == "renderer"]
    try:
        for pid in pages:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pages:
            os.kill(pid, signal.SIGCONT)
        session.detach()


def test_a_tab_that_sleeps_holds_nobody_up(
    open_notebook: OpenNotebook, lab: Lab, browser_context: BrowserContext, make_gate: Callable[[], Gate]
) -> None:
    gate = make_gate()
    notebook = open_notebook(FLOOD.format(wait=gate.wait))
    panel, mesh = PanelPage(notebook.page), monarch_nb.attach("dev").mesh
    panel.show()
    notebook.start(1)
    notebook.wait_for_text(1, "begun")
    panel.wait_for_state("running", 0, 1, 2, 3)
    before = lab.memory_bytes
    with asleep(browser_context):
        gate.open(4)
        eventually(lambda: all(info.done for info in mesh.runs()))
        eventually(lambda: lab.kernel_is_idle)
        assert lab.memory_bytes - before < MOST_BYTES
    notebook.wait_for_text(1, "the end")
    notebook.wait_for_end(1)
    panel.wait_for_state("idle", 0, 1, 2, 3)
