"""Draws docs/images/tour.gif anew: `PYTHONPATH=tests .venv/bin/python scripts/pictures/movie.py`.

A real JupyterLab on a real local pool: reserve, train, a hang that is freed, a breakpoint. Only waiting is shortened,
and a line below says what is being done.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pictures import IMAGES
from PIL import Image, ImageChops, ImageDraw, ImageFont
from playwright.sync_api import Browser, Locator, Page

from e2e.answers import answer, prompt
from e2e.lab import LIGHT, Lab, NotebookPage, home_variables, running_browser, running_lab
from e2e.panel import PanelPage
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import LocalProvisioner

WIDTH, HEIGHT = 960, 580
"""Of the page; the line below it is added."""
LINE_HEIGHT = 40
LINE_COLOUR = "#0b3d59"
FONT = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
COLOURS = 96
MOST_BYTES = 3_000_000
RESERVE = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 4"
DEFINE = """\
%%mesh
import time, torch
dist.init_process_group("gloo")
weights = torch.zeros(8, requires_grad=True)

def train(steps):
    for step in range(1, steps + 1):
        x = torch.randn(64, 8)
        loss = (x @ weights - x.sum(1)).square().mean()
        loss.backward()
        dist.all_reduce(weights.grad, dist.ReduceOp.AVG)
        weights.data -= 0.02 * weights.grad
        weights.grad = None
        time.sleep(0.05)
        if step % 10 == 0 and rank == 0:
            print(f"step {step:3}  loss {loss:.3f}")

train(steps=60)"""
HANG = """\
%%mesh
loss = torch.tensor(float(rank))
if rank != 3:  # rank 3 never gets there
    dist.all_reduce(loss)"""
AGAIN = """\
%%mesh
dist.init_process_group("gloo")
train(steps=30)  # the same weights"""
STOP = """\
%%mesh -t 0-3
def look(batch):
    breakpoint()
    return batch.mean()

look(torch.arange(4.0) + rank)"""
_POINTER = """([x, y]) => {
  let dot = document.getElementById('tour-pointer');
  if (!dot) {
    dot = document.body.appendChild(document.createElement('div'));
    dot.id = 'tour-pointer';
    dot.style.cssText = 'position:fixed;z-index:99999;width:22px;height:22px;margin:-11px;border-radius:50%;' +
      'background:rgba(214,69,65,.45);border:2px solid #d64541;pointer-events:none';
  }
  dot.style.left = x + 'px';
  dot.style.top = y + 'px';
}"""
_NO_POINTER = "() => document.getElementById('tour-pointer')?.remove()"


