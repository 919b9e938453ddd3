"""Actors in the panel: what they run, on which ranks; and the buttons that then mean these."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from e2e.lab import OpenNotebook
from e2e.panel import PanelPage
from integration.live import Gate

SPAWN = """
import monarch_nb
from monarch_nb.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self):
        {wait}

dev = monarch_nb.attach("dev")
trainers = dev.mesh.spawn("trainers", Trainer)
trainers.slice(hosts=1).step.broadcast()
judges = dev.spawn_procs({{"procs": 1}}, name="evaluators").spawn("judges", Trainer)
judges.initialized.get()"""


def test_actors_are_seen_at_work_and_chosen(open_notebook: OpenNotebook, make_gate: Callable[[], Gate]) -> None:
    gate = make_gate()
    notebook = open_notebook(SPAWN.format(wait=gate.wait))
    panel = PanelPage(notebook.page)
    panel.show()
    panel.wait_for_state("idle", 0, 1, 2, 3)
    actors = panel.card("dev").get_by_role("region", name="Actors of dev")
    expect(actors).to_have_count(0)

    notebook.run(1)
    trainers = actors.locator("[data-actor=trainers]")
    expect(trainers).to_contain_text("Trainer")
    expect(trainers).to_contain_text(re.compile(r"ranks 2-3: runs step for the notebook · \d"))
    expect(trainers).to_contain_text("ranks 0-1: idle")
    panel.wait_for_state("running", 2, 3)

    actors.get_by_role("button", name=re.compile("judges")).click()
    expect(panel.button("evaluators")).to_have_attribute("aria-pressed", "true")
    expect(panel.button("Log ranks 0-1")).to_be_visible()
    actors.get_by_role("button", name=re.compile("trainers")).press("Enter")
    expect(panel.button("main")).to_have_attribute("aria-pressed", "true")
    panel.button("Stacks ranks 0-3").click()
    expect(panel.root.get_by_role("region", name="Stacks")).to_contain_text("trainers")
    gate.open(2)
    panel.wait_for_state("idle", 2, 3)
    expect(trainers).to_contain_text("idle")
