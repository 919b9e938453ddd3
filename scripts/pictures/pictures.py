"""Draws the pictures in docs/images anew: `PYTHONPATH=tests .venv/bin/python scripts/pictures/pictures.py`."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import panel_pictures
from PIL import Image
from playwright.sync_api import Browser, Locator, expect

from e2e.answers import answer, prompt
from e2e.lab import DARK, LIGHT, Lab, NotebookPage, home_variables, running_browser, running_lab
from e2e.panel import LogPage, PanelPage
from gpus import FAKE_NVML, FakeGpus
from integration.live import Gate
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import LocalProvisioner

IMAGES = Path(__file__).parents[2] / "docs" / "images"
_COLOURS = 128
"""Text looks as with all, at a quarter of the size."""
RESERVE = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4"
FOLDED = """\
%%mesh
import torch.distributed as dist

dist.init_process_group("gloo")
print(f"{world_size} ranks, backend {dist.get_backend()}")
print(f"rank {rank} of {world_size} on {device}")
rank % 2"""
STUCK = """\
%%mesh
import torch
loss = torch.tensor(2.31 + rank / 100)
if rank == 5:
    raise ValueError("rank 5 read a bad batch")
dist.all_reduce(loss)"""
PROGRESS = """\
%%mesh
from tqdm import tqdm

for step in tqdm(range(240), desc="train"):
    loss = train_step()
    if rank == 0 and step % 60 == 0:
        print(f"step {step:3}  loss {loss:.4f}")"""
RESERVE_MANY = "%load_ext monarch_nb\n%mesh reserve titan --nodes 2 --procs 8 --preload json --files none"
MANY = """\
%%mesh
import random
random.seed(rank)

def train(steps):
    for step in range(1, steps + 1):
        loss = 7.8 - step / 10 + random.random() / 30
        if (step, rank) == (4, 11):
            loss = float("nan")
        tps = 9_012 + random.randrange(1_500) if (rank, step > 4) != (3, True) else 611
        print(f"step: {step:2}  loss: {loss:.4f}  grad_norm: {1 + random.random() / 9:.2f}  tps: {tps:,}")

train(steps=6)"""
STOP = """\
%%mesh -t 0-3
def loss_of(batch):
    loss = (batch ** 2).mean()
    breakpoint()
    return loss

loss_of(torch.arange(4.0) + rank)"""
TRAIN_STEP = """\
%%mesh
import time
steps = 0

def train_step():
    global steps
    if steps == 137 + rank % 3:
        {wait}
    steps += 1
    time.sleep(0.004)
    return 2.3 * 0.996 ** steps"""


def main() -> None:
    """Draw them all."""
    folder = Path(tempfile.mkdtemp(prefix="mnb-e2e-", dir="/tmp"))
    os.environ |= {**home_variables(folder), HOME_VARIABLE: str(folder / "nb")}
    os.environ |= {"PYTHONPATH": str(FAKE_NVML), "FAKE_NVML": str(folder / "gpus.json")}
    gpus = FakeGpus(folder / "gpus.json")
    try:
        with running_lab(folder) as lab, running_browser() as browser:
            IMAGES.mkdir(exist_ok=True)
            for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
                lab.use_theme(theme)
                with closing(Gate(folder)) as gate:
                    gpus.set(gpus=8)
                    panel_pictures.draw(lab, browser, suffix, gate, _save)
                    LocalProvisioner().down(force=True)
                    gpus.set(driver=False)
                    LocalProvisioner().up(nodes=2, procs=4)
                    _draw(lab, browser, suffix, gate)
                    LocalProvisioner().down(force=True)
                    LocalProvisioner().up(nodes=2, procs=8)
                    draw_rows(lab, browser, suffix, _save)
                    LocalProvisioner().down(force=True)
    finally:
        LocalProvisioner().down(force=True)
        shutil.rmtree(folder)


def _draw(lab: Lab, browser: Browser, suffix: str, gate: Gate) -> None:
    helpers = TRAIN_STEP.format(wait=gate.wait)
    path = lab.write(f"quickstart{suffix}.ipynb", [RESERVE, FOLDED, STUCK, helpers, PROGRESS, STOP, "%mesh release"])
    page = browser.new_page(viewport={"width": 800, "height": 1400}, device_scale_factor=1.5)
    notebook = NotebookPage(lab, page, path)
    notebook.open(single=True)
    notebook.run(0)
    notebook.run(1)
    _photograph(notebook, f"folded{suffix}", 0, 1)
    notebook.start(2)
    notebook.wait_for_text(2, "wait in all_reduce")
    _photograph(notebook, f"hang{suffix}", 2, 2)
    notebook.interrupt()
    notebook.wait_for_end(2)
    _photograph(notebook, f"error{suffix}", 2, 2)
    notebook.run(3)
    notebook.start(4)
    notebook.wait_for_text(4, re.compile("step 120 .*running on 8 ranks ·", re.DOTALL))
    _photograph(notebook, f"progress{suffix}", 4, 4)
    gate.open(8)
    notebook.wait_for_end(4)
    notebook.start(5)
    notebook.wait_for_text(5, "Actor Name")
    answer(notebook, 5, "cast cell ranks(:) p loss")
    notebook.wait_for_text(5, re.compile(r"\[3\] tensor"))
    answer(notebook, 5, "attach cell 1")
    answer(notebook, 5, "n")
    notebook.wait_for_text(5, "-> return loss")
    answer(notebook, 5, "p batch")
    notebook.wait_for_text(5, re.compile(r"tensor\(\[1\., 2"))
    prompt(notebook, 5)
    _photograph(notebook, f"debugger{suffix}", 5, 5)
    answer(notebook, 5, "detach")
    answer(notebook, 5, "continue")
    notebook.wait_for_end(5)
    notebook.run(6)
    page.close()
    lab.shut_kernels_down()


def draw_rows(lab: Lab, browser: Browser, suffix: str, save: panel_pictures.Save) -> None:
    """Save what a cell on 16 ranks shows, and the log: a rank that is apart, and a row that is open."""
    path = lab.write(f"titan{suffix}.ipynb", [RESERVE_MANY, MANY, "%mesh release"])
    page = browser.new_page(viewport={"width": 1100, "height": 1300}, device_scale_factor=1.5)
    notebook, panel, log = NotebookPage(lab, page, path), PanelPage(page), LogPage(page)
    notebook.open(single=True)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).get_by_role("button", name="step: 3").click()
    expect(notebook.output(1).locator(".mnb-own-line")).to_have_count(16)
    page.mouse.move(0, 0)
    save(f"rows{suffix}", notebook.output(1))
    notebook.open()
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    panel.show()
    panel.button("Log").click()
    log.wait_for_total(6)
    log.line("step: 2").click()
    expect(log.root.locator(".mnb-line-own")).to_have_count(16)
    page.mouse.move(0, 0)
    save(f"panel-log-rows{suffix}", log.root)
    notebook.run(2)
    page.close()
    lab.shut_kernels_down()


def _photograph(notebook: NotebookPage, name: str, first: int, last: int) -> None:
    """Save what the cells `first` to `last` look like."""
    notebook.focus(6)  # so that none of these is marked
    above, below = notebook.cell(first).bounding_box(), notebook.cell(last).bounding_box()
    assert above is not None
    assert below is not None
    _keep(name, notebook.page.screenshot(clip={**above, "height": below["y"] + below["height"] - above["y"]}))


def _save(name: str, shown: Locator) -> None:
    _keep(name, shown.screenshot())


def _keep(name: str, screenshot: bytes) -> None:
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
