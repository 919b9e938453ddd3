"""Whoever types what README or a page of docs/ shows, in order, sees what it shows (tests/pages.py says how that is
written). A page is a notebook from its `%load_ext monarch_nb` on."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import eventually
from integration.notebooks import ANSI
from integration.stopped import DBG, PDB, type_in
from pages import PAGES, README, Block, blocks

NOTEBOOKS = [page for page in PAGES if any(block.begins for block in blocks(page))]
FIGURE = r"\d+\.\d+"
CLOSE = 0.02
"""How far a figure may be from the page's: losses differ a little from torch to torch."""


class Reader:
    """Types what a page says, and looks for what it shows."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self._kernel = kernel
        self._folder = folder
        self._cell = ""
        self._shown: list[str] = []
        self._expected: list[str] = []

    def read(self, block: Block) -> None:
        """Do what a block, and what stands above it, tell."""
        name = re.match(r"# (\S+\.py)\n", block.text)
        if block.why_not or not (self._cell or block.begins or name):
            return
        if block.language == "python" and name:
            (self._folder / name[1]).write_text(block.text)
        elif block.language == "python":
            self.finish()
            self._cell = self._kernel.start(block.text)
        elif block.language == "diff":
            self._edit(block.text)
        elif block.language in ("", "text"):
            self._look(block)

    def finish(self) -> None:
        """Wait for the end of the cell, which fails only where the page says so."""
        if self._cell:
            self._kernel.wait(self._cell)
            self._assert_shown()
            assert "Error" not in self._text or "Error" in "".join(self._shown), self._text
            self._cell, self._shown = "", []

    @property
    def _text(self) -> str:
        """What the cell shows now; where it is text, words stand for the colour of stderr."""
        return ANSI.sub("", self._kernel.text(self._cell)).replace("[stderr:", "[")

    def _edit(self, diff: str) -> None:
        """Put the lines with a + where the others are."""
        lines = diff.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] == " ")
        after = "".join(line[1:] for line in lines)
        [path] = [path for path in self._folder.glob("*.py") if path.read_text().count(before) == 1]
        path.write_text(path.read_text().replace(before, after))

    def _look(self, block: Block) -> None:
        if "Press ■" in block.above:
            for line in self._expected:
                self._kernel.wait(self._cell, line)
            self._assert_shown()
            self._kernel.interrupt()
        for line in block.text.splitlines():
            if prompt := next((each for each in (DBG, PDB) if line.startswith(each)), ""):
                self._answer(prompt, line.removeprefix(prompt))
            elif line:
                self._expected.append(line)

    def _answer(self, prompt: str, line: str) -> None:
        self._kernel.asked(self._cell, prompt)
        if prompt == DBG:  # ranks may stop after it has opened
            with suppress(AssertionError):
                eventually(self._all_listed)
        self._assert_shown()
        self._kernel.answer(line)

    def _all_listed(self) -> bool:
        """Whether the cell shows what is expected; else its table is shown again."""
        if self._missing:
            type_in(self._kernel, self._cell, "list", DBG)
        return not self._missing

    @property
    def _missing(self) -> list[str]:
        return [line for line in self._expected if not is_in(line, self._text)]

    def _assert_shown(self) -> None:
        assert not self._missing, f"{self._missing} not in: {self._text}"
        self._shown += self._expected
        self._expected = []


def is_in(line: str, shown: str) -> bool:
    """Return whether a line of a page is in what is shown, with figures that are close to the page's."""
    figures = [float(figure) for figure in re.findall(FIGURE, line)]
    words = [re.escape(part) for part in re.split(FIGURE, " ".join(line.split()))]
    wanted = rf"(?<![\d.]){f'({FIGURE})'.join(words).replace('…', '.*')}(?!\d)"
    return any(
        all(math.isclose(a, float(b), rel_tol=CLOSE) for a, b in zip(figures, found.groups(), strict=True))
        for found in re.finditer(wanted, re.sub(r"[ \t]+", " ", shown))
    )


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.quick if page == README else (), id=page.name) for page in NOTEBOOKS]
)
def test_a_page_shows_what_its_reader_sees(page: Path, prompt: Kernel, tmp_path: Path) -> None:
    reader = Reader(prompt, tmp_path)
    for block in blocks(page):
        reader.read(block)
    reader.finish()
