"""The panel in a real browser: how soon it opens, what it costs, and logs that are long or grow fast."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import psutil
from playwright.sync_api import Browser, Page, WebSocket

from monarch_nb.client.mesh import Mesh
from monarch_nb.config import DEFAULT_POOL
from tests.bench.flood import most_in_a_second
from tests.bench.harness import RANKS, Bench, Outcome, Row, duration, median
from tests.bench.panel import busy_nodes
from tests.e2e.lab import Lab, home_variables, running_browser, running_lab

LINES = 1_000_000
FLOOD_LINES_PER_S = 100_000
TAB = ".jp-SideBar .lm-TabBar-tab[data-id='monarch-nb-panel']"
_SECONDS_UNTIL = """
async ([click, until]) => {
  const began = performance.now();
  document.querySelector(click).dispatchEvent(new MouseEvent('mousedown', {bubbles: true, button: 0}));
  document.querySelector(click).dispatchEvent(new MouseEvent('mouseup', {bubbles: true, button: 0}));
  document.querySelector(click).click();
  const there = new Function(`return ${until}`);
  while (!there()) {
    if (performance.now() - began > 60000) throw new Error(`this did not come: ${until}`);
    await new Promise(requestAnimationFrame);
  }
  await new Promise(requestAnimationFrame);
  return (performance.now() - began) / 1000;
}"""
"""Press something, and say after how many seconds something else was painted."""
_SCROLL = """
async frames => {
  const box = document.querySelector('.mnb-lines');
  const rows = Math.floor(box.clientHeight / 18) - 1;
  let blank = 0;
  let longest_ms = 0;
  for (let frame = 0; frame < frames; frame += 1) {
    const began = performance.now();
    box.scrollTop = (frame * 7919 % frames) / frames * (box.scrollHeight - box.clientHeight);
    await new Promise(requestAnimationFrame);
    const shown = [...box.querySelectorAll('.mnb-line-text')].filter(line => line.textContent);
    blank += shown.length < rows ? 1 : 0;
    longest_ms = Math.max(longest_ms, performance.now() - began);
  }
  const began = performance.now();
  const wanted = 1000000 / 2;
  box.scrollTop = (box.scrollHeight - box.clientHeight) / 2;
  const first = () => Number(box.querySelector('.mnb-line')?.dataset.row);
  while (Math.abs(first() - wanted) > 1000) await new Promise(requestAnimationFrame);
  return [blank, longest_ms / 1000, (performance.now() - began) / 1000];
}"""
"""Jump through the whole log, one place a frame; count frames without lines, and say how long the last place took."""


def measure_panel(bench: Bench) -> Outcome:
    """Measure how soon the panel shows 16 nodes, and the processor time of the whole browser after that."""
    seconds = bench.repeats(30, 10)
    with ExitStack() as stack:
        environment = stack.enter_context(busy_nodes(bench.directory / "b"))
        lab, browser = stack.enter_context(_lab_and_browser(environment))
        opened_s = [
            _open(lab, browser, "document.querySelectorAll('.mnb-slot').length >= 128")[1]
            for _ in range(bench.repeats(5, 3))
        ]
        bench.say(f"opened after {', '.join(map(duration, opened_s))}")
        page, _ = _open(lab, browser, "document.querySelectorAll('.mnb-rank').length >= 128")
        page.wait_for_function("document.querySelectorAll('.mnb-slot-level').length >= 128")
        before, began = _browser_cpu_s(), time.monotonic()
        page.wait_for_timeout(seconds * 1000)
        share = (_browser_cpu_s() - before) / (time.monotonic() - began)
        page.locator(".jp-SideBar .lm-TabBar-tab[data-id='filebrowser']").click()
        page.wait_for_timeout(2000)
        before, began = _browser_cpu_s(), time.monotonic()
        page.wait_for_timeout(seconds * 1000)
        without = (_browser_cpu_s() - before) / (time.monotonic() - began)
    opened = median(opened_s)
    return Outcome(
        f"open after {duration(opened)}; then {share:.0%} of one core",
        opened <= 0.5 and share <= 0.1,
        beside=f"the same page with the panel closed {without:.0%}",
    )


def measure_long_log(bench: Bench) -> Outcome:
    """Measure how soon a log of a million lines is open at its newest line, and scroll through it."""
    with bench.reserved(1, RANKS) as reservation, _lab_and_browser(pool=bench.warm_pool(1, RANKS)) as (lab, browser):
        reservation.mesh.run(f"for line in range({LINES // RANKS}):\n    print(f'rank {{rank}} line {{line}}')")
        page, _ = _open(lab, browser, "document.querySelectorAll('.mnb-rank').length > 0")
        opened_s = []
        for _ in range(bench.repeats(5, 1)):
            opened_s.append(page.evaluate(_SECONDS_UNTIL, [_mark(page, "Log"), _LAST_LINE]))
            if len(opened_s) < bench.repeats(5, 1):
                page.locator(".lm-TabBar-tabCloseIcon").last.click()
        page.wait_for_function("document.querySelector('.mnb-log-head').innerText.includes('1,000,000 lines')")
        blank, longest_s, there_s = page.evaluate(_SCROLL, 200)
    opened = median(opened_s)
    return Outcome(
        f"open after {duration(opened)}; {blank} blank frames of 200, the longest {duration(longest_s)}; a place in "
        f"the middle is there after {duration(there_s)}",
        opened <= 1 and blank == 0,
    )


_LAST_LINE = (
    f"[...document.querySelectorAll('.mnb-line')].some(line => line.innerText.includes('line {LINES // RANKS - 1}'))"
)


def measure_flooded_log(bench: Bench) -> Outcome:
    """Measure how often a browser that follows a log hears of it while ranks print without end."""
    per_rank = FLOOD_LINES_PER_S // RANKS
    seconds = bench.repeats(20, 8)
    code = (
        "import time\n"
        f"began = time.monotonic()\nfor line in range({per_rank * seconds}):\n"
        "    print(f'rank {rank} line {line}')\n"
        f"    if line % 100 == 0:\n        time.sleep(max(0, began + line / {per_rank} - time.monotonic()))\n"
        "elapsed_s = time.monotonic() - began"
    )
    heard_s: list[float] = []
    logs_s: list[float] = []

    def hear(payload: str | bytes) -> None:
        heard_s.append(time.monotonic())
        if json.loads(payload)["type"] == "log":
            logs_s.append(heard_s[-1])

    def listen(socket: WebSocket) -> None:
        if "monarch-nb/events" in socket.url:
            socket.on("framereceived", hear)

    with bench.reserved(1, RANKS) as reservation, _lab_and_browser(pool=bench.warm_pool(1, RANKS)) as (lab, browser):
        page, _ = _open(lab, browser, "document.querySelectorAll('.mnb-rank').length > 0", listen)
        page.locator(_mark(page, "Log")).click()
        page.locator(".mnb-lines").wait_for()
        run = reservation.mesh.submit(code)
        while not run.done():
            page.wait_for_timeout(200)
        page.wait_for_timeout(1000)
        rate = FLOOD_LINES_PER_S * seconds / max(_elapsed(reservation.mesh))
    most = max(most_in_a_second(logs_s), most_in_a_second(heard_s))
    return Outcome(
        f"{most} messages a second at {rate:,.0f} lines a second", most <= 10 and rate >= 0.8 * FLOOD_LINES_PER_S
    )


def _elapsed(mesh: Mesh) -> list[float]:
    return [float(value) for value in mesh.pull("elapsed_s")]


def _mark(page: Page, text: str) -> str:
    """Return a selector for the button with this text."""
    page.get_by_role("button", name=text, exact=True).first.evaluate("button => button.id = 'bench-button'")
    return "#bench-button"


@contextmanager
def _lab_and_browser(
    environment: Mapping[str, str] = os.environ, pool: str = DEFAULT_POOL
) -> Iterator[tuple[Lab, Browser]]:
    folder = Path(tempfile.mkdtemp(prefix="mnb-bench-", dir="/tmp"))
    try:
        with (
            mock.patch.dict(os.environ, {**environment, **home_variables(folder)}),
            running_lab(folder, options=[f"--MonarchNB.pool={pool}"]) as lab,
            running_browser() as browser,
        ):
            yield lab, browser
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(
    lab: Lab, browser: Browser, until: str, listen: Callable[[WebSocket], None] = lambda _: None
) -> tuple[Page, float]:
    """Open JupyterLab, and then the panel; return after how many seconds it showed what it must."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.on("websocket", listen)
    page.goto(lab.url("lab?reset"))
    page.locator(TAB).wait_for()
    page.locator(".jp-Launcher").wait_for()
    return page, float(page.evaluate(_SECONDS_UNTIL, [TAB, until]))


