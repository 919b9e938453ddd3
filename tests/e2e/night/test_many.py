"""The panel at 256 nodes × 8 ranks: what is in trouble comes first, all is a few steps away, the page stays small.

The nodes are made up: bench/programs/busy_nodes.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from e2e.axe import serious_findings
from e2e.lab import REPOSITORY, Lab, own_home, running_lab
from e2e.panel import PanelPage
from monarch_nb.config import HOME_VARIABLE

NODES = REPOSITORY / "bench" / "programs" / "busy_nodes.py"
MOST_ELEMENTS = 1500
"""In the panel: an element for each rank and slot alone would be 4,096, and each is some."""
OUT_OF_MEMORY = "likely out of memory"
RANKS = "Ranks of dev by what they do"
SIZE = {"width": 1100, "height": 1000}


class ManyNodes:
    """256 nodes that are made up."""

    def __init__(self, folder: Path) -> None:
        self._dead = folder / "dead.json"
        self.kill(dict.fromkeys((17, 203, 204), OUT_OF_MEMORY))

    def kill(self, causes: dict[int, str]) -> None:
        """Say which ranks are dead, and why."""
        temporary = self._dead.with_suffix(".new")
        temporary.write_text(json.dumps(causes))
        temporary.rename(self._dead)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, NODES, "256", self._dead], stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with own_home("many") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder / "home"))
        yield folder


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[ManyNodes]:
    nodes = ManyNodes(folder)
    with nodes.start() as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield nodes
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def large_lab(folder: Path, nodes: ManyNodes) -> Iterator[Lab]:
    with running_lab(folder) as lab:
        yield lab


@pytest.fixture
def panel(browser_context: BrowserContext, large_lab: Lab) -> Iterator[PanelPage]:
    """The panel, wide as it is at first, when all nodes have been heard of."""
    assert browser_context.browser is not None
    page = browser_context.browser.new_page(viewport=SIZE, device_scale_factor=1)
    page.goto(large_lab.url("lab?reset"))
    panel = PanelPage(page)
    panel.show()
    expect(page.locator(".mnb-map-node")).to_have_count(256)
    yield panel
    page.close()


def groups(panel: PanelPage, of: str) -> Locator:
    """The rows of groups, in their order."""
    return panel.root.get_by_role("list", name=of, exact=True).locator(".mnb-group-head")


def elements(page: Page) -> int:
    """How many elements the panel has."""
    return int(page.evaluate("document.querySelectorAll('#monarch-nb-panel *').length"))


def test_the_troubled_come_first_and_the_page_stays_small(panel: PanelPage) -> None:
    expect(groups(panel, RANKS)).to_contain_text(
        ["3 dead", "16 unreachable", "1 with a troubled GPU", "8 failed", "12 waiting", "2,008 running"]
    )
    expect(groups(panel, RANKS).first).to_contain_text("17,203-204killed by signal 9 (SIGKILL): likely out of memory")
    expect(groups(panel, "Nodes by how they are")).to_contain_text(
        ["1 gone", "1 silent", "1 with a troubled GPU", "253 ok"]
    )
    assert elements(panel.page) < MOST_ELEMENTS
    groups(panel, RANKS).last.click()
    expect(panel.root.locator(".mnb-rank")).to_have_count(64)
    panel.button("Next page").click()
    expect(panel.rank(0)).to_have_count(0)
    expect(panel.root.locator(".mnb-rank")).to_have_count(64)
    assert elements(panel.page) < MOST_ELEMENTS
    findings = serious_findings(panel.page, "#monarch-nb-panel")
    assert not findings, "\n".join(findings)


def test_any_rank_and_node_is_a_few_steps_away(panel: PanelPage, nodes: ManyNodes) -> None:
    panel.root.get_by_label("Go to rank").fill("803")
    panel.page.keyboard.press("Enter")
    expect(panel.rank(803)).to_have_attribute("aria-selected", "true")
    expect(panel.rank(803)).to_be_in_viewport()
    expect(panel.card("dev")).to_contain_text("node100 · GPU 3")
    nodes.kill(dict.fromkeys((17, 203, 204, 803), OUT_OF_MEMORY))
    expect(panel.notice("rank 803 of dev: killed by signal 9")).to_be_visible()
    dead = panel.card("dev").get_by_role("button", name=re.compile("^4 dead 17,203-204,803"))
    dead.click()
    panel.button("Choose all 4 ranks").click()
    expect(panel.button("Restart… ranks 17,203-204,803")).to_be_enabled()
    expect(panel.rank(803)).to_have_accessible_name(re.compile("rank 803: dead, killed by signal 9"))
    panel.root.get_by_role("button", name=re.compile("^node200: a GPU can not be used")).click()
    expect(panel.slot("node200", 3)).to_have_accessible_name(re.compile("GPU 3 has fallen off the bus"))
    panel.root.get_by_label("Go to node").fill("node255")
    panel.page.keyboard.press("Enter")
    expect(panel.slot("node255", 7)).to_be_in_viewport()
    assert elements(panel.page) < MOST_ELEMENTS
