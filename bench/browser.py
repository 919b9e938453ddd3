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
from playwright.sync_api import Browser, Locator, Page, WebSocket

from bench.flood import most_in_a_second
from bench.harness import RANKS, Bench, Outcome, Row, duration, median
from bench.panel import busy_nodes
from e2e.lab import Lab, home_variables, running_browser, running_lab
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.config import DEFAULT_POOL

LINES = 1_000_000
FLOOD_LINES_PER_S = 100_000
TAB = ".jp-SideBar .lm-TabBar-tab[data-id='monarch-nb-panel']"
_WATCH = """
until => {
  const there = new Function(`return ${until}`);
  window.measured = new Promise(resolve => {
    const begin = async () => {
      const began = performance.now();
      while (!there()) await new Promise(requestAnimationFrame);
      await new Promise(requestAnimationFrame);
      resolve((performance.now() - began) / 1000);
    };
    addEventListener('pointerdown', () => void begin(), {capture: true, once: true});
  });
}"""
"""From the next press of the mouse, measure how long it takes until something is painted."""
_HEAR = """
window.heard = [];
window.WebSocket = class extends WebSocket {
  constructor(...options) {
    super(...options);
    if (this.url.includes('monarch-nb/events'))
      this.addEventListener('message', () => heard.push(performance.now() / 1000));
  }
};"""
"""Keep when messages came from the server."""
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
        opened_s = []
        for _ in range(bench.repeats(5, 3)):
            page, after_s = _open(lab, browser, _VISIBLE.format(".mnb-slot", 128))
            opened_s.append(after_s)
            page.close()
        bench.say(f"opened after {', '.join(map(duration, opened_s))}")
        page, _ = _open(lab, browser, _VISIBLE.format(".mnb-rank", 128))
        page.wait_for_function("document.querySelectorAll('.mnb-slot-level').length >= 128")
        page.evaluate("heard.length = 0")
        before, began = _browser_cpu_s(), time.monotonic()
        page.wait_for_timeout(seconds * 1000)
        elapsed_s = time.monotonic() - began
        share, rate = (_browser_cpu_s() - before) / elapsed_s, len(_heard_s(page)) / elapsed_s
    opened = median(opened_s)
    return Outcome(
        f"open after {duration(opened)}; {share:.1%} of one core for {rate:.1f} changes a second",
        opened <= 0.5 and share <= 0.1 and rate >= 0.8,
    )


def measure_long_log(bench: Bench) -> Outcome:
    """Measure how soon a log of a million lines is open at its newest line, and scroll through it."""
    with bench.reserved(1, RANKS) as reservation, _lab_and_browser(pool=bench.warm_pool(1, RANKS)) as (lab, browser):
        reservation.mesh.run(f"for line in range({LINES // RANKS}):\n    print(f'rank {{rank}} line {{line}}')")
        page, _ = _open(lab, browser, _VISIBLE.format(".mnb-rank", 1))
        opened_s = []
        for _ in range(bench.repeats(5, 1)):
            opened_s.append(_seconds_until(page, _log_button(page), _LAST_LINE))
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


_VISIBLE = "[...document.querySelectorAll('{}')].filter(cell => cell.getBoundingClientRect().height).length >= {}"
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
    with bench.reserved(1, RANKS) as reservation, _lab_and_browser(pool=bench.warm_pool(1, RANKS)) as (lab, browser):
        page, _ = _open(lab, browser, _VISIBLE.format(".mnb-rank", 1))
        _log_button(page).click()
        page.locator(".mnb-lines").wait_for()
        run = reservation.mesh.submit(code)
        while not run.done:
            page.wait_for_timeout(200)
        page.wait_for_timeout(1000)
        heard_s = _heard_s(page)
        rate = FLOOD_LINES_PER_S * seconds / max(_elapsed(reservation.mesh))
    most = most_in_a_second(heard_s)
    return Outcome(
        f"{most} messages a second at {rate:,.0f} lines a second", most <= 10 and rate >= 0.8 * FLOOD_LINES_PER_S
    )


def _elapsed(mesh: Mesh) -> list[float]:
    return [float(value) for value in mesh.pull("elapsed_s")]


def _heard_s(page: Page) -> list[float]:
    """Return when each message of the server came."""
    return [float(at_s) for at_s in page.evaluate("heard")]


def _log_button(page: Page) -> Locator:
    return page.locator("#monarch-nb-panel").get_by_role("button", name="Log", exact=True)


def _seconds_until(page: Page, pressed: Locator, until: str) -> float:
    """Press something; return how long it takes until the expression `until` is true, and what it says is painted."""
    page.evaluate(_WATCH, until)
    pressed.click()
    return float(page.evaluate("window.measured"))


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


def _open(lab: Lab, browser: Browser, until: str, hear: Callable[[str], object] = lambda _: None) -> tuple[Page, float]:
    """Open JupyterLab, and then the panel; return after how many seconds it showed what it must.

    Args:
        until: an expression that is true then.
        hear: told the kind of each message of the server.
    """

    def listen(socket: WebSocket) -> None:
        if "monarch-nb/events" in socket.url:
            socket.on("framereceived", lambda payload: hear(json.loads(payload)["type"]))

    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.add_init_script(_HEAR)
    page.goto(lab.url("lab?reset"))
    page.locator(TAB).wait_for()
    page.locator(".jp-Launcher").wait_for()
    return page, _seconds_until(page, page.locator(TAB), until)


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
        "JupyterLab runs in Chromium (headless, drawing with the processor) on 16 made-up nodes, as above. The time is "
        "that from the click on the panel's tab until the last of 128 squares is painted, median of 5 pages. Then the "
        "bench measures the processor time of all processes of the browser over half a minute, and once more with the "
        "panel closed.",
        measure_panel,
    ),
    Row(
        "long-log",
        f"a log of a million lines, {LINES // RANKS:,} of each of {RANKS} ranks, all different",
        "open in 1 s; no blank frame while one scrolls",
        "The time from the click on *Log* until the newest line is painted, median of 5. Then the scroll bar jumps "
        "through the whole log, to another place in each of 200 frames. A frame with fewer lines than fit is blank.",
        measure_long_log,
    ),
    Row(
        "log-flood",
        f"a log that is followed while {RANKS} ranks print {FLOOD_LINES_PER_S:,} lines a second together",
        "at most 10 messages a second reach the browser",
        "The most messages of all kinds on the panel's WebSocket in any one second, while the log is open and follows.",
        measure_flooded_log,
    ),
]