def _browser_cpu_s() -> float:
    """Return the processor time of all processes of the browser."""
    used = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "chrom" in process.name():
                times = process.cpu_times()
                used += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return used


ROWS = [
    Row(
        "panel-browser",
        "the panel in a browser: 128 ranks and 128 GPUs that change every second",
        "open in 0.5 s once JupyterLab is there; at most 10 % of one core",
        "JupyterLab in Chromium (headless, drawing with the processor) on the 16 made-up nodes of the row before. From "
        "the click on the panel's tab until the last of 128 squares is painted, median of 5 pages; then the processor "
        "time of all processes of the browser over half a minute, and once more with the panel closed.",
        measure_panel,
    ),
    Row(
        "long-log",
        f"a log of a million lines, {LINES // RANKS:,} of each of {RANKS} ranks, all different",
        "open in 1 s; no blank frame while one scrolls",
        "From the click on *Log* until the newest line is painted, median of 5. Then the scroll bar jumps through the "
        "whole log, to another place in each of 200 frames; a frame with fewer lines than fit is blank.",
        measure_long_log,
    ),
    Row(
        "log-flood",
        f"a log that is followed while {RANKS} ranks print {FLOOD_LINES_PER_S:,} lines a second together",
        "at most 10 messages a second reach the browser",
        "Messages on the panel's WebSocket, of all kinds, in any one second while the log is open and follows.",
        measure_flooded_log,
    ),
]
