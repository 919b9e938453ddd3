"""The panel as a person in front of JupyterLab has it."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

TAB = ".jp-SideBar .lm-TabBar-tab[data-id='monarch-nb-panel']"


class PanelPage:
    """The panel in a page, at its side or in the output of a cell; what is in it is found by the words on it."""

    def __init__(self, page: Page, output: Locator | None = None) -> None:
        self.page = page
        self.root = output or page.locator("#monarch-nb-panel")
        self.status = page.locator("#jp-main-statusbar .mnb-status")
        self.form = self.root.locator(".mnb-form")
        self.chooser = self.root.get_by_role("combobox", name="Pool")
        self.question = self.root.get_by_role("alertdialog")

    def show(self) -> None:
        """Press its tab, and wait until it knows the pool."""
        self.page.locator(TAB).click()
        self.wait_until_live()

    def wait_until_live(self) -> None:
        expect(self.root.locator(".mnb-content:not(.mnb-stale)")).to_be_visible()

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def field(self, label: str) -> Locator:
        return self.form.get_by_label(label, exact=True)

    def reserve(self, **fields: str) -> None:
        """Open the form, fill fields in by their name, submit, and wait until it is done."""
        self.open_form(**fields)
        self.submit()
        expect(self.form).to_have_count(0)

    def open_form(self, **fields: str) -> None:
        """Open the form for reservations, and fill fields in."""
        self.button("Reserve…").click()
        self.fill(**fields)

    def fill(self, **fields: str) -> None:
        """Fill in fields of the form that is open."""
        for name, value in fields.items():
            field = self.form.locator(f"[id$='-{name}']")
            if name == "kind":
                field.select_option(value)
            else:
                field.fill(value)

    def submit(self) -> None:
        self.form.locator("[type=submit]").click()

    def card(self, name: str) -> Locator:
        """A reservation of ours."""
        return self.root.get_by_role("article", name=f"Reservation {name}", exact=True)

    def rank(self, rank: int) -> Locator:
        return self.root.locator(f".mnb-rank[data-cell='{rank}']")

    def wait_for_state(self, state: str, *ranks: int) -> None:
        """Wait until ranks are shown in a state: by their colour and shape, and in words."""
        for rank in ranks:
            expect(self.rank(rank)).to_have_class(re.compile(rf"\bmnb-state-{state}\b"))
            expect(self.rank(rank)).to_have_accessible_name(re.compile(rf"^rank {rank}: {state}\b"))

    def slot(self, node: str, place: int) -> Locator:
        return self.root.locator(f".mnb-slot[data-node='{node}'][data-cell='{place}']")

    def notice(self, text: str | re.Pattern[str]) -> Locator:
        return self.root.locator(".mnb-notice", has_text=text)


class LogPage:
    """The log viewer as a tab."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.root = page.locator(".mnb-log:visible")
        self.lines = self.root.locator(".mnb-line[data-row]")
        self.find_field = self.root.get_by_label("Find in the log")
        self.hit = self.root.locator(".mnb-line-hit")

    def line(self, text: str | re.Pattern[str]) -> Locator:
        """What ranks printed, or how a run ended; not the rule with the name of a run."""
        return self.root.locator(".mnb-line[data-row]", has_text=text)

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def wait_for_total(self, lines: int) -> None:
        expect(self.root.get_by_role("status")).to_have_text(f"{lines:,} line{'s' if lines != 1 else ''}")