class Film:
    """Frames of a page, each with how long it is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._font = ImageFont.truetype(FONT, 17)
        self._line = ""
        self._frames: list[Image.Image] = []
        self._shown_ms: list[int] = []

    def hold(self, shown_ms: int) -> None:
        """Show what the page looks like now for a time; what looks the same as before is shown for longer."""
        frame = Image.new("RGB", (WIDTH, HEIGHT + LINE_HEIGHT), LINE_COLOUR)
        frame.paste(Image.open(io.BytesIO(self.page.screenshot())), (0, 0))
        ImageDraw.Draw(frame).text((16, HEIGHT + 9), self._line, "white", self._font)
        if self._frames and ImageChops.difference(frame, self._frames[-1]).getbbox() is None:
            self._shown_ms[-1] += shown_ms
        else:
            self._frames.append(frame)
            self._shown_ms.append(shown_ms)

    def until(self, over: Callable[[], bool], shown_ms: int = 120) -> None:
        """Show what goes on until it is over."""
        while not over():
            self.hold(shown_ms)

    def say(self, text: str) -> None:
        """Say below what is being done."""
        self._line = text
        self.hold(900)

    def press(self, button: Locator) -> None:
        """Move the pointer to a button, and press it."""
        box = button.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for part in (3, 2, 1, 0):
            self.page.evaluate(_POINTER, [x + 90 * part, y + 55 * part])
            self.hold(120)
        self.hold(500)
        button.click()
        self.hold(300)
        self.page.evaluate(_NO_POINTER)

    def save(self, path: Path) -> None:
        """Save it with one palette, so that a frame stores only what changed."""
        height = HEIGHT + LINE_HEIGHT
        sample = Image.new("RGB", (WIDTH, height * 4))
        for place, frame in enumerate(self._frames[:: max(1, len(self._frames) // 4)][:4]):
            sample.paste(frame, (0, height * place))
        palette = sample.quantize(COLOURS)
        first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self._frames)
        first.save(path, save_all=True, append_images=others, duration=self._shown_ms, loop=0, optimize=False)

    def __str__(self) -> str:
        return f"{len(self._frames)} frames, {sum(self._shown_ms) / 1000:.0f} s"


class Author:
    """Somebody who types cells and runs them."""

    def __init__(self, notebook: NotebookPage, film: Film) -> None:
        self._notebook, self._film = notebook, film

    def type(self, place: int, source: str) -> None:
        """Type a cell, a few characters at a time."""
        self._notebook.focus(place)
        for line in re.findall(r"[^\n]*\n?", source):
            for piece in re.findall(r".{1,14}\n?|\n", line, re.DOTALL):
                self._notebook.page.keyboard.insert_text(piece)
                self._film.hold(60)
        self._film.hold(400)

    def run(self, place: int, source: str) -> None:
        """Type a cell, and run it to its end."""
        self.type(place, source)
        self._notebook.start(place)
        self._film.until(lambda: not self._notebook.is_running(place) and bool(self._notebook.text(place)))
        self.show(place)

    def show(self, place: int) -> None:
        """Have the end of a cell in sight."""
        self._notebook.cell(place).evaluate("cell => cell.scrollIntoView({block: 'end'})")
        self._film.hold(1400)


def main() -> int:
    """Draw it."""
    folder = Path(tempfile.mkdtemp(prefix="mnb-e2e-", dir="/tmp"))
    os.environ |= {**home_variables(folder), HOME_VARIABLE: str(folder / "nb")}
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES / "tour.gif"
    try:
        LocalProvisioner().up(nodes=2, procs=4)
        with running_lab(folder) as lab, running_browser() as browser:
            lab.use_theme(LIGHT)
            film = draw(lab, browser)
            film.save(target)
            lab.shut_kernels_down()
    finally:
        LocalProvisioner().down(force=True)
        shutil.rmtree(folder)
    size_bytes = target.stat().st_size
    print(f"{target}: {film}, {size_bytes / 1e6:.2f} MB")
    return 0 if size_bytes < MOST_BYTES else 1


def draw(lab: Lab, browser: Browser) -> Film:
    """Film a notebook from its first cell to its last."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    notebook = NotebookPage(lab, page, lab.write("tour.ipynb", [""] * 5))
    notebook.open()
    panel, film = PanelPage(page), Film(page)
    panel.show()
    author = Author(notebook, film)
    page.add_style_tag(content=".cm-cursor, .cm-dropCursor { display: none !important }")
    film.say("Reserve ranks once. They live for hours or days.")
    author.run(0, RESERVE)
    panel.wait_for_state("idle", *range(8))
    film.hold(900)
    film.say("Train: a cell runs on every rank.")
    author.run(1, DEFINE)
    film.say("A mistake: rank 3 skips the collective, and the others hang.")
    author.type(2, HANG)
    notebook.start(2)
    film.until(lambda: "wait in all_reduce" in notebook.text(2))
    author.show(2)
    film.hold(1800)
    film.say("■ frees them. Nothing in memory is lost.")
    film.press(page.locator("[data-command='notebook:interrupt-kernel']").first)
    notebook.wait_for_end(2)
    author.show(2)
    film.hold(1200)
    film.say("Form the group again, and train on with the same weights.")
    author.run(3, AGAIN)
    film.hold(1200)
    film.say("breakpoint() on a rank is answered in the notebook.")
    author.type(4, STOP)
    notebook.start(4)
    notebook.wait_for_text(4, "Actor Name")
    for line, shows in (("p batch", r"\[3\] tensor"), ("attach 3", r"Attached"), ("p batch.sum()", r"tensor\(18")):
        field = prompt(notebook, 4)
        author.show(4)
        field.fill(line)
        film.hold(700)
        answer(notebook, 4, line)
        notebook.wait_for_text(4, re.compile(shows))
    prompt(notebook, 4)
    author.show(4)
    answer(notebook, 4, "detach")
    prompt(notebook, 4)
    answer(notebook, 4, "continue")
    notebook.wait_for_end(4)
    author.show(4)
    film.hold(1200)
    film.say("Restart the kernel, close the browser: the ranks stay.")
    film.hold(2500)
    page.close()
    return film


if __name__ == "__main__":
    sys.exit(main())
