"""What the pictures of the panel show: each of its states, in a JupyterLab on a pool with stand-ins for GPUs."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Browser, Locator, expect

import monarch_nb
from e2e.lab import Lab, NotebookPage
from e2e.panel import LogPage, PanelPage
from integration.live import Gate, kill, pids_of

Save = Callable[[str, Locator], None]
SETUP = """\
import sys
import torch.distributed as dist
dist.init_process_group("gloo")"""
TRAIN = """\
def train(steps):
    for step in range(steps):
        if step % 60 == 0:
            print(f"step {step:3}  loss {2.3 * 0.996 ** step:.4f}")
        if step == 100 and rank % 4 == 2:
            print(f"slow batch: {0.6 + rank / 10:.1f} s", file=sys.stderr)
    if rank < 4:
        save_checkpoint()
    dist.barrier()

train(steps=240)"""
FAIL = """\
import torch.distributed as dist
if rank == 6:
    raise ValueError("bad batch")
dist.init_process_group("gloo")"""

ACTORS = """\
import threading
import monarch_nb
from monarch_nb.actor import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def step(self):
        threading.Event().wait()

class Reader(Actor):
    def __init__(self, path):
        self.file = open(path)

held = monarch_nb.attach("train")
trainers = held.mesh.spawn("trainers", Trainer)
for _ in range(3):
    trainers.slice(gpus=slice(0, 4)).step.broadcast()
readers = held.mesh.slice(gpus=slice(6, 8)).spawn("readers", Reader, "/data/imagenet/train/00000.tar")
evaluators = held.spawn_procs({"gpus": 2}, name="evaluators")
evaluators.spawn("judges", Trainer).step.broadcast()"""
NO_MORE = "evaluators.stop().get()"


def draw(lab: Lab, browser: Browser, suffix: str, gate: Gate, save: Save) -> None:
    """Save every picture, as `panel-…` and the suffix, of a pool that is started here.

    Args:
        save: called with a picture's name and the part of the page that it shows.
    """
    path = lab.write("train.ipynb", [SETUP, TRAIN, ACTORS, NO_MORE])
    page = browser.new_page(viewport={"width": 1000, "height": 640}, device_scale_factor=1.5)
    page.goto(lab.address(path))
    notebook, panel, log = NotebookPage(lab, page, path), PanelPage(page), LogPage(page)
    notebook.wait_for_kernel()
    panel.show()

    def photograph(name: str) -> None:
        page.mouse.move(700, 300)  # so that nothing of the panel is under it
        save(f"panel-{name}{suffix}", panel.root)

    photograph("no-pool")
    panel.button("Start a local pool…").click()
    panel.fill(nodes="2", procs="8")
    photograph("start")
    panel.submit()
    expect(panel.form).to_have_count(0)
    expect(panel.root.locator(".mnb-node[data-node-state='ok']")).to_have_count(2)
    panel.open_form(name="train", nodes="2", kind="gpus", per_node="8", time="8h", idle="2h")
    expect(panel.form).to_contain_text("can take")
    photograph("refused")
    panel.fill(nodes="1")
    expect(panel.form.get_by_role("status")).to_contain_text("fits")
    photograph("reserve")
    panel.submit()
    panel.wait_for_state("idle", *range(8))
    panel.button("Attach notebook").click()
    notebook.wait_for_text(0, "8 ranks alive")
    held = monarch_nb.attach("train")
    held.mesh.run(f"def save_checkpoint():\n    {gate.wait}")
    notebook.run_on_mesh(1)
    notebook.wait_for_end(1)
    notebook.run_on_mesh(2)
    panel.wait_for_state("running", 0, 1, 2, 3)
    panel.wait_for_state("waiting", 4, 5, 6, 7)
    save(f"panel{suffix}", page.locator("#main"))
    photograph("running")
    panel.button("Stacks").click()
    expect(panel.root.get_by_role("region", name="Stacks")).to_contain_text("train")
    photograph("stacks")
    panel.button("Close stacks").click()
    gate.open(4)
    notebook.wait_for_end(2)

    notebook.run(3)
    actors = page.get_by_role("region", name="Actors of train")
    expect(actors).to_contain_text("No such file")
    expect(actors.locator("[data-actor=judges]")).to_contain_text("runs step")
    expect(actors.locator("[data-actor=trainers]")).to_contain_text("messages wait")
    photograph("actors")
    notebook.run(4)

    panel.button("Log").click()
    log.find_field.fill("slow")
    page.keyboard.press("Enter")
    expect(log.hit).to_be_visible()
    save(f"panel-log{suffix}", log.root)
    panel.button("Curves").click()
    curves = page.locator(".mnb-curves:visible")
    expect(curves.locator(".u-title")).to_have_text(["loss"])
    save(f"panel-curves{suffix}", curves)
    held.mesh.restart()
    kill(pids_of(held.mesh)[7])
    panel.wait_for_state("dead", 7)
    held.mesh.select(range(7)).submit(FAIL)
    panel.wait_for_state("failed", 6)
    panel.wait_for_state("waiting", 0, 5)
    photograph("trouble")
    panel.button("Release…").click()
    expect(panel.question).to_contain_text("variables")
    photograph("release")
    held.release()
    page.close()
    lab.shut_kernels_down()
