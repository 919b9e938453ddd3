"""The panel by keyboard, for screen readers, in both themes, and in Notebook 7."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import monarch_nb
from e2e.axe import serious_findings
from e2e.lab import Lab, NotebookPage
from e2e.panel import LogPage, PanelPage
from integration.live import Gate, kill, pids_of, started
from monarch_nb.client.reservations.reservation import Reservation


def test_nothing_shuts_anybody_out(
    theme: str, panel: PanelPage, request: pytest.FixtureRequest, make_gate: Callable[[], Gate]
) -> None:
    expect(panel.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
    panel.open_form(nodes="9")
    expect(panel.field("Nodes")).to_have_attribute("aria-invalid", "true")
    findings = serious_findings(panel.page, "#monarch-nb-panel")
    panel.button("Close").click()
    held: Reservation = request.getfixturevalue("held")
    gate = make_gate()
    panel.wait_for_state("idle", 0, 1, 2, 3)
    with pytest.raises(monarch_nb.errors.RunFailed):
        held.mesh.select([2]).run("1 / 0")
    run, _ = started(held.mesh.select([0]), f"print('\\033[31mred \\033[93myellow\\033[0m')\n{gate.wait}")
    kill(pids_of(held.mesh)[3])
    panel.wait_for_state("dead", 3)
    panel.wait_for_state("running", 0)
    panel.wait_for_state("failed", 2)
    panel.rank(3).click()
    panel.button("Release…").click()
    expect(panel.question.get_by_role("button", name="Release")).to_be_enabled()
    findings += serious_findings(panel.page, "#monarch-nb-panel")
    panel.button("Keep").click()
    panel.button("Log rank 3").click()
    panel.rank(3).click()
    panel.button("Log").click()
    log = LogPage(panel.page)
    expect(log.line("yellow")).to_be_visible()
    log.find_field.fill("yellow")
    log.page.keyboard.press("Enter")
    expect(log.hit).to_be_visible()
    findings += serious_findings(panel.page, ".mnb-log")
    findings += serious_findings(panel.page, ".mnb-status")
    gate.open()
    run.wait()
    assert not findings, "\n".join(findings)


def test_a_keyboard_is_enough(notebook: NotebookPage, make_gate: Callable[[], Gate]) -> None:
    page, gate = notebook.page, make_gate()
    panel, press = PanelPage(page), page.keyboard.press
    notebook.open()  # alone in its page: what is opened beside others takes the focus once more, later

    def command(label: str) -> None:
        press("Control+Shift+c")
        expect(page.locator(".jp-ModalCommandPalette input")).to_be_focused()
        page.keyboard.type(label)
        expect(page.locator(".jp-ModalCommandPalette .lm-CommandPalette-item.lm-mod-active")).to_contain_text(label)
        press("Enter")

    def tab_to(name: str) -> None:
        for _ in range(60):
            if page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText || ''") == name:
                return
            press("Tab")
        raise AssertionError(f"Tab does not reach {name}")

    command("Reserve Nodes")
    expect(panel.field("Where")).to_be_focused()
    press("Tab")
    press("Control+a")
    page.keyboard.type("dev")
    press("Tab")
    press("Control+a")
    page.keyboard.type("2")
    press("Tab")
    press("c")  # one key: a select forgets those before when the next is late
    press("Tab")
    press("Control+a")
    page.keyboard.type("2")
    expect(panel.form.get_by_role("status")).to_contain_text("fits")
    press("Enter")
    panel.wait_for_state("idle", 0, 1, 2, 3)

    command("Attach This Notebook")
    notebook.wait_for_text(0, "attached to dev")
    notebook.write(1, f"{gate.wait}\nprint('done', rank)")
    command("Run Cell on the Mesh")
    panel.wait_for_state("running", 0, 1, 2, 3)
    gate.open(4)
    panel.wait_for_state("idle", 0, 1, 2, 3)

    command("Show Pool and Reservations")
    panel.card("dev").locator(".mnb-card-title").focus()
    press("Tab")
    expect(panel.rank(0)).to_be_focused()
    press("ArrowRight")
    press("ArrowRight")
    expect(panel.rank(2)).to_be_focused()
    press("Space")
    expect(panel.rank(2)).to_have_attribute("aria-selected", "true")
    press("Shift+ArrowRight")
    press("Shift+Space")
    expect(panel.rank(3)).to_have_attribute("aria-selected", "true")
    press("Tab")
    tab_to("Restart… ranks 2-3")
    press("Enter")
    expect(panel.question).to_contain_text("Restart ranks 2-3?")
    expect(panel.question.get_by_role("button", name="Keep")).to_be_focused()
    press("Escape")
    expect(panel.button("Restart… ranks 2-3")).to_be_focused()
    press("Shift+Tab")
    panel.rank(2).focus()
    press("Enter")
    expect(LogPage(page).line("done 2")).to_be_visible()

    command("Release Reservation")
    expect(panel.question.get_by_role("button", name="Release")).to_be_enabled()  # Tab goes past what is disabled
    tab_to("Release")
    press("Enter")
    expect(panel.card("dev")).to_have_count(0)


def test_notebook_7_has_the_panel_at_its_side(lab: Lab, page: Page, make_gate: Callable[[], Gate]) -> None:
    gate = make_gate()
    path = lab.write("seven.ipynb", [f"{gate.wait}\nprint('done', rank)"])
    page.goto(lab.url(f"notebooks/{path.name}"))
    notebook, panel = NotebookPage(lab, page, path), PanelPage(page)
    expect(page.locator(".jp-NotebookKernelLogo")).to_be_visible()
    notebook.choose("View", "Show Pool and Reservations")
    panel.wait_until_live()
    panel.reserve(name="dev", nodes="1", kind="procs", per_node="2")
    panel.button("Attach notebook").click()
    notebook.wait_for_text(0, "attached to dev")
    notebook.run_on_mesh(1)
    panel.wait_for_state("running", 0, 1)
    gate.open(2)
    panel.wait_for_state("idle", 0, 1)
    panel.button("Log").click()
    expect(LogPage(page).line("done 1")).to_be_visible()
